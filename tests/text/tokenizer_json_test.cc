// tokenizer.json against Hugging Face's tokenizers running the same files
// (tests/data/text/make_tokenizers.py).
#include "src/text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "src/text/tokenizer_folder.h"
#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::HasSubstr;

std::string ReadText(const std::string& path_in_data) {
  std::ifstream file(std::string(BGTQ_TEST_DATA) + "/" + path_in_data);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Result<FolderTokenizer> Load(const std::string& json) {
  TokenizerTexts texts;
  texts.tokenizer = json;
  return TokenizerFromTexts(texts);
}

std::unique_ptr<Tokenizer> FromJson(const std::string& json) {
  auto result = Load(json);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::move(result->tokenizer) : nullptr;
}

std::string Shown(std::string_view bytes) {
  Utf8Stream stream;
  const std::string shown = stream.Push(bytes);
  return shown + stream.Finish();
}

const nlohmann::json& Golden() {
  static const nlohmann::json golden = test::ReadJson("text/tokenizers.json");
  return golden;
}

class Pipeline : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    tokenizer_ = FromJson(ReadText("text/tokenizers/" + GetParam() + ".json"));
    ASSERT_NE(tokenizer_, nullptr);
  }
  const nlohmann::json& golden() const { return Golden()["pipelines"][GetParam()]; }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(Pipeline, EncodesAndDecodesAsHuggingFaceDoes) {
  const auto& texts = Golden()["texts"];
  ASSERT_GE(texts.size(), 150u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    const auto& row = golden()["cases"][i];
    const auto special = row["special"].get<std::vector<Token>>();
    EXPECT_EQ(tokenizer_->Encode(text, true), special) << texts[i];
    EXPECT_EQ(tokenizer_->Encode(text, false), row.value("plain", special)) << texts[i];
    if (!row.contains("back")) continue;
    EXPECT_EQ(Shown(tokenizer_->Decode(special)), row["back"].get<std::string>()) << texts[i];
  }
}

TEST_P(Pipeline, DecodesTokensThatCutCharactersInTwo) {
  for (const auto& row : golden()["decoded"]) {
    const auto ids = row["ids"].get<std::vector<Token>>();
    EXPECT_EQ(Shown(tokenizer_->Decode(ids)), row["text"].get<std::string>()) << row["ids"];
    // The same one token at a time.
    Utf8Stream stream;
    std::string text;
    for (const Token id : ids) text += stream.Push(tokenizer_->Piece(id));
    EXPECT_EQ(text + stream.Finish(), row["text"].get<std::string>()) << row["ids"];
  }
}

TEST_P(Pipeline, EncodesALongText) {
  std::string text;
  for (int i = 0; i < Golden()["long_repeat"].get<int>(); ++i) text += Golden()["long"].get<std::string>();
  const auto ids = tokenizer_->Encode(text, true);
  uint64_t hash = 0;
  for (const Token id : ids) hash = hash * 1000003 + static_cast<uint64_t>(id) + 1;
  EXPECT_EQ(ids.size(), golden()["long"]["count"].get<size_t>());
  EXPECT_EQ(std::to_string(hash), golden()["long"]["hash"].get<std::string>());
}

TEST_P(Pipeline, StartsPromptsAsThePostProcessorSays) {
  const auto prefix = tokenizer_->prompt_prefix();
  EXPECT_EQ(std::vector<Token>(prefix.begin(), prefix.end()), golden()["prefix"].get<std::vector<Token>>());
  EXPECT_EQ(tokenizer_->add_bos(), prefix.size() == 1);
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, row] : Golden()["pipelines"].items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, Pipeline, testing::ValuesIn(Names()), [](const auto& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
});

