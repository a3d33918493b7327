// Pre-tokenizers against hand-derived pieces and against two other engines running the published patterns
// (tests/data/text/make_pieces.py).
#include "src/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Pieces(const std::string& pre, const std::string& text) {
  auto pre_tokenizer = PreTokenizer::Create(pre);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status().message();
  PreTokenizer::Splitter splitter(**pre_tokenizer);
  const auto& views = splitter.Split(text, true);
  const std::vector<std::string> pieces(views.begin(), views.end());
  std::string joined;
  for (const std::string& piece : pieces) joined += piece;
  EXPECT_EQ(joined, text);
  return pieces;
}

TEST(PreTokenizer, Gpt2KeepsRunsOfDigitsAndTheSpaceBeforeAWord) {
  EXPECT_THAT(Pieces("gpt-2", "It's  12345 o'clock\n\n x"),
              ElementsAre("It", "'s", " ", " 12345", " o", "'", "clock", "\n\n", " x"));
  EXPECT_THAT(Pieces("gpt-2", "I'M"), ElementsAre("I", "'", "M"));
}

TEST(PreTokenizer, LlamaBpeCutsDigitsInThreesAndJoinsPunctuationToWordsAndNewlines) {
  EXPECT_THAT(Pieces("llama-bpe", "x=1234567, (foo)\n\n  y"),
              ElementsAre("x", "=", "123", "456", "7", ",", " (", "foo", ")\n\n", " ", " y"));
  EXPECT_THAT(Pieces("llama-bpe", "WE'LL \r\n go"), ElementsAre("WE", "'LL", " \r\n", " go"));
}

TEST(PreTokenizer, Qwen2CutsEveryDigit) {
  EXPECT_THAT(Pieces("qwen2", "a12 .b"), ElementsAre("a", "1", "2", " .", "b"));
}

TEST(PreTokenizer, SmolLmCutsDigitsBeforeAnythingElse) {
  // The space before a digit is a piece of its own: a digit ends the text that the second pattern sees.
  EXPECT_THAT(Pieces("smollm", "a  12 b"), ElementsAre("a", "  ", "1", "2", " b"));
}

TEST(PreTokenizer, CutsEveryTextAsTwoOtherEnginesDo) {
  const auto golden = test::ReadJson("text/pre_tokenizer_pieces.json");
  ASSERT_GT(golden["cases"].size(), 400u);
  for (const std::string pre : {"smollm", "qwen2", "llama-bpe", "gpt-2", "tekken", "gpt-4o", "deepseek-llm",
                                "deepseek-coder", "deepseek-v3"}) {
    for (const auto& c : golden["cases"]) {
      std::vector<size_t> sizes;
      for (const auto& piece : Pieces(pre, c["text"])) sizes.push_back(piece.size());
      EXPECT_EQ(sizes, c[pre].get<std::vector<size_t>>()) << pre << ": " << c["text"];
    }
  }
}

TEST(PreTokenizer, IsLinearInRunsOfSpaces) {
  // Two pieces a round; a matcher that gave up would return the rest as one.
  const std::string spaces(1 << 20, ' ');
  for (const std::string pre : {"smollm", "qwen2", "llama-bpe", "gpt-2"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto pieces = Pieces(pre, spaces + "x" + spaces + "\n" + spaces);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10) << pre;
    ASSERT_GE(pieces.size(), 3u) << pre;
    EXPECT_EQ(pieces[0], spaces.substr(1)) << pre;
    EXPECT_EQ(pieces[1], " x") << pre;
  }
}

TEST(PreTokenizer, IsLinearWhereARunOfSpacesEndsBeforeNoLineEnd) {
  // DeepSeek's "\\s+$" fails on such a run, from each of its spaces if it were tried there.
  const std::string spaces(1 << 20, ' ');
  for (const std::string pre : {"deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto pieces = Pieces(pre, spaces + "\xE4\xB8\xAD" + std::string(1 << 18, 'A') + spaces);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10) << pre;
    EXPECT_GE(pieces.size(), 3u) << pre;
  }
}

TEST(PreTokenizer, NamesTheKnownOnesWhenAskedForAnother) {
  const auto result = PreTokenizer::Create("bloom");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(result.status().message(), HasSubstr("\"bloom\""));
  EXPECT_THAT(result.status().message(),
              HasSubstr("smollm, qwen2, deepseek-r1-qwen, llama-bpe, gpt-2, tekken"));
}

}  // namespace
}  // namespace blockgtq
