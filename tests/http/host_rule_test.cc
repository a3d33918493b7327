// Which Host and Origin a server without a key answers to: its own names, and no one else's.
#include "src/http/host_rule.h"

#include <gtest/gtest.h>

namespace blockgtq::http {
namespace {

HostRule Rule(const std::string& bound, const std::vector<std::string>& allowed = {}) {
  Result<HostRule> rule = HostRule::Create(bound, allowed);
  EXPECT_TRUE(rule.ok()) << rule.status().message();
  return std::move(rule).value();
}

TEST(HostRuleTest, AuthoritiesAreTakenApart) {
  EXPECT_EQ(HostOfAuthority("LocalHost:8080"), "localhost");
  EXPECT_EQ(HostOfAuthority("localhost."), "localhost");
  EXPECT_EQ(HostOfAuthority("[::1]:80"), "[::1]");
  EXPECT_EQ(HostOfAuthority("a-b.example"), "a-b.example");
  for (const char* wrong : {"", ":80", "a b", "user@localhost", "localhost:8a", "localhost:80:80", "[::1",
                            "[::1]80", "[nothing]", "localhost/", "::1", "\xff"}) {
    EXPECT_EQ(HostOfAuthority(wrong), "") << wrong;
  }
}

TEST(HostRuleTest, ALoopbackServerHasTheNamesOfThisMachine) {
  for (const char* bound : {"127.0.0.1", "localhost", "::1"}) {
    const HostRule rule = Rule(bound);
    for (const char* host :
         {"", "localhost", "localhost:1", "127.0.0.1:8080", "127.8.8.8", "[::1]:8080", "chat.localhost:8080"})
      EXPECT_EQ(rule.Refusal(host, ""), "") << host;
    for (const char* host :
         {"evil.example", "evil.example:8080", "localhost.evil.example", "evillocalhost",
          "127.0.0.1.evil.example", "192.168.1.2:8080", "0.0.0.0:8080", "[fe80::1]", "not a name"})
      EXPECT_NE(rule.Refusal(host, "").find("--allow-host"), std::string::npos) << host;
  }
}

TEST(HostRuleTest, AnAddressThatIsBoundIsAName) {
  EXPECT_EQ(Rule("192.168.1.2").Refusal("192.168.1.2:8080", "http://192.168.1.2:8080"), "");
  EXPECT_NE(Rule("192.168.1.2").Refusal("192.168.1.3:8080", ""), "");
  for (const char* all : {"0.0.0.0", "::"}) {
    EXPECT_EQ(Rule(all).Refusal("192.168.1.3:8080", ""), "");
    EXPECT_EQ(Rule(all).Refusal("[fe80::1]:8080", ""), "");
    EXPECT_NE(Rule(all).Refusal("evil.example", ""), "");
    EXPECT_NE(Rule(all).Refusal("192.168.1.3:8080", "http://192.168.1.4:8080"), "");
  }
}

TEST(HostRuleTest, OnlyPagesOfThisServerAndOfThisMachineMayAsk) {
  const HostRule rule = Rule("127.0.0.1");
  for (const char* origin :
       {"http://127.0.0.1:8080", "http://localhost:3000", "https://localhost", "http://[::1]:1"})
    EXPECT_EQ(rule.Refusal("127.0.0.1:8080", origin), "") << origin;
  for (const char* origin : {"https://evil.example", "http://evil.example:8080", "null", "localhost",
                             "http://", "http://localhost@evil.example", "http://localhost.evil.example"})
    EXPECT_NE(rule.Refusal("127.0.0.1:8080", origin), "") << origin;
}

TEST(HostRuleTest, NamesCanBeAllowed) {
  const HostRule rule = Rule("127.0.0.1", {"Chat.example"});
  EXPECT_EQ(rule.Refusal("chat.example:443", ""), "");
  EXPECT_EQ(rule.Refusal("127.0.0.1:8080", "https://chat.example"), "");
  EXPECT_NE(rule.Refusal("other.example", ""), "");
  EXPECT_NE(rule.Refusal("chat.example", "https://other.example"), "");
  for (const char* wrong : {"https://chat.example", "chat.example:443", "*", "a b"}) {
    EXPECT_EQ(HostRule::Create("127.0.0.1", {wrong}).status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
  EXPECT_EQ(HostRule::Create("a.name", {}).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockgtq::http
