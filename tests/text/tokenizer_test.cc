// Encoding with small vocabularies: merges against a brute force, special tokens, invalid bytes, threads.
#include "src/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::unique_ptr<Tokenizer> Make(test::SmallVocab& vocab) {
  auto result = Tokenizer::FromVocab(vocab.View());
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

// Merges the leftmost pair of lowest rank until none is left, on strings.
std::vector<Token> BruteForce(const test::SmallVocab& vocab, const std::string& piece) {
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.push_back(ByteToAlphabet(static_cast<uint8_t>(c)));
  for (;;) {
    size_t best_rank = vocab.merges.size(), best_at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found =
          std::find(vocab.merges.begin(), vocab.merges.end(), symbols[i] + " " + symbols[i + 1]);
      const size_t rank = static_cast<size_t>(found - vocab.merges.begin());
      if (rank < best_rank) best_rank = rank, best_at = i;
    }
    if (best_rank == vocab.merges.size()) break;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + best_at + 1);
  }
  std::vector<Token> ids;
  for (const std::string& s : symbols) {
    ids.push_back(
        static_cast<Token>(std::find(vocab.tokens.begin(), vocab.tokens.end(), s) - vocab.tokens.begin()));
  }
  return ids;
}

TEST(Bpe, MergesAsTheBruteForceDoesOnRandomVocabularies) {
  std::mt19937 rng(3);
  for (int round = 0; round < 60; ++round) {
    test::SmallVocab vocab;
    std::vector<std::string> parts = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    for (int m = 0; m < 14; ++m) {
      const std::string left = parts[rng() % parts.size()], right = parts[rng() % parts.size()];
      if (std::count(parts.begin(), parts.end(), left + right) != 0) continue;
      parts.push_back(left + right);
      merges.emplace_back(left, right);
    }
    // In any order: a merge may come before those that make its parts.
    std::shuffle(merges.begin(), merges.end(), rng);
    for (const auto& [left, right] : merges) vocab.Merge(left, right);
    const auto tokenizer = Make(vocab);
    for (int t = 0; t < 20; ++t) {
      std::string text;
      for (size_t n = rng() % 40; n > 0; --n) text.push_back(static_cast<char>('a' + rng() % 3));
      EXPECT_EQ(tokenizer->Encode(text, false), BruteForce(vocab, text)) << round << ": " << text;
    }
  }
}

TEST(Tokenizer, GivesAnyBytesBack) {
  test::SmallVocab vocab;
  vocab.Merge("a", "b");
  vocab.Merge(ByteToAlphabet(0xC3), ByteToAlphabet(0xA9));
  vocab.Add("<|x|>", 3);
  vocab.Add("<tool>", 4);
  std::mt19937 rng(5);
  const std::vector<std::string> parts = {
      "ab", "\xC3\xA9", "\xC3",   "\xFF\xFE", "\xED\xA0\x80", "\xF4\x90\x80\x80",   "\xC0\xAF",
      " ",  "<|x|>",    "<tool>", "<",        "\n",           std::string(1, '\0'), "7"};
  for (const std::string pre : {"smollm", "qwen2", "llama-bpe", "gpt-2"}) {
    vocab.pre = pre;
    const auto tokenizer = Make(vocab);
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (size_t n = rng() % 12; n > 0; --n) {
        text += rng() % 3 == 0 ? std::string(1, static_cast<char>(rng())) : parts[rng() % parts.size()];
      }
      for (const bool special : {false, true})
        EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, special)), text);
    }
  }
}

TEST(Tokenizer, ParsesControlTokensOnRequestAndUserDefinedOnesAlways) {
  test::SmallVocab vocab;
  const auto control = static_cast<Token>(vocab.Add("<|x|>", 3));
  const auto user = static_cast<Token>(vocab.Add("<t>", 4));
  vocab.Add("<unused>", 5);
  const auto tokenizer = Make(vocab);
  EXPECT_THAT(tokenizer->Encode("<|x|><t>", true), ElementsAre(control, user));
  EXPECT_THAT(tokenizer->Encode("<|x|><t>", false), ElementsAre('<', '|', 'x', '|', '>', user));
  EXPECT_EQ(tokenizer->Encode("<unused>", true).size(), 8u);
  EXPECT_TRUE(tokenizer->IsControl(control));
  EXPECT_FALSE(tokenizer->IsControl(user));
}

