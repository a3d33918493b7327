// A model's folder: what tokenizer_config.json, generation_config.json, config.json and chat_template.jinja
// add to tokenizer.json.
#include "src/text/tokenizer_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Json(const std::string& name) {
  std::ifstream file(std::string(BGTQ_TEST_DATA) + "/text/tokenizers/" + name + ".json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Result<FolderTokenizer> Load(const std::string& name, const std::string& config,
                             const std::string& generation = "", const std::string& jinja = "") {
  const std::string json = Json(name);
  return TokenizerFromTexts({json, config, generation, jinja});
}

std::vector<Token> Prefix(const Result<FolderTokenizer>& loaded) {
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  if (!loaded.ok()) return {-1};
  const auto prefix = loaded->tokenizer->prompt_prefix();
  return {prefix.begin(), prefix.end()};
}

Token IdOf(const std::string& name, const std::string& text) {
  const auto json = nlohmann::json::parse(Json(name));
  for (const auto& token : json["added_tokens"]) {
    if (token["content"] == text) return token["id"];
  }
  return -1;
}

TEST(TokenizerFolder, ReadsBosAndEosAsTextOrAsObject) {
  const auto loaded =
      Load("llama3", R"({"bos_token":"<|begin_of_text|>","eos_token":{"content":"<|eot_id|>"}})");
  EXPECT_THAT(Prefix(loaded), ElementsAre(IdOf("llama3", "<|begin_of_text|>")));
  EXPECT_EQ(loaded->tokenizer->bos(), IdOf("llama3", "<|begin_of_text|>"));
  EXPECT_EQ(loaded->tokenizer->eos(), IdOf("llama3", "<|eot_id|>"));
  EXPECT_TRUE(loaded->tokenizer->add_bos());
  EXPECT_TRUE(loaded->tokenizer->IsEndOfGeneration(loaded->tokenizer->eos()));
  EXPECT_FALSE(loaded->chat_template.has_value());
}

TEST(TokenizerFolder, AddsBosAsTransformersDoes) {
  const std::string bos = "\"bos_token\":\"<\uff5cbegin\u2581of\u2581sentence\uff5c>\"";
  const Token id = IdOf("deepseek-v2", "<\uff5cbegin\u2581of\u2581sentence\uff5c>");
  ASSERT_GE(id, 0);
  // The classes of Llama follow add_bos_token, true when absent; others the post-processor, which has none
  // here.
  const std::string llama = R"(,"tokenizer_class":"LlamaTokenizerFast")";
  EXPECT_THAT(Prefix(Load("deepseek-v2", "{" + bos + llama + "}")), ElementsAre(id));
  EXPECT_THAT(Prefix(Load("deepseek-v2", "{" + bos + llama + R"(,"add_bos_token":false})")), IsEmpty());
  EXPECT_THAT(
      Prefix(Load("deepseek-v2", "{" + bos + R"(,"add_bos_token":true,"tokenizer_class":"Qwen2Tokenizer"})")),
      IsEmpty());
  EXPECT_THAT(
      Prefix(Load("llama3", R"({"add_bos_token":false,"tokenizer_class":"PreTrainedTokenizerFast"})")),
      ElementsAre(IdOf("llama3", "<|begin_of_text|>")));
}

TEST(TokenizerFolder, KeepsAPrefixOfTwoTokensApartFromBos) {
  const auto loaded = Load("glm4", R"({"eos_token":"<|endoftext|>"})",
                           R"({"eos_token_id":[)" + std::to_string(IdOf("glm4", "<|user|>")) + "]}");
  EXPECT_THAT(Prefix(loaded), ElementsAre(IdOf("glm4", "[gMASK]"), IdOf("glm4", "<sop>")));
  EXPECT_FALSE(loaded->tokenizer->add_bos());
  EXPECT_TRUE(loaded->tokenizer->IsEndOfGeneration(IdOf("glm4", "<|user|>")));
  EXPECT_TRUE(loaded->tokenizer->IsEndOfGeneration(IdOf("glm4", "<|endoftext|>")));
  EXPECT_FALSE(loaded->tokenizer->IsEndOfGeneration(IdOf("glm4", "<sop>")));
}

TEST(TokenizerFolder, EndsGenerationAtNamesOnlyWhereTheyAreAddedTokens) {
  auto json = nlohmann::json::parse(Json("qwen2"));
  json["model"]["vocab"]["</s>"] = 900;
  const std::string text = json.dump();
  const auto loaded = TokenizerFromTexts({text, "", "", ""});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_FALSE(loaded->tokenizer->IsEndOfGeneration(900));
  EXPECT_FALSE(loaded->tokenizer->IsControl(900));
  EXPECT_TRUE(loaded->tokenizer->IsEndOfGeneration(IdOf("qwen2", "<|im_end|>")));
}

