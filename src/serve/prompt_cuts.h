// Where prompts are cut into passes: always at the same places, so that a prompt gives the same answer
// whatever of it was cached.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/cache/kv_cache.h"

namespace blockgtq::serve {

/// Cuts at the multiples of a chunk, and in the first chunk at every page of its first 256 tokens: there
/// short beginnings end that prompts share.
class PromptCuts {
 public:
  /// chunk: a multiple of kPageTokens.
  explicit PromptCuts(int64_t chunk)
      : chunk_(chunk), early_(std::min<int64_t>((chunk - 1) / kPageTokens, kEarlyTokens / kPageTokens)) {}

  /// Tokens before cut i, from 1 up; 0 for i = 0.
  int64_t At(int64_t i) const { return i <= early_ ? i * kPageTokens : (i - early_) * chunk_; }
  /// The last cut within the first `tokens` tokens; 0: none.
  int64_t Last(int64_t tokens) const {
    return tokens < chunk_ ? std::min(tokens / kPageTokens, early_) : early_ + tokens / chunk_;
  }
  /// Tokens before the first cut past `tokens`.
  int64_t NextEnd(int64_t tokens) const { return At(Last(tokens) + 1); }
  /// The last cut before the first multiple of the chunk.
  int64_t early() const { return early_; }

 private:
  static constexpr int64_t kEarlyTokens = 256;
  int64_t chunk_;
  int64_t early_;
};

}  // namespace blockgtq::serve
