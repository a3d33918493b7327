// SentencePiece vocabularies in GGUF files against sentencepiece (tests/data/text/make_tokenizers.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "src/formats/gguf.h"
#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Tokenizer> Trained() {
  const auto file = GgufFile::Open(std::string(BGTQ_TEST_DATA) + "/text/spm.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  auto tokenizer = Tokenizer::FromGguf(**file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(tokenizer).value();
}

TEST(SentencePiece, EncodesAndDecodesAsSentencepieceDoes) {
  const auto golden = test::ReadJson("text/spm.json");
  const auto tokenizer = Trained();
  ASSERT_GE(golden["cases"].size(), 90u);
  for (const auto& row : golden["cases"]) {
    const auto ids = tokenizer->Encode(row["text"].get<std::string>(), false);
    EXPECT_EQ(ids, row["ids"].get<std::vector<Token>>()) << row["text"];
    EXPECT_EQ(tokenizer->Decode(ids), row["back"].get<std::string>()) << row["text"];
  }
  std::string text;
  for (int i = 0; i < golden["long"]["repeat"].get<int>(); ++i)
    text += golden["long"]["text"].get<std::string>();
  uint64_t hash = 0;
  const auto ids = tokenizer->Encode(text, false);
  for (const Token id : ids) hash = hash * 1000003 + static_cast<uint64_t>(id) + 1;
  EXPECT_EQ(ids.size(), golden["long"]["count"].get<size_t>());
  EXPECT_EQ(std::to_string(hash), golden["long"]["hash"].get<std::string>());
}

TEST(SentencePiece, PutsASpaceBeforeEveryTextBetweenSpecialTokens) {
  const auto tokenizer = Trained();
  const auto the = tokenizer->Encode("The", false);
  const auto both = tokenizer->Encode("<s>The<tool>The", true);
  std::vector<Token> expected = {tokenizer->bos()};
  expected.insert(expected.end(), the.begin(), the.end());
  expected.push_back(tokenizer->Encode("<tool>", false).at(0));
  expected.insert(expected.end(), the.begin(), the.end());
  EXPECT_EQ(both, expected);
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(tokenizer->eos()));
}

TEST(SentencePiece, StreamsCharactersThatAreBytes) {
  const auto tokenizer = Trained();
  const std::string text = "x\xF0\x9F\xA6\x99y";  // a character outside the vocabulary
  const auto ids = tokenizer->Encode(text, false);
  EXPECT_GE(ids.size(), 6u);
  Utf8Stream stream;
  std::string shown;
  for (const Token id : ids) {
    const std::string now = stream.Push(tokenizer->Piece(id));
    EXPECT_EQ(now.find("\xEF\xBF\xBD"), std::string::npos);
    shown += now;
  }
  EXPECT_EQ(shown + stream.Finish(), " " + text);
}

TEST(SentencePiece, GivesInvalidBytesBack) {
  const auto tokenizer = Trained();
  for (const std::string text : {"\xFF", "a\xC3 b\xED\xA0\x80", "\xE4\xBD"}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, true)), text);
  }
}

struct ScoredVocab {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int64_t> types = {2, 3, 3};
  std::vector<double> scores = {0, 0, 0};
  std::vector<std::string_view> views;
  Token Add(const std::string& text, double score, int64_t type = 1) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<Token>(tokens.size()) - 1;
  }
  TokenizerVocab View() {
    views.assign(tokens.begin(), tokens.end());
    TokenizerVocab vocab;
    vocab.text = TokenText::kMetaspace;
    vocab.model = TokenModel::kScores;
    vocab.tokens = views;
    vocab.types = types;
    vocab.scores = scores;
    vocab.unk = 0;
    vocab.add_space_prefix = false;
    return vocab;
  }
};

std::vector<Token> BruteForce(const ScoredVocab& vocab, const std::string& text) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  const auto find = [&](const std::string& symbol) {
    return static_cast<size_t>(std::find(vocab.tokens.begin(), vocab.tokens.end(), symbol) -
                               vocab.tokens.begin());
  };
  for (;;) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const size_t token = find(symbols[i] + symbols[i + 1]);
      if (token == vocab.tokens.size()) continue;
      if (best == symbols.size() ||
          vocab.scores[token] > vocab.scores[find(symbols[best] + symbols[best + 1])])
        best = i;
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<long>(best) + 1);
  }
  std::vector<Token> ids;
  for (const std::string& symbol : symbols) {
    ids.push_back(find(symbol) == vocab.tokens.size() ? 0 : static_cast<Token>(find(symbol)));
  }
  return ids;
}

TEST(SentencePiece, JoinsAsTheBruteForceDoesOnRandomVocabularies) {
  std::mt19937 rng(4);
  for (int round = 0; round < 60; ++round) {
    ScoredVocab vocab;
    std::vector<std::string> parts = {"a", "b", "c"};  // "c" is no token: it can still become part of one
    vocab.Add("a", -100);
    vocab.Add("b", -101);
    for (int m = 0; m < 14; ++m) {
      const std::string joined = parts[rng() % parts.size()] + parts[rng() % parts.size()];
      if (std::count(parts.begin(), parts.end(), joined) != 0) continue;
      parts.push_back(joined);
      vocab.Add(joined, -static_cast<double>(rng() % 9));
    }
    const auto tokenizer = Tokenizer::FromVocab(vocab.View());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (int t = 0; t < 20; ++t) {
      std::string text;
      for (size_t n = rng() % 40; n > 0; --n) text.push_back(static_cast<char>('a' + rng() % 3));
      EXPECT_EQ((*tokenizer)->Encode(text, false), BruteForce(vocab, text)) << round << ": " << text;
    }
  }
}

TEST(SentencePiece, NeverMakesAControlTokenFromPlainText) {
  ScoredVocab vocab;
  for (const char* part : {"<", "s", ">", "<s"}) vocab.Add(part, -1);
  const auto tokenizer = Tokenizer::FromVocab(vocab.View());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT((*tokenizer)->Encode("<s>", false), ElementsAre(6, 5));
  EXPECT_THAT((*tokenizer)->Encode("<s>", true), ElementsAre(1));
}

TEST(SentencePiece, EncodesALongRunInSeconds) {
  const auto tokenizer = Trained();
  const std::string text(1 << 20, 'a');
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, false)), text);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
}

TEST(SentencePiece, RefusesScoresThatDoNotFit) {
  ScoredVocab vocab;
  vocab.Add("a", -1);
  TokenizerVocab view = vocab.View();
  view.scores = view.scores.first(2);
  const auto fewer = Tokenizer::FromVocab(view);
  ASSERT_FALSE(fewer.ok());
  EXPECT_THAT(fewer.status().message(), HasSubstr("scores has 2 entries for 4 tokens"));
  vocab.scores[3] = std::numeric_limits<double>::quiet_NaN();
  const auto not_a_number = Tokenizer::FromVocab(vocab.View());
  ASSERT_FALSE(not_a_number.ok());
  EXPECT_THAT(not_a_number.status().message(), HasSubstr("scores[3]"));
}

}  // namespace
}  // namespace blockgtq
