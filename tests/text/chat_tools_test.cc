// Chats with tools against jinja2 running the same templates (tests/data/text/make_tool_chats.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/formats/gguf.h"
#include "src/text/chat_template.h"
#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using Json = nlohmann::ordered_json;

Json Golden() {
  std::ifstream file(std::string(BGTQ_TEST_DATA) + "/text/tool_chats.json");
  return Json::parse(file);
}

std::vector<ChatMessage> MessagesOf(const Json& chat) {
  std::vector<ChatMessage> messages;
  for (const Json& message : chat["messages"]) {
    messages.push_back({message["role"], message["content"]});
    for (const Json& call : message.value("tool_calls", Json::array())) {
      messages.back().tool_calls.push_back(
          {call["function"]["name"], TemplateJson(call["function"]["arguments"])});
    }
  }
  return messages;
}

std::vector<std::string> ToolsOf(const Json& chat) {
  std::vector<std::string> tools;
  for (const Json& tool : chat["tools"]) tools.push_back(TemplateJson(tool));
  return tools;
}

TEST(ChatTools, AreRenderedAsJinja2Does) {
  const Json golden = Golden();
  for (const Json& row : golden["templates"]) {
    const auto recognized = RecognizeTemplate(row["template"].get<std::string>(), "</s>");
    ASSERT_TRUE(recognized.ok()) << row["name"] << recognized.status().message();
    ASSERT_NE(recognized->tools, ToolForm::kNone) << row["name"];
    for (size_t i = 0; i < golden["chats"].size(); ++i) {
      const Json& chat = golden["chats"][i];
      const auto text = RenderChat(*recognized, MessagesOf(chat), ToolsOf(chat));
      ASSERT_TRUE(text.ok()) << text.status().message();
      EXPECT_EQ(*text, row["rendered"][i].get<std::string>()) << row["name"] << " chat " << i;
    }
  }
  EXPECT_EQ(golden["templates"].size(), 5u);
}

TEST(ChatTools, AnotherToolsPartIsNotTakenForAKnownOne) {
  const Json golden = Golden();
  for (const Json& row : golden["templates"]) {
    std::string jinja = row["template"];
    const size_t at = jinja.find("You may call one or more");
    jinja.replace(at, 7, "You can");
    const auto recognized = RecognizeTemplate(jinja, "</s>");
    ASSERT_TRUE(recognized.ok()) << row["name"];
    EXPECT_EQ(recognized->tools, ToolForm::kNone) << row["name"];
    const std::vector<ChatMessage> plain = {{"user", "a"}}, result = {{"user", "a"}, {"tool", "b"}};
    const std::vector<std::string> tools = {"{}"};
    EXPECT_TRUE(RenderChat(*recognized, plain).ok());
    EXPECT_EQ(RenderChat(*recognized, plain, tools).status().code(), ErrorCode::kUnsupported);
    EXPECT_EQ(RenderChat(*recognized, result).status().code(), ErrorCode::kUnsupported);
  }
}

TEST(ChatTools, QwenCoderHasThem) {
  const std::string path = test::ModelPath("qwen2.5-coder-0.5b.gguf");
  if (path.empty()) GTEST_SKIP() << "qwen2.5-coder-0.5b has not been fetched (scripts/fetch_models.sh)";
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto recognized = RecognizeTemplate(*(*file)->GetString("tokenizer.chat_template"), "<|im_end|>");
  ASSERT_TRUE(recognized.ok());
  EXPECT_EQ(recognized->tools, ToolForm::kQwen25);
}

}  // namespace
}  // namespace blockgtq
