// Request bodies: what is taken, what is refused, and under which name.
#include "src/http/json_request.h"

#include <gtest/gtest.h>

namespace blockgtq::http {
namespace {

Status CompletionError(const std::string& fields) {
  return ParseCompletionRequest(R"({"prompt":"a",)" + fields + "}").status();
}

TEST(JsonRequest, TakesEveryFieldOfACompletion) {
  const auto request = ParseCompletionRequest(
      R"({"prompt":["a",[1,2]],"max_tokens":5,"temperature":0.5,"top_p":0.9,"min_p":0.1,"top_k":3,"seed":7,
          "n":2,"stop":"x","logprobs":2,"echo":true,"stream":true,"stream_options":{"include_usage":true},
          "ignore_eos":true,"cache_prompt":false,"repeat_penalty":1.1,"unknown":{"is":"ignored"},
          "frequency_penalty":-0.5,"presence_penalty":2,"logit_bias":{"5":-100,"6":1.5,"7":0},
          "response_format":{"type":"json_object"}})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  ASSERT_EQ(request->prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(request->prompts[0]), "a");
  EXPECT_EQ(std::get<std::vector<Token>>(request->prompts[1]), (std::vector<Token>{1, 2}));
  const GenerationSettings& s = request->settings;
  EXPECT_EQ(s.max_tokens, 5);
  EXPECT_EQ(s.sampler.temperature, 0.5f);
  EXPECT_EQ(s.sampler.top_p, 0.9f);
  EXPECT_EQ(s.sampler.min_p, 0.1f);
  EXPECT_EQ(s.sampler.top_k, 3);
  EXPECT_EQ(s.sampler.seed, 7u);
  EXPECT_EQ(s.sampler.repeat_penalty, 1.1f);
  EXPECT_EQ(s.sampler.frequency_penalty, -0.5f);
  EXPECT_EQ(s.sampler.presence_penalty, 2.0f);
  EXPECT_EQ(s.sampler.logit_bias, (std::vector<std::pair<Token, float>>{{5, -100.0f}, {6, 1.5f}}));
  EXPECT_TRUE(s.json_object);
  EXPECT_EQ(s.choices, 2);
  EXPECT_EQ(s.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(s.top_logprobs, 2);
  EXPECT_TRUE(request->echo && s.stream && s.usage_in_stream && s.ignore_end && !s.cache_prompt);
}

TEST(JsonRequest, JoinsTheTextPartsOfAMessage) {
  const auto request = ParseChatRequest(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
          "max_completion_tokens":3,"response_format":{"type":"text"},"tools":[],"presence_penalty":0})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->messages[0].content, "ab");
  EXPECT_EQ(request->settings.max_tokens, 3);
  EXPECT_EQ(request->settings.top_logprobs, -1);
}

TEST(JsonRequest, TakesToolsWithTheirKeysInOrder) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","zeta":1,"alpha":{"b":[],"a":"ü"}}}])";
  const std::string messages =
      R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":
          [{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1, \"a\":[2]}"}}]},
          {"role":"tool","tool_call_id":"1","content":"r"}])";
  const auto request = ParseChatRequest("{" + tools + "," + messages + "}");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->tools,
            std::vector<std::string>{R"({"type": "function", "function": {"name": "f", "zeta": 1, )"
                                     R"("alpha": {"b": [], "a": "ü"}}})"});
  ASSERT_EQ(request->messages[1].tool_calls.size(), 1u);
  EXPECT_EQ(request->messages[1].tool_calls[0].arguments, R"({"z": 1, "a": [2]})");
  EXPECT_EQ(request->messages[2].role, "tool");
  EXPECT_TRUE(ParseChatRequest("{" + tools + R"(,"tool_choice":"none",)" + messages + "}")->tools.empty());
  for (const char* refused : {R"("tool_choice":"required")", R"("tool_choice":{"type":"function"})",
                              R"("parallel_tool_calls":false)"}) {
    const Status status = ParseChatRequest("{" + tools + "," + refused + "," + messages + "}").status();
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << refused;
    EXPECT_NE(status.message().find(std::string(refused).substr(1, 8)), std::string::npos)
        << status.message();
  }
  for (const char* bad : {"1", "[1]", "[{}]", R"([{"type":"function","function":{"name":"a b"}}])",
                          R"([{"type":"function","function":{"name":""}}])"}) {
    EXPECT_EQ(ParseChatRequest(std::string(R"({"tools":)") + bad + "," + messages + "}").status().code(),
              ErrorCode::kInvalidArgument)
        << bad;
  }
  for (const char* bad : {R"({"name":"f"})", R"({"name":"f","arguments":"[1]"})",
                          R"({"name":"f","arguments":"{"})", R"({"name":"\"","arguments":"{}"})"}) {
    const std::string body =
        std::string(R"({"messages":[{"role":"assistant","tool_calls":[{"function":)") + bad + "}]}]}";
    EXPECT_EQ(ParseChatRequest(body).status().code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(JsonRequest, NamesTheFieldThatIsOutOfRange) {
  for (const char* field :
       {"max_tokens", "temperature", "top_p", "min_p", "top_k", "seed", "n", "logprobs", "id_slot"}) {
    for (const char* value : {"-2", "\"1\"", "[]", "99999999999999999999", "true"}) {
      const Status status = CompletionError(std::string("\"") + field + "\":" + value);
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << field << " " << value;
      EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
    }
  }
  for (const char* bias : {"[1]", R"({"x":1})", R"({"-1":1})", R"({"1":101})", R"({"1":"2"})", R"({"1 ":1})"})
    EXPECT_EQ(CompletionError(std::string("\"logit_bias\":") + bias).code(), ErrorCode::kInvalidArgument)
        << bias;
  EXPECT_FALSE(CompletionError(R"("frequency_penalty":2.1)").ok());
  EXPECT_FALSE(CompletionError(R"("response_format":"json")").ok());
  EXPECT_FALSE(CompletionError(R"("stop":[""])").ok());
  EXPECT_FALSE(CompletionError(R"("n":3,"id_slot":1)").ok());
}

TEST(JsonRequest, RefusesByNameWhatItDoesNotDo) {
  for (const char* fields : {R"("grammar":"x")", R"("json_schema":{})", R"("functions":[{}])",
                             R"("response_format":{"type":"json_schema"})", R"("suffix":"x")"}) {
    EXPECT_EQ(CompletionError(fields).code(), ErrorCode::kUnsupported) << fields;
  }
  EXPECT_EQ(
      ParseChatRequest(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})").status().code(),
      ErrorCode::kUnsupported);
}

TEST(JsonRequest, RefusesDeepNestingAndNamesThatLeaveTheFolder) {
  EXPECT_FALSE(ParseChatRequest(std::string(100000, '[')).ok());
  EXPECT_FALSE(ParseChatRequest("{\"messages\":\"\xff\"}").ok());
  EXPECT_EQ(*ParseSlotFileName(R"({"filename":"talk-1.bin"})"), "talk-1.bin");
  for (const char* name : {"../x", "a/b", "..", ".x", "", "a\\u0000b", "a\\\\b", "a b"})
    EXPECT_FALSE(ParseSlotFileName(std::string(R"({"filename":")") + name + "\"}").ok()) << name;
}

}  // namespace
}  // namespace blockgtq::http
