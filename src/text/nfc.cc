// Source: Unicode Standard Annex 15 and section 3.12 (Hangul): decompose, order combining marks, compose.
#include "src/text/nfc.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "src/text/nfc_data.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

constexpr char32_t kFirstAffected = 0x300;  // everything below is in form C, whatever follows below it
constexpr char32_t kSyllableBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161, kTrailBase = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28, kSyllables = kLeads * kVowels * kTrails;

struct Character {
  char32_t code_point;
  uint8_t combining_class;
};

uint8_t CombiningClass(char32_t c) {
  if (c < kFirstAffected) return 0;
  const auto* end = kNfcClasses + kNfcClassesCount;
  const auto* after = std::upper_bound(kNfcClasses, end, c,
                                       [](char32_t value, const auto& range) { return value < range.first; });
  if (after == kNfcClasses || c > after[-1].last) return 0;
  return after[-1].combining_class;
}

void Decompose(char32_t c, std::vector<Character>* out) {
  if (c - kSyllableBase < kSyllables) {
    const char32_t index = c - kSyllableBase;
    out->push_back({kLeadBase + index / (kVowels * kTrails), 0});
    out->push_back({kVowelBase + index / kTrails % kVowels, 0});
    if (index % kTrails != 0) out->push_back({kTrailBase + index % kTrails, 0});
    return;
  }
  const auto* end = kNfcDecompositions + kNfcDecompositionsCount;
  const auto* found = std::lower_bound(kNfcDecompositions, end, c,
                                       [](const auto& d, char32_t value) { return d.code_point < value; });
  if (found == end || found->code_point != c) {
    out->push_back({c, CombiningClass(c)});
    return;
  }
  Decompose(found->first, out);  // the table's mappings nest three deep at most
  if (found->second != 0) Decompose(found->second, out);
}

// 0: the pair does not compose.
char32_t Compose(char32_t first, char32_t second) {
  if (first - kLeadBase < kLeads && second - kVowelBase < kVowels) {
    return kSyllableBase + ((first - kLeadBase) * kVowels + (second - kVowelBase)) * kTrails;
  }
  if (first - kSyllableBase < kSyllables && (first - kSyllableBase) % kTrails == 0 && second > kTrailBase &&
      second < kTrailBase + kTrails) {
    return first + (second - kTrailBase);
  }
  const auto* end = kNfcCompositions + kNfcCompositionsCount;
  const auto* found =
      std::lower_bound(kNfcCompositions, end, std::pair(first, second), [](const auto& c, const auto& value) {
        return std::tie(c.first, c.second) < std::tie(value.first, value.second);
      });
  return found != end && found->first == first && found->second == second ? found->code_point : 0;
}

void AppendNfc(std::string_view valid, std::string* out) {
  std::vector<Character> text;
  for (std::string_view rest = valid; !rest.empty();) {
    const Utf8Unit unit = FirstUtf8Unit(rest);
    Decompose(unit.code_point, &text);
    rest.remove_prefix(unit.bytes);
  }
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && text[end].combining_class != 0) ++end;
    std::stable_sort(text.begin() + i, text.begin() + end, [](const Character& a, const Character& b) {
      return a.combining_class < b.combining_class;
    });
    i = end + 1;
  }
  size_t kept = 0;
  constexpr size_t kNone = ~size_t{0};
  size_t starter = kNone;
  for (const Character c : text) {
    // A mark is blocked from the starter by a character between them of class 0 or of its own class or above.
    const bool adjacent = starter != kNone && kept == starter + 1;
    const bool blocked =
        !adjacent && (starter == kNone || text[kept - 1].combining_class >= c.combining_class);
    const char32_t composed = blocked ? 0 : Compose(text[starter].code_point, c.code_point);
    if (composed != 0) {
      text[starter].code_point = composed;
      continue;
    }
    if (c.combining_class == 0) starter = kept;
    text[kept++] = c;
  }
  for (size_t i = 0; i < kept; ++i) AppendUtf8(text[i].code_point, out);
}

}  // namespace

std::string ToNfc(std::string_view text) {
  // UTF-8 of U+0300 and above begins with a byte from 0xCC on.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; })) {
    return std::string(text);
  }
  std::string out;
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    AppendNfc(text.substr(0, valid), &out);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const int invalid = FirstUtf8Unit(text).bytes;
    out.append(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
  return out;
}

}  // namespace blockgtq
