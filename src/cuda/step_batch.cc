// See step_batch.h.
#include "src/cuda/step_batch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kAlignment = 256;
/// Rows of a prompt up to which they attend like decoded tokens, to one another through the window.
constexpr int64_t kSmallChunk = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t PowerOfTwo(int64_t at_least) {
  int64_t size = 1;
  while (size < at_least) size *= 2;
  return size;
}

/// Lays arrays one after another.
struct Arrays {
  int64_t bytes = 0;
  template <typename T>
  int64_t Add(size_t count) {
    const int64_t at = bytes;
    bytes += Aligned(static_cast<int64_t>(count * sizeof(T)));
    return at;
  }
};

}  // namespace

Status StepBatch::Build(const StepInput& input) {
  rows_ = static_cast<int64_t>(input.tokens.size());
  segments_.clear();
  targets_.clear();
  coded_.clear();
  lengths_.clear();
  exact_.clear();
  jobs_.clear();
  counts_.clear();
  decode_ = std::all_of(input.slices.begin(), input.slices.end(),
                        [](const BatchSlice& slice) { return slice.count == 1; });
  if (decode_) {
    PlanDecode(input.slices);
  } else {
    for (size_t i = 0; i < input.slices.size(); ++i) PlanSlice(input.slices[i], static_cast<int64_t>(i));
  }
  BGTQ_RETURN_IF_ERROR(Upload(input.tokens));
  return UploadTables(input.slices);
}

void StepBatch::PlanDecode(std::span<const BatchSlice> slices) {
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
  s.jobs = static_cast<int32_t>(jobs_.size());
  counts_.push_back(s.jobs);
  segments_.push_back(s);
}

// The same segments as cpu/attention_op.cc makes: rows that attend to the same codes.
void StepBatch::PlanSlice(const BatchSlice& slice, int64_t table_row) {
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
    s.first_job = static_cast<int64_t>(jobs_.size());
    // Encoded rows: its own (at once) are counted from the batch's first, a chunk's from its scratch's.
    s.scratch_first = coded / kPrefixTokens * kPrefixTokens;
    if (packed) {
      AddJobs(slice.sequence, coded, coded_after,
              s.chunk ? coded - s.scratch_first : s.first_row + (coded - position));
    }
    s.jobs = static_cast<int32_t>(jobs_.size() - static_cast<size_t>(s.first_job));
    s.counter = static_cast<int64_t>(counts_.size());
    counts_.push_back(s.jobs);
    segments_.push_back(s);
    coded = coded_after;
    position = end;
  }
}

void StepBatch::AddRow(const BatchSlice& slice, int64_t position, int64_t coded, int64_t length,
                       bool keeps_window) {
  const CacheOptions& options = cache_.options();
  RowTarget target;
  target.exact = reinterpret_cast<uint8_t*>(cache_.exact_base(slice.sequence));
  target.position = static_cast<int32_t>(position);
  const int64_t page = position / kPageTokens;
  if (options.kind != CacheKind::kPacked) {
    target.page = cache_.blocks(slice.sequence)[static_cast<size_t>(page)];
  } else {
    if (keeps_window) target.window_tile = static_cast<int32_t>(page % cache_.window_tiles());
    if (position < options.sinks) target.sink_slot = static_cast<int32_t>(position);
  }
  targets_.push_back(target);
  coded_.push_back(static_cast<int32_t>(coded));
  lengths_.push_back(static_cast<int32_t>(length));
  exact_.push_back(target.exact);
}

// A job a page for tokens [begin, end); the row of token `begin` is first_row.
void StepBatch::AddJobs(SequenceId sequence, int64_t begin, int64_t end, int64_t first_row) {
  while (begin < end) {
    EncodeJob job;
    job.exact = reinterpret_cast<const uint8_t*>(cache_.exact_base(sequence));
    job.first_row = first_row;
    job.position = begin / kPageTokens * kPageTokens;
    job.block = cache_.blocks(sequence)[static_cast<size_t>(begin / kPageTokens)];
    job.begin = static_cast<int32_t>(begin % kPageTokens);
    job.end = static_cast<int32_t>(std::min<int64_t>(end - job.position, kPageTokens));
    jobs_.push_back(job);
    first_row += job.end - job.begin;
    begin = job.position + job.end;
  }
}

Status StepBatch::Upload(std::span<const int32_t> tokens) {
  Arrays arrays;
  tokens_at_ = arrays.Add<int32_t>(tokens.size());
  targets_at_ = arrays.Add<RowTarget>(targets_.size());
  coded_at_ = arrays.Add<int32_t>(coded_.size());
  length_at_ = arrays.Add<int32_t>(lengths_.size());
  exact_at_ = arrays.Add<const uint8_t*>(exact_.size());
  counts_at_ = arrays.Add<int32_t>(counts_.size());
  jobs_at_ = arrays.Add<EncodeJob>(jobs_.size());  // last: of a decode step only their number varies
  BGTQ_RETURN_IF_ERROR(device_.Reserve(device_data_, 2 * arrays.bytes, "a step's numbers"));
  // The copy of the step before must be done before its source is written again.
  BGTQ_RETURN_IF_ERROR(device_.Synchronize());
  if (host_data_.bytes() < arrays.bytes) {
    BGTQ_ASSIGN_OR_RETURN(host_data_, PinnedBuffer::Allocate(2 * arrays.bytes, "a step's numbers"));
  }
  const auto put = [&](int64_t at, const auto& values) {
    if (!values.empty())
      std::memcpy(host_data_.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(tokens_at_, tokens);
  put(targets_at_, targets_);
  put(coded_at_, coded_);
  put(length_at_, lengths_);
  put(exact_at_, exact_);
  put(jobs_at_, jobs_);
  put(counts_at_, counts_);
  return CudaStatus(cudaMemcpyAsync(device_data_.data(), host_data_.data(), static_cast<size_t>(arrays.bytes),
                                    cudaMemcpyHostToDevice, device_.stream()),
                    "uploading a step's numbers");
}

Status StepBatch::UploadTables(std::span<const BatchSlice> slices) {
  size_t longest = 1;
  for (const BatchSlice& slice : slices) longest = std::max(longest, cache_.blocks(slice.sequence).size());
  table_stride_ = PowerOfTwo(static_cast<int64_t>(longest));
  // Entries past a sequence's pages are block 0: a library kernel may look at them.
  std::vector<int32_t> tables(slices.size() * static_cast<size_t>(table_stride_), 0);
  for (size_t i = 0; i < slices.size(); ++i) {
    const std::span<const int32_t> blocks = cache_.blocks(slices[i].sequence);
    std::copy(blocks.begin(), blocks.end(), tables.begin() + static_cast<int64_t>(i) * table_stride_);
  }
  if (tables == uploaded_tables_) return Status::Ok();
  const int64_t bytes = static_cast<int64_t>(tables.size() * sizeof(int32_t));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(tables_, bytes, "block tables"));
  if (host_tables_.bytes() < bytes) {
    BGTQ_ASSIGN_OR_RETURN(host_tables_, PinnedBuffer::Allocate(bytes, "block tables"));
  }
  std::memcpy(host_tables_.data(), tables.data(), static_cast<size_t>(bytes));
  uploaded_tables_ = std::move(tables);
  return CudaStatus(cudaMemcpyAsync(tables_.data(), host_tables_.data(), static_cast<size_t>(bytes),
                                    cudaMemcpyHostToDevice, device_.stream()),
                    "uploading block tables");
}

}  // namespace blockgtq::cuda
