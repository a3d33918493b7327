// Which tokens of a range each query of a block sees: causal ends, and the begins of a sliding window.
#pragma once

#include <algorithm>
#include <cstdint>

namespace blockgtq::cpu {

/// Query i sees tokens [begin[i], end[i]) of the call's range; a null pointer bounds nothing.
struct QueryBounds {
  const int64_t* begin = nullptr;  // [count]
  const int64_t* end = nullptr;    // [count]

  /// Of queries i, i + 1, ...
  QueryBounds From(int i) const {
    return {begin == nullptr ? nullptr : begin + i, end == nullptr ? nullptr : end + i};
  }
  /// The bounds of query i within [first, last); Begin may pass End: it sees nothing there.
  int64_t Begin(int i, int64_t first) const { return begin == nullptr ? first : std::max(first, begin[i]); }
  int64_t End(int i, int64_t last) const { return end == nullptr ? last : std::min(last, end[i]); }
  /// Whether one of the first `count` queries sees a token of [first, last).
  bool AnySees(int count, int64_t first, int64_t last) const {
    for (int i = 0; i < count; ++i) {
      if (Begin(i, first) < End(i, last)) return true;
    }
    return false;
  }
  /// Past the last token of [first, last) that one of `count` queries sees; `first` when none sees any.
  int64_t LastEnd(int count, int64_t first, int64_t last) const {
    int64_t largest = first;
    for (int i = 0; i < count; ++i) largest = std::max(largest, End(i, last));
    return largest;
  }
};

}  // namespace blockgtq::cpu
