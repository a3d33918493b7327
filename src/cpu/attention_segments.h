// Segments: which codes the rows of a batch attend to, and what is stored and encoded when
// (attention_op.cc).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/backend/backend.h"

namespace blockgtq::cpu {

/// Rows of a slice that attend to the same codes.
struct Segment {
  const BatchSlice* slice = nullptr;
  int64_t first = 0;  // first row within the slice
  int64_t count = 0;
  int64_t position = 0;         // of the first row
  int64_t coded = 0;            // codes of [0, coded) are readable before the segment is stored
  int64_t coded_after = 0;      // codes reach here when the segment is done
  bool sees_own_codes = false;  // recent = 0, strict: rows are encoded first and attend to their own codes
  bool chunk_tiles = false;     // exact tokens do not fit the window ring: they pass through scratch tiles
  int64_t chunk_offset = 0;     // first scratch tile
  int64_t end() const { return position + count; }
};

struct SegmentPlan {
  std::vector<std::vector<Segment>> segments;  // [slices]; those of one slice run one after the other
  int64_t chunk_tiles = 0;                     // scratch tiles of 64 tokens, a KV head, that they need
};

/// Cuts a batch's slices, which must outlive the plan.
SegmentPlan PlanSegments(const KvCache& cache, std::span<const BatchSlice> slices);

}  // namespace blockgtq::cpu
