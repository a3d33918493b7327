// A text as tokens, with the places where a sentence can be put in: what needles are hidden in.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/text/tokenizer.h"

namespace blockgtq {

class Haystack {
 public:
  /// Errors: kInvalidArgument for a text of fewer than 64 tokens.
  static Result<Haystack> Create(const Tokenizer& tokenizer, std::string_view text);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  /// Starts of sentences, as indices of tokens, ascending; never empty.
  std::span<const int64_t> sentence_starts() const { return sentence_starts_; }

  /// `count` tokens from `start` on; after the text's end it goes on with its beginning.
  std::vector<Token> Slice(int64_t start, int64_t count) const;
  /// Where in Slice(start, count) a sentence for `depth` (0..1) goes: at the last start of a sentence at or
  /// before depth * count, or exactly there when none is within 256 tokens, or depth is 1.
  int64_t PlaceFor(double depth, int64_t start, int64_t count) const;

 private:
  std::vector<Token> tokens_;
  std::vector<int64_t> sentence_starts_;
};

/// Bytes in `text` right after a sentence: after . ! or ?, with closing quotes, that a space or line break
/// and then no small letter follow; not after "Mr." and its kin.
std::vector<size_t> SentenceEnds(std::string_view text);

}  // namespace blockgtq
