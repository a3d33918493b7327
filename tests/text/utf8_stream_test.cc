// Utf8Stream: the same text however the bytes arrive. Replacement follows Unicode 3.9 (as Python's
// bytes.decode("utf-8", "replace") does, from which the expected strings are).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

#define R "\xEF\xBF\xBD"

struct Decoded {
  std::string bytes, text;
};
const Decoded kCases[] = {
    {"a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80z", "a\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80z"},
    {"\xFF\xFE", R R},
    {"x\xC3", "x" R},
    {"\xC3(", R "("},
    {"\xE4\xBD(", R "("},  // a maximal part of two bytes is one replacement
    {"\xF0\x9F\x98", R},   // cut at the end
    {"\xF0\x9F\x98\xF0\x9F\x98\x80", R "\xF0\x9F\x98\x80"},
    {"\xED\xA0\x80", R R R},  // a surrogate: no prefix of it could be well-formed
    {"\xC0\xAF", R R},        // overlong
    {"\xE0\x80\xAF", R R R},
    {"\xF0\x80\x80\xAF", R R R R},
    {"\xF4\x90\x80\x80", R R R R},  // above U+10FFFF
    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
    {"\xF5\x80", R R},
    {"\x80\xBFz", R R "z"},
    {std::string("\0b", 2), std::string("\0b", 2)},
    {"ok\xE2\x82", "ok" R},
};

std::string StreamText(const std::vector<std::string>& pieces) {
  Utf8Stream stream;
  std::string out;
  for (const auto& piece : pieces) {
    const std::string shown = stream.Push(piece);
    EXPECT_EQ(ValidUtf8Prefix(shown), shown.size()) << "a cut character was shown";
    out += shown;
  }
  return out + stream.Finish();
}

TEST(Utf8Stream, GivesTheSameTextForEverySplit) {
  for (const auto& [bytes, text] : kCases) {
    const size_t cuts = bytes.size() - 1;
    for (size_t mask = 0; mask < size_t{1} << cuts; ++mask) {
      std::vector<std::string> pieces = {bytes.substr(0, 1)};
      for (size_t i = 1; i < bytes.size(); ++i) {
        if (mask >> (i - 1) & 1) pieces.emplace_back();
        pieces.back().push_back(bytes[i]);
      }
      EXPECT_EQ(StreamText(pieces), text) << testing::PrintToString(bytes) << " split " << mask;
    }
  }
}

TEST(Utf8Stream, ShowsEachCharacterAsSoonAsItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.Push("\x98"), "");
  EXPECT_EQ(stream.Push("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(stream.Push("\xC3"), "");
  EXPECT_EQ(stream.Push("\xC3"), R);  // the first cannot become whole any more
  EXPECT_EQ(stream.Finish(), R);
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8, EveryCodePointIsOneUnitAndEveryPrefixOfItIsIncomplete) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 61) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string bytes;
    AppendUtf8(c, &bytes);
    const Utf8Unit unit = FirstUtf8Unit(bytes + "x");
    ASSERT_EQ(unit.kind, Utf8Kind::kValid) << static_cast<uint32_t>(c);
    ASSERT_EQ(unit.code_point, c);
    ASSERT_EQ(static_cast<size_t>(unit.bytes), bytes.size());
    for (size_t n = 1; n < bytes.size(); ++n) {
      ASSERT_EQ(FirstUtf8Unit(bytes.substr(0, n)).kind, Utf8Kind::kIncomplete) << static_cast<uint32_t>(c);
    }
  }
}

}  // namespace
}  // namespace blockgtq
