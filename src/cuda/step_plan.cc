// See step_plan.h.
#include "src/cuda/step_plan.h"

#include <algorithm>

namespace blockgtq::cuda {
namespace {

/// Rows of a prompt up to which they attend like decoded tokens, to one another through the window.
constexpr int64_t kSmallChunk = 64;

struct Planner {
  const KvCache& cache_;
  StepPlan plan{};

  void PlanDecode(std::span<const BatchSlice> slices);
  void PlanSlice(const BatchSlice& slice, int64_t table_row);
  void AddRow(const BatchSlice& slice, int64_t position, int64_t coded, int64_t length, bool keeps_window);
  void AddJobs(SequenceId sequence, int64_t begin, int64_t end, int64_t first_row);
};

void Planner::PlanDecode(std::span<const BatchSlice> slices) {
  const bool packed = cache_.options().kind == CacheKind::kPacked;
  const bool at_once = packed && cache_.options().recent == 0;  // a token is encoded before it is attended to
  Segment s;
  s.rows = static_cast<int64_t>(slices.size());
  for (const BatchSlice& slice : slices) {
    const int64_t coded = cache_.state(slice.sequence).coded_end, end = slice.first_position + 1;
    const int64_t attended = at_once ? end : coded;
    AddRow(slice, slice.first_position, attended, end, packed && !at_once);
    s.coded = std::max(s.coded, attended);
    s.longest = std::max(s.longest, end);
    const int64_t coded_after = std::max(coded, cache_.CodedEndBefore(end));
    if (packed) AddJobs(slice.sequence, coded, coded_after, slice.first_row);
  }
  s.jobs = static_cast<int32_t>(plan.jobs.size());
  plan.counts.push_back(s.jobs);
  plan.segments.push_back(s);
}

// The same segments as cpu/attention_segments.cc makes: rows that attend to the same codes.
void Planner::PlanSlice(const BatchSlice& slice, int64_t table_row) {
  const bool packed = cache_.options().kind == CacheKind::kPacked;
  const bool at_once = packed && cache_.options().recent == 0;
  const bool strict = packed && (slice.strict || slice.count == 1);
  int64_t coded = cache_.state(slice.sequence).coded_end, position = slice.first_position;
  const int64_t slice_end = position + slice.count;
  while (position < slice_end) {
    Segment s;
    s.sequence = slice.sequence;
    s.first_row = slice.first_row + (position - slice.first_position);
    s.position = position;
    s.coded = coded;
    const int64_t exact_tiles = (slice_end - 1) / kPageTokens - coded / kPageTokens + 1;
    s.chunk = !strict && (at_once || slice.count > kSmallChunk || exact_tiles > cache_.window_tiles());
    s.table_row = table_row;
    int64_t end = slice_end;
    if (strict && at_once) {  // within a page, so that a launch has one job a page
      end = std::min(end, (position / kPageTokens + 1) * kPageTokens);
    } else if (strict) {  // up to the first position that must see more codes
      end = position + 1;
      while (end < slice_end && cache_.CodedEndBefore(end) <= coded) ++end;
    }
    s.rows = end - position;
    s.longest = end;
    const int64_t coded_after = std::max(coded, cache_.CodedEndBefore(end));
    for (int64_t p = position; p < end; ++p) {
      const bool keeps_window = packed && !at_once && (!s.chunk || p >= coded_after);
      AddRow(slice, p, strict && at_once ? p + 1 : coded, p + 1, keeps_window);
    }
    s.first_job = static_cast<int64_t>(plan.jobs.size());
    s.scratch_first = coded / kPrefixTokens * kPrefixTokens;
    // Encoded rows: its own (at once) are counted from the batch's first, a chunk's from its first exact
    // token.
    if (packed) AddJobs(slice.sequence, coded, coded_after, s.chunk ? 0 : s.first_row + (coded - position));
    s.jobs = static_cast<int32_t>(plan.jobs.size() - static_cast<size_t>(s.first_job));
    s.counter = static_cast<int64_t>(plan.counts.size());
    plan.counts.push_back(s.jobs);
    plan.segments.push_back(s);
    coded = coded_after;
    position = end;
  }
}

void Planner::AddRow(const BatchSlice& slice, int64_t position, int64_t coded, int64_t length,
                     bool keeps_window) {
  const CacheOptions& options = cache_.options();
  RowTarget target;
  target.exact = reinterpret_cast<uint8_t*>(cache_.exact_base(slice.sequence));
  target.position = static_cast<int32_t>(position);
  const int64_t page = position / kPageTokens;
  if (options.kind != CacheKind::kPacked) {
    for (int group = 0; group < cache_.groups(); ++group)
      target.page[group] = cache_.blocks(slice.sequence, group)[static_cast<size_t>(page)];
  } else {
    if (keeps_window) target.window_tile = static_cast<int32_t>(page % cache_.window_tiles());
    if (position < options.sinks) target.sink_slot = static_cast<int32_t>(position);
  }
  plan.targets.push_back(target);
  plan.coded.push_back(static_cast<int32_t>(coded));
  plan.lengths.push_back(static_cast<int32_t>(length));
  plan.exact.push_back(target.exact);
}

// A job a page for tokens [begin, end); the row of token `begin` is first_row.
void Planner::AddJobs(SequenceId sequence, int64_t begin, int64_t end, int64_t first_row) {
  while (begin < end) {
    EncodeJob job;
    job.exact = reinterpret_cast<const uint8_t*>(cache_.exact_base(sequence));
    job.first_row = first_row;
    job.position = begin / kPageTokens * kPageTokens;
    for (int group = 0; group < cache_.groups(); ++group)
      job.block[group] = cache_.blocks(sequence, group)[static_cast<size_t>(begin / kPageTokens)];
    job.begin = static_cast<int32_t>(begin % kPageTokens);
    job.end = static_cast<int32_t>(std::min<int64_t>(end - job.position, kPageTokens));
    plan.jobs.push_back(job);
    first_row += job.end - job.begin;
    begin = job.position + job.end;
  }
}

}  // namespace

StepPlan PlanStep(const KvCache& cache, std::span<const BatchSlice> slices) {
  Planner planner{cache};
  planner.plan.decode =
      std::all_of(slices.begin(), slices.end(), [](const BatchSlice& slice) { return slice.count == 1; });
  if (planner.plan.decode) {
    planner.PlanDecode(slices);
  } else {
    for (size_t i = 0; i < slices.size(); ++i) planner.PlanSlice(slices[i], static_cast<int64_t>(i));
  }
  return std::move(planner.plan);
}

}  // namespace blockgtq::cuda
