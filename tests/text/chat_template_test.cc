// Recognition and rendering against jinja2 running the same templates (tests/data/text/make_chats.py).
#include "src/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/formats/gguf.h"
#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::HasSubstr;

const char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void ExpectRenders(const nlohmann::json& row, const std::string& jinja) {
  const auto golden = test::ReadJson("text/chats.json");
  const auto recognized = RecognizeTemplate(jinja, "</s>");
  ASSERT_TRUE(recognized.ok()) << row["name"] << ": " << recognized.status().message();
  ASSERT_EQ(golden["chats"].size(), row["rendered"].size());
  for (size_t i = 0; i < row["rendered"].size(); ++i) {
    std::vector<ChatMessage> messages;
    for (const auto& message : golden["chats"][i]) messages.push_back({message[0], message[1]});
    const auto text = RenderChat(*recognized, messages);
    if (row["rendered"][i].is_null()) {
      EXPECT_EQ(text.status().code(), ErrorCode::kInvalidArgument) << row["name"] << " chat " << i;
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(*text, row["rendered"][i].get<std::string>()) << row["name"] << " chat " << i;
  }
}

TEST(ChatTemplate, RendersKnownTemplatesAsJinja2Does) {
  int templates = 0;
  const auto golden = test::ReadJson("text/chats.json");
  for (const auto& row : golden["templates"]) {
    if (!row.contains("template")) continue;
    ++templates;
    ExpectRenders(row, row["template"]);
  }
  EXPECT_GE(templates, 27);
}

TEST(ChatTemplate, RendersTheModelsOwnTemplatesAsJinja2Does) {
  int models = 0;
  const auto golden = test::ReadJson("text/chats.json");
  for (const auto& row : golden["templates"]) {
    if (!row.contains("model_file")) continue;
    const std::string path = test::ModelPath(row["model_file"]);
    if (path.empty()) continue;
    ++models;
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto jinja = (*file)->GetString("tokenizer.chat_template");
    ASSERT_TRUE(jinja.ok()) << jinja.status().message();
    ExpectRenders(row, std::string(*jinja));
  }
  if (models == 0) GTEST_SKIP() << "none of the models is installed (set BGTQ_MODELS to their folder)";
}

TEST(ChatTemplate, TakesTheDefaultSystemMessageFromTheTemplate) {
  const auto recognized = RecognizeTemplate(
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
      "'<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
      "'<|im_start|>assistant\n' }}{% endif %}",
      "");
  ASSERT_TRUE(recognized.ok()) << recognized.status().message();
  EXPECT_EQ(recognized->kind, ChatTemplate::kChatMl);
  EXPECT_EQ(recognized->default_system, "Be kind.");
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ChatTemplate, RefusesWhateverWouldRenderDifferently) {
  ASSERT_TRUE(RecognizeTemplate(kChatMl, "").ok());
  const std::vector<std::string> others = {
      "",
      "{{ messages }}",
      "plain text",
      "{% for",
      "{{ 'unterminated",
      std::string(kChatMl) + "{{ 'more' }}",
      std::string(kChatMl) + "more",
      "more" + std::string(kChatMl),
      Replaced(kChatMl, "'<|im_end|>'", "'<|end|>'"),
      Replaced(kChatMl, "message['content']", "message['content'] | trim"),
      Replaced(kChatMl, "{% endfor %}", "{{ eos_token }}{% endfor %}"),
      Replaced(kChatMl, "}}{% endfor", "}}\n{% endfor"),  // the newline would be output
      Replaced(kChatMl, "assistant\\n'", "assistant\\n<think>\\n'"),
  };
  for (const auto& jinja : others) {
    const auto recognized = RecognizeTemplate(jinja, "</s>");
    ASSERT_FALSE(recognized.ok()) << jinja;
    EXPECT_EQ(recognized.status().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(recognized.status().message(), HasSubstr("--no-chat"));
  }
}

// What joins strings is linear in their number: this takes no time.
TEST(ChatTemplate, JoinsAsManyStringsAsAHostileTemplateHas) {
  std::string many = "'a'";
  for (int i = 0; i < 100000; ++i) many += " + 'a'";
  ASSERT_TRUE(RecognizeTemplate(Replaced(kChatMl, "'<|im_end|>'", "'<|im_' + 'end' + '|' + '>'"), "").ok());
  EXPECT_FALSE(RecognizeTemplate("{{ " + many + " }}", "").ok());
}

TEST(ChatTemplate, RefusesChangedTemplatesOfEveryFamily) {
  const auto golden = test::ReadJson("text/chats.json");
  for (const auto& row : golden["templates"]) {
    if (!row.contains("template")) continue;
    const std::string jinja = row["template"];
    EXPECT_FALSE(RecognizeTemplate(jinja + "{{ 'more' }}", "</s>").ok()) << row["name"];
    EXPECT_FALSE(RecognizeTemplate("{{ 'more' }}" + jinja, "</s>").ok()) << row["name"];
    EXPECT_FALSE(RecognizeTemplate(Replaced(jinja, "assistant", "helper"), "</s>").ok()) << row["name"];
  }
}

TEST(ChatTemplate, NeedsTheEndTokenThatATemplateWrites) {
  const auto golden = test::ReadJson("text/chats.json");
  for (const auto& row : golden["templates"]) {
    if (row["name"] != "mistral nemo" && row["name"] != "olmo2") continue;
    const auto recognized = RecognizeTemplate(row["template"].get<std::string>(), "");
    ASSERT_FALSE(recognized.ok());
    EXPECT_THAT(recognized.status().message(), HasSubstr("eos_token"));
  }
}

TEST(ChatTemplate, KnowsWhichTemplatesPutBosFirst) {
  const auto golden = test::ReadJson("text/chats.json");
  for (const auto& row : golden["templates"]) {
    if (!row.contains("template")) continue;
    const std::string jinja = row["template"];
    const auto recognized = RecognizeTemplate(jinja, "</s>");
    ASSERT_TRUE(recognized.ok()) << row["name"];
    EXPECT_EQ(BeginsWithBos(*recognized), jinja.find("bos_token") != std::string::npos) << row["name"];
  }
}

TEST(ChatTemplate, ContinuesAChatAsTheWholeChatIsRendered) {
  const auto golden = test::ReadJson("text/chats.json");
  for (const auto& row : golden["templates"]) {
    if (!row.contains("template")) continue;
    const auto recognized = RecognizeTemplate(row["template"].get<std::string>(), "</s>");
    ASSERT_TRUE(recognized.ok()) << row["name"];
    const std::vector<ChatMessage> chat = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
    const auto whole = RenderChat(*recognized, chat);
    const auto turn = RenderNextTurn(*recognized, "c");
    ASSERT_TRUE(whole.ok() && turn.ok()) << row["name"];
    EXPECT_TRUE(whole->ends_with("b" + *turn)) << row["name"];
  }
}

TEST(ChatTemplate, RefusesUnknownRolesAndEmptyChats) {
  const auto recognized = RecognizeTemplate(kChatMl, "");
  ASSERT_TRUE(recognized.ok());
  const std::vector<ChatMessage> robot = {{"user", "a"}, {"robot", "b"}};
  const auto refused = RenderChat(*recognized, robot);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("messages[1].role is \"robot\""));
  EXPECT_EQ(RenderChat(*recognized, {}).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockgtq
