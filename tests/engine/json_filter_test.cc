// The JSON machine against another parser of JSON, and the filter over a vocabulary.
#include "src/engine/json_filter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/engine/test_models.h"

namespace blockgtq {
namespace {

bool IsObject(std::string_view text) {
  JsonMachine machine;
  return machine.Push(text) && machine.done();
}

std::string Repeat(std::string_view part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(JsonMachine, TakesObjectsOfEveryKindOfValue) {
  for (const char* text : {R"({})", " {\n} ", R"({"a":1})", R"({ "a" : [ ] , "b":[1,2 ,{"c":null}],"":true})",
                           R"({"n":[0,-0,-1.5e-10,12E+3,0.25,false]})", R"({"s":"\"\\\/\b\f\n\r\t\u00e9"})",
                           R"({"pair":"\ud83d\uDE00", "k\u0065y":"ü€😀"})", "{\"del\":\"\x7f\"}"}) {
    std::string_view whole = text;
    while (whole.back() == ' ') whole.remove_suffix(1);  // nothing follows the object
    EXPECT_TRUE(IsObject(whole)) << text;
    EXPECT_TRUE(nlohmann::json::accept(whole)) << text;
  }
}

TEST(JsonMachine, RefusesWhatIsNoObjectAtTheByteThatIsWrong) {
  // The bytes before the last can come, the last cannot.
  for (const char* text : {"[",
                           "1",
                           "x",
                           "{,",
                           "{1",
                           "{\"a\",",
                           "{\"a\":,",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{\"a\":[1,]",
                           "{\"a\":[}",
                           "{\"a\":01",
                           "{\"a\":-,",
                           "{\"a\":1.e",
                           "{\"a\":1.,",
                           "{\"a\":1e,",
                           "{\"a\":.",
                           "{\"a\":+",
                           "{\"a\":tx",
                           "{\"a\":nul}",
                           "{\"a\":'",
                           "{\"a\\x",
                           "{\"a\\u12g",
                           "{\"\\udc",
                           "{\"\\ud800x",
                           "{\"\\ud800\\n",
                           "{\"\\ud800\\ue",
                           "{\"\\ud800\\ud8",
                           "{\"\n",
                           "{\"\x80",
                           "{\"\xc0",
                           "{\"\xe0\x80",
                           "{\"\xed\xa0",
                           "{\"\xf4\x90",
                           "{\"\xf5",
                           "{\"\xc3\"",
                           "{}}",
                           "{} ",
                           "{\"a\":1]",
                           "{\"a\":[1}"}) {
    const std::string_view whole = text;
    JsonMachine machine;
    ASSERT_TRUE(machine.Push(whole.substr(0, whole.size() - 1))) << text;
    EXPECT_FALSE(machine.Push(static_cast<uint8_t>(whole.back()))) << text;
  }
}

TEST(JsonMachine, BoundsDepthDigitsAndWhiteSpace) {
  const int most = JsonMachine::kMaxDepth;
  EXPECT_TRUE(IsObject("{\"a\":" + Repeat("[", most - 1) + Repeat("]", most - 1) + "}"));
  EXPECT_FALSE(IsObject("{\"a\":" + Repeat("[", most) + Repeat("]", most) + "}"));
  const std::string digits = Repeat("7", JsonMachine::kMaxDigits);
  EXPECT_TRUE(IsObject("{\"a\":-" + digits + "." + digits + "e-99}"));
  EXPECT_FALSE(IsObject("{\"a\":" + digits + "7}"));
  EXPECT_FALSE(IsObject("{\"a\":0." + digits + "7}"));
  EXPECT_FALSE(IsObject("{\"a\":1e100}"));
  const std::string space = Repeat(" ", JsonMachine::kMaxSpace);
  EXPECT_TRUE(IsObject(space + "{" + space + "}"));
  EXPECT_FALSE(IsObject(space + " {}"));
}

TEST(JsonMachine, WhatRandomBytesLeadToParses) {
  std::mt19937 random(1);
  const std::string liked = "{}[]\",:\\u dD8cC0eE1.-+tfn\xc3\xa9\xf0\x9f\x98\x80 ";
  int finished = 0;
  for (int run = 0; run < 400; ++run) {
    JsonMachine machine;
    std::string text;
    while (!machine.done() && text.size() < 4000) {
      std::string allowed;  // of the bytes that can come next, one at random
      for (const char c : liked) {
        if (JsonMachine(machine).Push(static_cast<uint8_t>(c))) allowed += c;
      }
      if (allowed.empty() || random() % 8 == 0) {
        for (int byte = 0; byte < 256; ++byte) {
          if (JsonMachine(machine).Push(static_cast<uint8_t>(byte))) allowed += static_cast<char>(byte);
        }
      }
      ASSERT_FALSE(allowed.empty()) << text;  // some byte always leads on
      text += allowed[random() % allowed.size()];
      ASSERT_TRUE(machine.Push(static_cast<uint8_t>(text.back())));
    }
    if (!machine.done()) continue;
    ++finished;
    const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(parsed.is_object()) << text;
  }
  EXPECT_GT(finished, 100);
}

TEST(JsonFilter, AllowsATokenWhereAllOfItsBytesCanCome) {
  const std::string path = test::RealModelPath(test::kSmolLm2);
  if (path.empty()) GTEST_SKIP() << "SmolLM2-135M has not been fetched (scripts/fetch_models.sh)";
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  auto made = Tokenizer::FromGguf(**file);
  ASSERT_TRUE(made.ok());
  const Tokenizer& tokenizer = **made;
  JsonFilter filter(std::make_shared<JsonVocabulary>(tokenizer));
  std::string text;
  Token offset = 0;
  for (const Token token : tokenizer.Encode("{\"name\": \"Zoë\\n\", \"list\": [1.5, true]}", false)) {
    for (Token t = offset++ % 7; t < tokenizer.vocab_size(); t += 7) {  // another seventh each time
      const std::string_view piece = tokenizer.Piece(t);
      JsonMachine machine;
      const bool expected =
          !piece.empty() && !tokenizer.IsControl(t) && machine.Push(text) && machine.Push(piece);
      ASSERT_EQ(filter.Allows(t), expected) << text << " | " << piece;
    }
    ASSERT_TRUE(filter.Allows(token)) << text << " | " << tokenizer.Piece(token);
    filter.Take(token);
    text += tokenizer.Piece(token);
  }
  EXPECT_TRUE(filter.done());
}

}  // namespace
}  // namespace blockgtq