TEST(TokenizerFolder, EndsGenerationAtTheIdsOfGenerationConfigElseOfConfig) {
  const std::string json = Json("llama3");
  const auto ends = [&](std::string_view generation, std::string_view model, Token token) {
    const auto loaded = TokenizerFromTexts({json, "", generation, "", model});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded.ok() && loaded->tokenizer->IsEndOfGeneration(token);
  };
  EXPECT_TRUE(ends("", R"({"eos_token_id":[7,9]})", 9));
  EXPECT_TRUE(ends("{}", R"({"eos_token_id":7})", 7));
  EXPECT_FALSE(ends(R"({"eos_token_id":5})", R"({"eos_token_id":7})", 7));
  EXPECT_FALSE(ends(R"({"eos_token_id":5})", R"({"eos_token_id":"not read"})", 7));
  const auto wrong = TokenizerFromTexts({json, "", "", "", R"({"eos_token_id":-1})"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.status().message(), HasSubstr("config.json: eos_token_id -1 is not in the vocabulary"));
}

TEST(TokenizerFolder, AddedTokensDecoderWinsOverTokenizerJson) {
  const Token right = IdOf("qwen2", "<|right|>");
  const std::string entry =
      R"("lstrip":false,"normalized":false,"rstrip":false,"single_word":false,"special":true}})";
  const auto loaded = Load("qwen2", R"({"added_tokens_decoder":{")" + std::to_string(right) +
                                        R"(":{"content":"<|right|>",)" + entry + "}");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto with_space = loaded->tokenizer->Encode("<|right|> a", true);
  ASSERT_GE(with_space.size(), 2u);
  EXPECT_EQ(loaded->tokenizer->Decode(with_space), "<|right|> a");
  // A new one.
  const auto more = Load("qwen2", R"({"added_tokens_decoder":{"500":{"content":"<|new|>",)" + entry + "}");
  ASSERT_TRUE(more.ok()) << more.status().message();
  EXPECT_THAT(more->tokenizer->Encode("<|new|>", true), ElementsAre(500));
  EXPECT_EQ(more->tokenizer->vocab_size(), 501);
}

TEST(TokenizerFolder, TakesTheChatTemplateFromTheFileElseTheConfiguration) {
  EXPECT_EQ(Load("qwen2", R"({"chat_template":"A"})")->chat_template, "A");
  EXPECT_EQ(Load("qwen2", R"({"chat_template":"A"})", "", "B")->chat_template, "B");
  EXPECT_EQ(
      Load("qwen2",
           R"({"chat_template":[{"name":"tool_use","template":"T"},{"name":"default","template":"D"}]})")
          ->chat_template,
      "D");
}

TEST(TokenizerFolder, RefusesWhatContradictsTheVocabulary) {
  const struct {
    const char *config, *generation, *message;
  } kCases[] = {
      {"[", "", "tokenizer_config.json"},
      {"[]", "", "tokenizer_config.json"},
      {R"({"bos_token":"<none>"})", "", "bos_token \"<none>\""},
      {R"({"eos_token":3})", "", "eos_token"},
      {R"({"add_bos_token":1})", "", "add_bos_token"},
      {R"({"add_eos_token":true})", "", "add_eos_token"},
      {R"({"tokenizer_class":"LlamaTokenizer"})", "", "without a bos_token"},
      {R"({"chat_template":[{"name":"rag","template":"x"}]})", "", "default"},
      {R"({"chat_template":7})", "", "chat_template"},
      {R"({"added_tokens_decoder":{"x":{"content":"a"}}})", "", "added_tokens_decoder[\"x\"]"},
      {R"({"added_tokens_decoder":{"99999999":{"content":"<|n|>"}}})", "", "the id 99999999"},
      {R"({"added_tokens_decoder":{"3":{"content":"<|n|>"}}})", "", "the same id 3"},
      {"", R"({"eos_token_id":100000})", "eos_token_id 100000"},
      {"", R"({"eos_token_id":[-1]})", "eos_token_id -1"},
      {"", R"({"eos_token_id":"x"})", "eos_token_id"},
  };
  for (const auto& c : kCases) {
    const auto loaded = Load("qwen2", c.config, c.generation);
    ASSERT_FALSE(loaded.ok()) << c.config << c.generation;
    EXPECT_THAT(loaded.status().message(), HasSubstr(c.message));
  }
}

TEST(TokenizerFolder, OpensAFolderAndNamesAMissingFile) {
  const std::filesystem::path folder = testing::TempDir() + "/bgtq_tokenizer_folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto missing = LoadTokenizerFolder(folder.string());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("tokenizer.json"));
  std::ofstream(folder / "tokenizer.json") << Json("gemma3");
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token":"<s>","eos_token":"</s>"})";
  std::ofstream(folder / "chat_template.jinja") << "{{ x }}";
  const auto loaded = LoadTokenizerFolder(folder.string());
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->tokenizer->Decode(loaded->tokenizer->Encode(" The quick", false)), " The quick");
  EXPECT_EQ(loaded->tokenizer->add_bos(), true);
  EXPECT_EQ(loaded->chat_template, "{{ x }}");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace blockgtq
