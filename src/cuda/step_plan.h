// Plans a step of a cache on the GPU: which rows attend together, to how many codes, where each row is stored
// and what gets encoded from where. Host code without CUDA: step_batch.h uploads it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/backend/backend.h"
#include "src/cuda/elementwise_rope.h"
#include "src/cuda/encode.h"

namespace blockgtq::cuda {

/// Tokens of a packed prefix that are unpacked at a time: bounds the scratch of a prompt's chunk.
inline constexpr int64_t kPrefixTokens = 65536;

/// Consecutive rows of one sequence (or, in a decode step, one row of every sequence) that attend together.
struct Segment {
  SequenceId sequence = 0;  // not in a decode step
  int64_t first_row = 0, rows = 0;
  int64_t position = 0;  // of the first row; not in a decode step
  int64_t coded = 0;     // codes of [0, coded) are there before the segment; the most, in a decode step
  int64_t longest = 0;   // tokens that the last row sees; the most, in a decode step
  bool chunk = false;    // rows attend to one another in fp16; otherwise each as if decoded
  // Of a chunk: the token at the start of its scratch, a multiple of kPrefixTokens, where no window cuts.
  int64_t scratch_first = 0;
  int64_t table_row = 0;  // of its block table; rows of one sequence share it
  int64_t first_job = 0;  // encoding that the segment brings about
  int32_t jobs = 0;
  int64_t counter = 0;  // of `job_counts`
};

struct StepPlan {
  bool decode = false;  // one row of every sequence: the launches depend on the shape alone
  std::vector<Segment> segments;
  // An entry a row.
  std::vector<RowTarget> targets;
  std::vector<int32_t> coded, lengths;  // codes that it attends to; tokens that it sees, itself included
  std::vector<const uint8_t*> exact;    // of its sequence
  // An entry a job, and the number of jobs of each segment (Segment::counter).
  std::vector<EncodeJob> jobs;
  std::vector<int32_t> counts;
};

/// slices: room has been reserved for them, nothing committed.
///
/// The order within a layer that the plan counts on, segment after segment: a chunk takes its prefix out of
/// the cache, then rows are stored; rows of their own codes (recent = 0) and chunks are encoded, then rows
/// attend; other segments encode from the window behind that, a decode step after its last layer.
StepPlan PlanStep(const KvCache& cache, std::span<const BatchSlice> slices);

}  // namespace blockgtq::cuda
