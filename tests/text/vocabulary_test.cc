// Vocabularies that contradict themselves are refused with one line that says what and where.
#include "src/text/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

using testing::HasSubstr;

struct BadVocab {
  const char* name;
  std::function<void(test::SmallVocab&)> damage;
  std::function<void(TokenizerVocab&)> damage_view;
  const char* message;
  ErrorCode code = ErrorCode::kCorruptFile;
};
void PrintTo(const BadVocab& vocab, std::ostream* out) { *out << vocab.name; }

const auto kNoDamage = [](auto&) {};

class RefusedVocabulary : public testing::TestWithParam<BadVocab> {};

TEST_P(RefusedVocabulary, NamesWhatIsWrong) {
  test::SmallVocab vocab;
  vocab.Merge("a", "b");
  ASSERT_TRUE(Vocabulary::Build(vocab.View()).ok());
  GetParam().damage(vocab);
  TokenizerVocab view = vocab.View();
  GetParam().damage_view(view);
  const auto result = Tokenizer::FromVocab(view);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), GetParam().code);
  EXPECT_THAT(result.status().message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    , RefusedVocabulary,
    testing::Values(
        BadVocab{"NoTokens", kNoDamage, [](TokenizerVocab& v) { v.tokens = {}; }, "tokens is empty"},
        BadVocab{"TypesOfAnotherLength", [](test::SmallVocab& v) { v.types.pop_back(); }, kNoDamage,
                 "token_type has 256 entries for 257 tokens"},
        BadVocab{"UnknownType", [](test::SmallVocab& v) { v.types[3] = 7; }, kNoDamage, "token_type[3] is 7"},
        BadVocab{"NegativeType", [](test::SmallVocab& v) { v.types[3] = -1; }, kNoDamage,
                 "token_type[3] is -1"},
        BadVocab{"Duplicate", [](test::SmallVocab& v) { v.Add("ab", 1); }, kNoDamage,
                 "\"ab\" twice, as 256 and 257"},
        BadVocab{"InvalidUtf8", [](test::SmallVocab& v) { v.Add("x\xFF", 1); }, kNoDamage,
                 "tokens[257] \"x\\xff\" is not valid UTF-8"},
        BadVocab{"MergeWithoutSpace", [](test::SmallVocab& v) { v.merges[0] = "ab"; }, kNoDamage,
                 "merges[0] \"ab\""},
        BadVocab{"MergeOfThree", [](test::SmallVocab& v) { v.merges[0] = "a b c"; }, kNoDamage, "merges[0]"},
        BadVocab{"MergeWithEmptyLeft", [](test::SmallVocab& v) { v.merges[0] = " ab"; }, kNoDamage,
                 "merges[0]"},
        BadVocab{"MergeWithEmptyRight", [](test::SmallVocab& v) { v.merges[0] = "ab "; }, kNoDamage,
                 "merges[0]"},
        BadVocab{"EmptyMerge", [](test::SmallVocab& v) { v.merges[0] = ""; }, kNoDamage, "merges[0]"},
        BadVocab{"MergeOfUnknownTokens", [](test::SmallVocab& v) { v.merges.push_back("a zz"); }, kNoDamage,
                 "needs the token \"zz\""},
        BadVocab{"MergeWithUnknownResult", [](test::SmallVocab& v) { v.merges.push_back("a c"); }, kNoDamage,
                 "needs the token \"ac\""},
        BadVocab{"BosOutOfRange", kNoDamage, [](TokenizerVocab& v) { v.bos = 257; }, "bos_token_id is 257"},
        BadVocab{"EosNegative", kNoDamage, [](TokenizerVocab& v) { v.eos = -1; }, "eos_token_id is -1"},
        BadVocab{"EotHuge", kNoDamage, [](TokenizerVocab& v) { v.eot = int64_t{1} << 40; }, "eot_token_id"},
        BadVocab{"EomOutOfRange", kNoDamage, [](TokenizerVocab& v) { v.eom = 1000; }, "eom_token_id"},
        BadVocab{"AddBosWithoutBos", kNoDamage, [](TokenizerVocab& v) { v.add_bos = true; },
                 "bos_token_id is missing"},
        BadVocab{"NoByteTokens",
                 [](test::SmallVocab& v) {
                   v.tokens = {"aa", "bb"};
                   v.types = {1, 1};
                   v.merges.clear();
                 },
                 kNoDamage, "not a byte-level vocabulary"},
        BadVocab{"HugeSpecialToken", [](test::SmallVocab& v) { v.Add(std::string(5000, 'x'), 3); }, kNoDamage,
                 "special token of 5000 bytes", ErrorCode::kUnsupported},
        BadVocab{"UnknownPreTokenizer", [](test::SmallVocab& v) { v.pre = ""; }, kNoDamage,
                 "known pre-tokenizers", ErrorCode::kUnsupported}),
    [](const auto& info) { return info.param.name; });

TEST(Vocabulary, AllowsMissingBytesAndUnusedDuplicates) {
  test::SmallVocab vocab;
  vocab.tokens[7] = "[free]";
  vocab.types[7] = 5;
  vocab.Add("[free]", 5);
  const auto result = Vocabulary::Build(vocab.View());
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->byte_tokens()[7], -1);
  EXPECT_EQ(result->byte_tokens()[8], 8);
}

TEST(Vocabulary, PiecesAreBytesForNormalTokensAndTextForSpecialOnes) {
  test::SmallVocab vocab;
  const auto word = vocab.Add("\xC4\xA0x\xC4\x8A", 1);  // G with dot, C with dot: space and newline
  const auto special = vocab.Add("\xC4\xA0y", 3);
  const auto raw = vocab.Add("two words", 1);  // outside the alphabet
  const auto unused = vocab.Add("[PAD]", 5);
  const auto result = Vocabulary::Build(vocab.View());
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->Piece(word), " x\n");
  EXPECT_EQ(result->Piece(special), "\xC4\xA0y");
  EXPECT_EQ(result->Piece(raw), "two words");
  EXPECT_EQ(result->Piece(unused), "");
}

TEST(ByteAlphabet, IsABijection) {
  for (int b = 0; b < 256; ++b) {
    const auto back = AlphabetToBytes(ByteToAlphabet(static_cast<uint8_t>(b)));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, std::string(1, static_cast<char>(b)));
  }
  EXPECT_EQ(ByteToAlphabet(' '), "\xC4\xA0");
  EXPECT_EQ(ByteToAlphabet('\n'), "\xC4\x8A");
  EXPECT_EQ(ByteToAlphabet(0xAD), "\xC5\x83");
  EXPECT_FALSE(AlphabetToBytes(" ").has_value());
  EXPECT_FALSE(AlphabetToBytes("\xE4\xBD\xA0").has_value());
}

}  // namespace
}  // namespace blockgtq
