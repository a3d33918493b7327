// Tool calls taken out of answers, whatever pieces these come in.
#include "src/http/tool_call_parser.h"

#include <gtest/gtest.h>

namespace blockgtq::http {
namespace {

struct Told {
  std::string content;
  std::vector<std::string> calls;  // "name arguments"
  bool operator==(const Told&) const = default;
};

Told ParsePieces(std::string_view text, size_t piece) {
  ToolCallParser parser({"f", "g"});
  Told told;
  const auto add = [&](const ToolCallParser::Parts& parts) {
    told.content += parts.content;
    for (const ToolCall& call : parts.calls) told.calls.push_back(call.name + " " + call.arguments);
  };
  for (size_t at = 0; at < text.size(); at += piece) add(parser.Push(text.substr(at, piece)));
  add(parser.Finish());
  return told;
}

void ExpectTold(std::string_view text, const Told& expected) {
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const Told told = ParsePieces(text, piece);
    ASSERT_EQ(told.content, expected.content) << text << " by " << piece;
    ASSERT_EQ(told.calls, expected.calls) << text << " by " << piece;
  }
}

TEST(ToolCallParser, TakesCallsOutOfTheText) {
  ExpectTold("plain <text> </tool_call> <tool_cal", {"plain <text> </tool_call> <tool_cal", {}});
  ExpectTold("I look.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\":1,\"a\":[\"</x>\"]}}\n</tool_call>",
             {"I look.", {"f {\"z\": 1, \"a\": [\"</x>\"]}"}});
  ExpectTold(
      "<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"arguments\":{},\"name\":\"g\"}</tool_call>\n",
      {"", {"f {}", "g {}"}});
  ExpectTold("<tool_call>{\"name\":\"f\"}</tool_call> so", {" so", {"f {}"}});
}

TEST(ToolCallParser, WhatIsNoCallStaysText) {
  for (const char* text :
       {"<tool_call>{\"name\": f}</tool_call>", "<tool_call>[1]</tool_call>.",
        "<tool_call>{\"name\":1}</tool_call>", "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>",
        "<tool_call>{\"name\":\"f\"", "<tool_call>", "<tool_call></tool_call>"}) {
    ExpectTold(text, {text, {}});
  }
  EXPECT_EQ(ParsePieces("<tool_call>" + std::string(100000, '['), 1000).calls.size(), 0u);
}

TEST(ToolCallParser, AnAnswerThatIsNothingButACallOfAKnownToolCounts) {
  ExpectTold(" {\"name\": \"g\", \"arguments\": {\"a\":{}}}\n", {"", {"g {\"a\": {}}"}});
  for (const char* text : {"{\"name\": \"other\", \"arguments\": {}}",
                           "{\"name\": \"f\", \"arguments\": {}} and", "{", "  {x}", " "}) {
    ExpectTold(text, {text, {}});
  }
  ExpectTold("{}<tool_call>{\"name\":\"f\"}</tool_call>", {"{}", {"f {}"}});
}

TEST(ToolCallParser, AMissingEndMarkIsForgiven) {
  ExpectTold("<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":2}}\n", {"", {"f {\"a\": 2}"}});
}

}  // namespace
}  // namespace blockgtq::http
