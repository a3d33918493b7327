// See haystack.h.
#include "src/eval/tasks/haystack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace blockgtq {
namespace {

constexpr int64_t kLookBack = 256;
constexpr int64_t kMinTokens = 64;
constexpr std::array<std::string_view, 7> kAbbreviations = {"Mr", "Mrs", "Ms", "Dr", "St", "Prof", "Rev"};

bool IsAbbreviation(std::string_view text, size_t dot) {
  size_t begin = dot;
  while (begin > 0 && ((text[begin - 1] | 0x20) >= 'a' && (text[begin - 1] | 0x20) <= 'z')) --begin;
  const std::string_view word = text.substr(begin, dot - begin);
  return std::find(kAbbreviations.begin(), kAbbreviations.end(), word) != kAbbreviations.end();
}

}  // namespace

std::vector<size_t> SentenceEnds(std::string_view text) {
  std::vector<size_t> ends;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '.' && text[i] != '!' && text[i] != '?') continue;
    if (text[i] == '.' && IsAbbreviation(text, i)) continue;
    size_t end = i + 1;
    while (end < text.size() && (text[end] == '"' || text[end] == '\'' || text[end] == ')')) ++end;
    if (end + 1 >= text.size() || (text[end] != ' ' && text[end] != '\n')) continue;
    if (text[end + 1] >= 'a' && text[end + 1] <= 'z') continue;
    ends.push_back(end);
  }
  return ends;
}

Result<Haystack> Haystack::Create(const Tokenizer& tokenizer, std::string_view text) {
  Haystack haystack;
  haystack.tokens_ = tokenizer.Encode(text, false);
  if (haystack.size() < kMinTokens) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("the haystack has {} tokens; it needs at least {}",
                                                           haystack.size(), kMinTokens));
  }
  const std::vector<size_t> ends = SentenceEnds(text);
  haystack.sentence_starts_.push_back(0);
  size_t byte = 0, next_end = 0;
  for (size_t i = 0; i < haystack.tokens_.size() && next_end < ends.size(); ++i) {
    byte += tokenizer.Piece(haystack.tokens_[i]).size();
    while (next_end < ends.size() && ends[next_end] < byte) ++next_end;
    if (next_end < ends.size() && ends[next_end] == byte && i + 1 < haystack.tokens_.size()) {
      haystack.sentence_starts_.push_back(static_cast<int64_t>(i) + 1);
    }
  }
  return haystack;
}

std::vector<Token> Haystack::Slice(int64_t start, int64_t count) const {
  std::vector<Token> slice;
  slice.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) slice.push_back(tokens_[static_cast<size_t>((start + i) % size())]);
  return slice;
}

int64_t Haystack::PlaceFor(double depth, int64_t start, int64_t count) const {
  const int64_t wanted = static_cast<int64_t>(depth * static_cast<double>(count));
  if (depth >= 1) return count;
  for (int64_t place = wanted; place >= 0 && place > wanted - kLookBack; --place) {
    const int64_t token = (start + place) % size();
    if (std::binary_search(sentence_starts_.begin(), sentence_starts_.end(), token)) return place;
  }
  return wanted;
}

}  // namespace blockgtq
