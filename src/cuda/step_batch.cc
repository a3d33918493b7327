// See step_batch.h.
#include "src/cuda/step_batch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kAlignment = 256;
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
  plan_ = PlanStep(cache_, input.slices);
  BGTQ_RETURN_IF_ERROR(Upload(input.tokens));
  return UploadTables(input.slices);
}

Status StepBatch::BuildTokens(std::span<const int32_t> tokens) {
  rows_ = static_cast<int64_t>(tokens.size());
  plan_ = {};
  return Upload(tokens);
}

Status StepBatch::Upload(std::span<const int32_t> tokens) {
  Arrays arrays;
  tokens_at_ = arrays.Add<int32_t>(tokens.size());
  targets_at_ = arrays.Add<RowTarget>(plan_.targets.size());
  coded_at_ = arrays.Add<int32_t>(plan_.coded.size());
  length_at_ = arrays.Add<int32_t>(plan_.lengths.size());
  exact_at_ = arrays.Add<const uint8_t*>(plan_.exact.size());
  counts_at_ = arrays.Add<int32_t>(plan_.counts.size());
  jobs_at_ = arrays.Add<EncodeJob>(plan_.jobs.size());  // last: of a decode step only their number varies
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
  put(targets_at_, plan_.targets);
  put(coded_at_, plan_.coded);
  put(length_at_, plan_.lengths);
  put(exact_at_, plan_.exact);
  put(jobs_at_, plan_.jobs);
  put(counts_at_, plan_.counts);
  return CudaStatus(cudaMemcpyAsync(device_data_.data(), host_data_.data(), static_cast<size_t>(arrays.bytes),
                                    cudaMemcpyHostToDevice, device_.stream()),
                    "uploading a step's numbers");
}

Status StepBatch::UploadTables(std::span<const BatchSlice> slices) {
  size_t longest = 1;
  for (const BatchSlice& slice : slices) longest = std::max(longest, cache_.blocks(slice.sequence, 0).size());
  table_stride_ = PowerOfTwo(static_cast<int64_t>(longest));
  table_rows_ = static_cast<int64_t>(slices.size());
  // Entries past a sequence's pages, and of pages given back, are block 0: a library kernel may look at them.
  std::vector<int32_t> tables(static_cast<size_t>(cache_.groups() * table_rows_ * table_stride_), 0);
  auto row = tables.begin();
  for (int group = 0; group < cache_.groups(); ++group) {
    for (const BatchSlice& slice : slices) {
      const std::span<const int32_t> blocks = cache_.blocks(slice.sequence, group);
      std::transform(blocks.begin(), blocks.end(), row, [](int32_t block) { return std::max(block, 0); });
      row += table_stride_;
    }
  }
  if (tables == uploaded_tables_) return Status::Ok();
  uploaded_tables_.clear();  // where what follows fails, the device has none
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
