// Bookkeeping that every backend shares.
#include "src/backend/backend.h"

#include <algorithm>

namespace blockgtq {

int64_t CodedEndAfter(const KvCache& cache, const BatchSlice& slice) {
  const int64_t before = cache.state(slice.sequence).coded_end;
  return std::max(before, cache.CodedEndBefore(slice.first_position + slice.count));
}

}  // namespace blockgtq
