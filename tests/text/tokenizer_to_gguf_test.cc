// Tokenizers of tokenizer.json written as GGUF and read back make the ids that they made.
#include "src/text/tokenizer_to_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "src/text/tokenizer_folder.h"
#include "tests/formats/files.h"
#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// tests/data/text/tokenizers/NAME.json without the added tokens that take spaces along.
nlohmann::json JsonOf(const std::string& name) {
  nlohmann::json json = test::ReadJson("text/tokenizers/" + name + ".json");
  nlohmann::json kept = nlohmann::json::array();
  for (const auto& token : json["added_tokens"]) {
    if (!token["lstrip"] && !token["rstrip"]) kept.push_back(token);
  }
  json["added_tokens"] = kept;
  return json;
}

int32_t IdOf(const nlohmann::json& tokenizer, const std::string& text) {
  for (const auto& token : tokenizer["added_tokens"]) {
    if (token["content"] == text) return token["id"];
  }
  return -1;
}

Result<FolderTokenizerParts> Parts(const nlohmann::json& tokenizer, const std::string& config = "",
                                   const std::string& generation = "") {
  return TokenizerPartsFromTexts({tokenizer.dump(), config, generation, ""});
}

/// A file with the tokenizer alone.
class ToGguf : public testing::Test {
 protected:
  Result<GgufTokenizer> Write(const Result<FolderTokenizerParts>& read, int64_t tokens = 1000,
                              std::string_view preferred = "") {
    EXPECT_TRUE(read.ok()) << read.status().message();
    auto made = TokenizerToGguf(read->parts, read->chat_template, tokens, preferred);
    if (!made.ok()) return made;
    const Status written = WriteGguf(folder_.File("t.gguf"), made->metadata, {}, {});
    EXPECT_TRUE(written.ok()) << written.message();
    auto file = GgufFile::Open(folder_.File("t.gguf"));
    EXPECT_TRUE(file.ok()) << file.status().message();
    file_ = std::move(file).value();
    auto tokenizer = Tokenizer::FromGguf(*file_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = std::move(tokenizer).value();
    return made;
  }
  TemporaryFolder folder_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

class ToGgufOf : public ToGguf, public testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(ToGgufOf, MakesTheSameIds) {
  const auto& [name, pre] = GetParam();
  const nlohmann::json json = JsonOf(name);
  const auto made = Write(Parts(json));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(*file_->GetString("tokenizer.ggml.pre"), pre);
  const auto before = Tokenizer::FromParts(std::move(Parts(json)->parts));
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(tokenizer_->vocab_size(), 1000);
  const bool normalises =
      !json["normalizer"].is_null() &&
      json["normalizer"] != nlohmann::json{{"type", "Sequence"}, {"normalizers", nlohmann::json::array()}};
  int compared = 0;
  const nlohmann::json golden = test::ReadJson("text/tokenizers.json");
  for (const std::string text : golden["texts"]) {
    for (const bool special : {false, true}) {
      const std::vector<Token> wanted = (*before)->Encode(text, special);
      if (normalises && (*before)->Decode(wanted) != text) continue;  // not in the form that it normalises to
      // Contractions of letters outside ASCII: llama.cpp's patterns, which GGUF names, do not fold them.
      if (text.find("\u017f") != std::string::npos) continue;
      EXPECT_EQ(tokenizer_->Encode(text, special), wanted) << text;
      EXPECT_EQ(tokenizer_->Decode(wanted), (*before)->Decode(wanted)) << text;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

INSTANTIATE_TEST_SUITE_P(Pipelines, ToGgufOf,
                         testing::Values(std::pair{"llama3", "llama-bpe"}, std::pair{"qwen2", "qwen2"},
                                         std::pair{"smollm", "smollm"}, std::pair{"glm4", "glm4"},
                                         std::pair{"olmo2", "glm4"}, std::pair{"mistral-nemo", "tekken"},
                                         std::pair{"deepseek-v2", "deepseek-llm"},
                                         std::pair{"deepseek-coder", "deepseek-coder"},
                                         std::pair{"deepseek-v3", "deepseek-v3"},
                                         std::pair{"gpt-4o", "gpt-4o"}),
                         [](const auto& info) {
                           std::string name = info.param.first;
                           std::erase(name, '-');
                           return name;
                         });

TEST_F(ToGguf, KeepsSpecialTokensFlagsAndTemplate) {
  const nlohmann::json json = JsonOf("llama3");
  const int32_t bos = IdOf(json, "<|begin_of_text|>"), eot = IdOf(json, "<|eot_id|>"),
                sp = IdOf(json, "<|sp|>");
  const auto made = Write(
      Parts(json, R"({"bos_token":"<|begin_of_text|>","eos_token":"<|eot_id|>","chat_template":"{{ x }}"})",
            nlohmann::json{{"eos_token_id", {eot, sp}}}.dump()));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_THAT(made->differences, IsEmpty());
  EXPECT_EQ(tokenizer_->bos(), bos);
  EXPECT_EQ(tokenizer_->eos(), eot);
  EXPECT_THAT(std::vector<Token>(tokenizer_->prompt_prefix().begin(), tokenizer_->prompt_prefix().end()),
              ElementsAre(bos));
  EXPECT_TRUE(tokenizer_->IsEndOfGeneration(eot));
  EXPECT_TRUE(tokenizer_->IsEndOfGeneration(sp));
  EXPECT_TRUE(tokenizer_->IsControl(sp));
  EXPECT_FALSE(tokenizer_->IsControl(IdOf(json, "<tool>")));
  EXPECT_EQ(*file_->GetString("tokenizer.chat_template"), "{{ x }}");
  EXPECT_THAT(tokenizer_->Piece(999), IsEmpty());
}

TEST_F(ToGguf, TakesThePreferredNameOfSeveral) {
  ASSERT_TRUE(Write(Parts(JsonOf("olmo2")), 1000, "dbrx").ok());
  EXPECT_EQ(*file_->GetString("tokenizer.ggml.pre"), "dbrx");
  ASSERT_TRUE(Write(Parts(JsonOf("qwen2")), 1000, "dbrx").ok());
  EXPECT_EQ(*file_->GetString("tokenizer.ggml.pre"), "qwen2");
}

TEST_F(ToGguf, SaysWhatIsLost) {
  const auto glm = Write(Parts(JsonOf("glm4")));
  ASSERT_TRUE(glm.ok());
  EXPECT_THAT(glm->differences, ElementsAre(HasSubstr("[gMASK]<sop>")));
  EXPECT_FALSE(tokenizer_->add_bos());
  const auto qwen = Write(Parts(test::ReadJson("text/tokenizers/qwen2.json")));
  ASSERT_TRUE(qwen.ok());
  EXPECT_THAT(qwen->differences, ElementsAre(HasSubstr("normalised"), HasSubstr("<|right|>, <|left|>")));
}

TEST_F(ToGguf, RefusesByNameWhatNoFileCanSay) {
  const auto refused = [&](const nlohmann::json& json, const char* naming, int64_t tokens = 1000) {
    const auto made = Write(Parts(json), tokens);
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.status().message(), HasSubstr(naming));
  };
  refused(JsonOf("mistral"), "SentencePiece");
  refused(JsonOf("gemma3"), "SentencePiece");
  refused(JsonOf("gpt2-prefix"), "pre-tokenizer");
  refused(JsonOf("qwen2"), "the embedding table 100", 100);
  // A token that the merges do not make: ignore_merges decides, and "qwen2" has it off.
  nlohmann::json json = JsonOf("qwen2");
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["qqqq"] = 900;
  refused(json, "ignore_merges");
}

}  // namespace
}  // namespace blockgtq