TEST(TokenizerJson, GivesInvalidBytesBack) {
  for (const std::string name : {"llama3", "deepseek-v2", "gemma3", "mistral"}) {
    const auto tokenizer = FromJson(ReadText("text/tokenizers/" + name + ".json"));
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string text :
         {"\xFF\xFE", "a\xC3 b", "\xED\xA0\x80x\xF4\x90\x80\x80", "<|sp|>\x80<tool>\xE4\xBD"}) {
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, true)), text) << name;
    }
  }
}

// A small file of one kind, with a part replaced.
nlohmann::json Small(bool byte_level) {
  auto json = nlohmann::json::parse(
      ReadText(byte_level ? "text/tokenizers/llama3.json" : "text/tokenizers/gemma3.json"));
  return json;
}

struct Refusal {
  const char* name;
  const char* pointer;  // what is replaced
  std::string value;
  const char* message;
  ErrorCode code = ErrorCode::kUnsupported;
  bool byte_level = true;
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

/// A section of `count` equal steps.
std::string Sequence(const std::string& list, const std::string& step, int count) {
  std::string steps = step;
  for (int i = 1; i < count; ++i) steps += "," + step;
  return R"({"type":"Sequence",")" + list + R"(":[)" + steps + "]}";
}
std::string Prepend(size_t bytes) {
  return R"({"type":"Prepend","prepend":")" + std::string(bytes, 'a') + R"("})";
}

class RefusedJson : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedJson, NamesWhatIsWrong) {
  auto json = Small(GetParam().byte_level);
  json[nlohmann::json::json_pointer(GetParam().pointer)] = nlohmann::json::parse(GetParam().value);
  const std::string text = json.dump();
  const auto result = Load(text);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr(GetParam().message));
  EXPECT_EQ(result.status().code(), GetParam().code);
}

constexpr ErrorCode kCorrupt = ErrorCode::kCorruptFile;
INSTANTIATE_TEST_SUITE_P(
    , RefusedJson,
    testing::Values(
        Refusal{"Unigram", "/model/type", R"("Unigram")", "model.type \"Unigram\""},
        Refusal{"Dropout", "/model/dropout", "0.1", "model.dropout 0.1"},
        Refusal{"Suffix", "/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
        Refusal{"Normalizer", "/normalizer", R"({"type":"NFKC"})", "normalizer \"NFKC\""},
        Refusal{"NestedNormalizer", "/normalizer",
                R"({"type":"Sequence","normalizers":[{"type":"Lowercase"}]})", "normalizer \"Lowercase\""},
        Refusal{"ReplacePattern", "/normalizer",
                R"({"type":"Replace","pattern":{"Regex":"a"},"content":"b"})", "Replace"},
        Refusal{"Prepend", "/normalizer", Prepend(5000), "5000 bytes before the text"},
        Refusal{"Growth", "/normalizer",
                Sequence("normalizers", R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})", 40),
                "times as long"},
        Refusal{"GrowthByNfc", "/normalizer", Sequence("normalizers", R"({"type":"NFC"})", 4),
                "81 times as long"},
        Refusal{"Steps", "/pre_tokenizer",
                Sequence("pretokenizers", R"({"type":"Digits","individual_digits":true})", 65), "65 steps"},
        Refusal{"PreTokenizer", "/pre_tokenizer", R"({"type":"Whitespace"})", "pre-tokenizer \"Whitespace\""},
        Refusal{"Pattern", "/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(a+)+$")",
                "pattern \"(a+)+$\""},
        Refusal{"Intersection", "/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("[a-z&&b]+")",
                "[a-z&&b]+"},
        Refusal{"Behavior", "/pre_tokenizer/pretokenizers/0/behavior", R"("MergedWithNext")",
                "MergedWithNext"},
        Refusal{"AfterByteLevel", "/pre_tokenizer/pretokenizers/2", R"({"type":"Digits"})",
                "after ByteLevel"},
        Refusal{"Decoder", "/decoder", R"({"type":"WordPiece"})", "decoder \"WordPiece\""},
        Refusal{"NoDecoder", "/decoder", "null", "decoder"},
        Refusal{"ForeignDecoder", "/decoder", R"({"type":"ByteLevel"})", "decoder", ErrorCode::kUnsupported,
                false},
        Refusal{"PostProcessor", "/post_processor", R"({"type":"RobertaProcessing"})",
                "\"RobertaProcessing\""},
        Refusal{"TokenAfterText", "/post_processor/single/2",
                R"({"SpecialToken":{"id":"<|eot_id|>","type_id":0}})", "\"<|eot_id|>\" after the text"},
        Refusal{"LongPrefix", "/post_processor/special_tokens/<|begin_of_text|>/ids",
                "[5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,5]", "17 tokens before the text"},
        Refusal{"SingleWord", "/added_tokens/0/single_word", "true", "single_word"},
        Refusal{"NoModel", "/model", "null", "there is no model", kCorrupt},
        Refusal{"VocabList", "/model/vocab", "[]", "model.vocab", kCorrupt},
        Refusal{"IdText", "/model/vocab/a", R"("x")", "model.vocab[\"a\"]", kCorrupt},
        Refusal{"IdHuge", "/model/vocab/a", "4000000000", "the id 4000000000", kCorrupt},
        Refusal{"IdNegative", "/model/vocab/a", "-1", "the id -1", kCorrupt},
        Refusal{"IdTwice", "/model/vocab/a", "5", "the same id 5", kCorrupt},
        Refusal{"Merge", "/model/merges/0", R"(["a"])", "model.merges[0]", kCorrupt},
        Refusal{"MergeUnknown", "/model/merges/0", R"(["a","qqqq"])",
                "\"qqqq\", which is not in the vocabulary", kCorrupt},
        Refusal{"UnkUnknown", "/model/unk_token", R"("<none>")", "unk_token", kCorrupt},
        Refusal{"Flag", "/model/ignore_merges", "1", "ignore_merges", kCorrupt},
        Refusal{"AddedHuge", "/added_tokens/0/id", "99999999", "the id 99999999", kCorrupt},
        Refusal{"AddedClash", "/added_tokens/0/id", "3", "the same id 3", kCorrupt},
        Refusal{"TemplateIds", "/post_processor/special_tokens/<|begin_of_text|>/ids/0", "100000", "outside",
                kCorrupt}),
    [](const auto& info) { return info.param.name; });