TEST(Tokenizer, FindsLongerSpecialTokensBeforeShorterOnes) {
  test::SmallVocab vocab;
  const auto ab = static_cast<Token>(vocab.Add("<<", 3));
  const auto abc = static_cast<Token>(vocab.Add("<<>", 3));
  const auto tokenizer = Make(vocab);
  // From the left "<<" would take the first two, and "<<>" would be lost.
  EXPECT_THAT(tokenizer->Encode("<<<>", true), ElementsAre('<', abc));
  EXPECT_THAT(tokenizer->Encode("<<<<x", true), ElementsAre(ab, ab, 'x'));
}

TEST(Tokenizer, DoesNotMergeAcrossASpecialToken) {
  test::SmallVocab vocab;
  const auto ab = static_cast<Token>(vocab.Merge("a", "b"));
  const auto x = static_cast<Token>(vocab.Add("<x>", 3));
  const auto tokenizer = Make(vocab);
  EXPECT_THAT(tokenizer->Encode("ab<x>a<x>b", true), ElementsAre(ab, x, 'a', x, 'b'));
}

TEST(Tokenizer, DropsBytesWithoutAToken) {
  test::SmallVocab vocab;
  vocab.tokens[0x1D] = "<|replaced|>";
  const auto tokenizer = Make(vocab);
  EXPECT_THAT(tokenizer->Encode("a\x1D"
                                "b",
                                false),
              ElementsAre('a', 'b'));
}

TEST(Tokenizer, TakesAWholePieceThatIsATokenOnlyWhereThePreTokenizerSaysSo) {
  test::SmallVocab vocab;
  const auto whole = static_cast<Token>(vocab.Add("abc", 1));  // no merge makes it
  vocab.pre = "llama-bpe";
  EXPECT_THAT(Make(vocab)->Encode("abc", false), ElementsAre(whole));
  vocab.pre = "qwen2";
  EXPECT_THAT(Make(vocab)->Encode("abc", false), ElementsAre('a', 'b', 'c'));
}

TEST(Tokenizer, AddsBosWhenTheMetadataOrElseThePreTokenizerSaysSo) {
  test::SmallVocab vocab;
  const int64_t bos = vocab.Add("<s>", 3);
  for (const std::string pre : {"llama-bpe", "qwen2"}) {
    vocab.pre = pre;
    TokenizerVocab view = vocab.View();
    view.bos = bos;
    const auto by_default = Tokenizer::FromVocab(view);
    ASSERT_TRUE(by_default.ok());
    EXPECT_EQ((*by_default)->add_bos(), pre == "llama-bpe");
    view.add_bos = pre != "llama-bpe";
    const auto told = Tokenizer::FromVocab(view);
    ASSERT_TRUE(told.ok());
    EXPECT_EQ((*told)->add_bos(), pre != "llama-bpe");
    EXPECT_EQ((*told)->bos(), bos);
  }
}

TEST(Tokenizer, EndsGenerationAtMetadataIdsAndAtKnownNames) {
  test::SmallVocab vocab;
  const auto eot = static_cast<Token>(vocab.Add("<custom>", 3));
  const auto named = static_cast<Token>(vocab.Add("<|im_end|>", 1));  // wrongly marked as normal
  const auto other = static_cast<Token>(vocab.Add("<|im_start|>", 3));
  TokenizerVocab view = vocab.View();
  view.eot = eot;
  const auto tokenizer = Tokenizer::FromVocab(view);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(eot));
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(named));
  EXPECT_TRUE((*tokenizer)->IsControl(named));
  EXPECT_FALSE((*tokenizer)->IsEndOfGeneration(other));
  EXPECT_FALSE((*tokenizer)->IsEndOfGeneration(-1));
  EXPECT_FALSE((*tokenizer)->IsEndOfGeneration((*tokenizer)->vocab_size()));
}

TEST(Tokenizer, GivesNothingForIdsOutOfRange) {
  test::SmallVocab vocab;
  const auto tokenizer = Make(vocab);
  EXPECT_THAT(tokenizer->Piece(-1), IsEmpty());
  EXPECT_THAT(tokenizer->Piece(tokenizer->vocab_size()), IsEmpty());
  EXPECT_EQ(tokenizer->Decode(std::vector<Token>{-5, 'a', 1 << 30}), "a");
}

TEST(Tokenizer, EncodesFromSeveralThreads) {
  test::SmallVocab vocab;
  vocab.Merge("a", "b");
  vocab.pre = "qwen2";
  const auto tokenizer = Make(vocab);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "ab cd 12 \xC3\xA9\n";
  const auto expected = tokenizer->Encode(text, true);
  std::vector<std::vector<Token>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer->Encode(text, true); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace blockgtq
