// See attention_segments.h.
#include "src/cpu/attention_segments.h"

#include <algorithm>

namespace blockgtq::cpu {

SegmentPlan PlanSegments(const KvCache& cache, std::span<const BatchSlice> slices) {
  const CacheKind kind = cache.options().kind;
  const bool coded_kind = kind == CacheKind::kPacked || kind == CacheKind::kSimulated;
  SegmentPlan plan;
  plan.segments.resize(slices.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const BatchSlice& slice = slices[i];
    const bool strict = slice.strict || slice.count == 1;
    int64_t coded = cache.state(slice.sequence).coded_end, position = slice.first_position;
    const int64_t slice_end = position + slice.count;
    while (position < slice_end) {
      Segment s;
      s.slice = &slice;
      s.first = position - slice.first_position;
      s.position = position;
      s.coded = coded;
      int64_t end = slice_end;
      if (coded_kind && cache.options().recent == 0) {
        s.sees_own_codes = strict;
        s.chunk_tiles = !strict;
        // Rows see position + 1, .. end codes: all of them stored alike.
        if (strict && kind == CacheKind::kSimulated)
          end = std::min(end, cache.options().simulated->ChangesAfter(position + 1) - 1);
      } else if (coded_kind && strict) {  // up to the first position that must see more codes
        end = position + 1;
        while (end < slice_end && cache.CodedEndBefore(end) <= coded) ++end;
      } else if (coded_kind) {
        s.chunk_tiles = (end - 1) / kPageTokens - coded / kPageTokens + 1 > cache.window_tiles();
      }
      s.count = end - position;
      s.coded_after = std::max(coded, cache.CodedEndBefore(end));
      if (s.chunk_tiles) {
        s.chunk_offset = plan.chunk_tiles;
        plan.chunk_tiles += (end - 1) / kPageTokens - coded / kPageTokens + 1;
      }
      plan.segments[i].push_back(s);
      coded = s.coded_after;
      position = end;
    }
  }
  return plan;
}

}  // namespace blockgtq::cpu