TEST(TokenizerJson, RefusesWhatIsNoJson) {
  for (const std::string text : {"", "{", "[]", "null", "{\"model\": 1}"}) {
    const auto result = Load(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), ErrorCode::kCorruptFile);
  }
}

// Each id is within what the tokens before it allow; together they would fill any memory.
TEST(TokenizerJson, RefusesIdsThatGrowFromTokenToToken) {
  auto json = Small(true);
  json["added_tokens"] = nlohmann::json::array();
  int64_t id = 0;
  for (int i = 0; i < 12; ++i) {
    id = 2 * id + 1000;
    json["added_tokens"].push_back({{"id", id}, {"content", "<" + std::to_string(i) + ">"}});
  }
  const auto result = Load(json.dump());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::kCorruptFile);
  EXPECT_THAT(result.status().message(), HasSubstr("has the id"));
}

TEST(TokenizerJson, TakesTheLastOfTwoEqualMerges) {
  auto json = Small(true);
  const int a = json["model"]["vocab"]["a"], b = json["model"]["vocab"]["b"];
  json["model"]["ignore_merges"] = false;
  for (const char* token : {"ab", "bc", "abc"}) json["model"]["vocab"].erase(token);
  json["model"]["vocab"]["ab"] = 700;
  json["model"]["vocab"]["bc"] = 701;
  json["model"]["merges"] = nlohmann::json::parse(R"([["a","b"],["b","c"],["a","b"]])");
  const auto tokenizer = FromJson(json.dump());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->Encode("ab", false), std::vector<Token>{700});
  EXPECT_EQ(tokenizer->Encode("abc", false), (std::vector<Token>{a, 701}));
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace blockgtq
