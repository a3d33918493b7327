// What a step's kernels must know about its tokens: planned on the host from the cache's books, uploaded
// once, read by every layer. A step whose sequences all have one new token has the same shape each time, so a
// captured graph can run it again with new numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "blockgtq/status.h"
#include "src/backend/backend.h"
#include "src/cuda/device.h"
#include "src/cuda/step_plan.h"

namespace blockgtq::cuda {

class StepBatch {
 public:
  StepBatch(Device& device, KvCache& cache) : device_(device), cache_(cache) {}

  /// Plans the step and starts its upload. Errors: kOutOfMemory.
  Status Build(const StepInput& input);

  /// Uploads a step's tokens alone, for attention that plans nothing on the GPU: decode() is false and there
  /// are no segments. Errors: kOutOfMemory.
  Status BuildTokens(std::span<const int32_t> tokens);

  /// One row of every sequence.
  bool decode() const { return plan_.decode; }
  int64_t rows() const { return rows_; }
  std::span<const Segment> segments() const { return plan_.segments; }

  // Device memory, an entry a row.
  const int32_t* tokens() const { return At<int32_t>(tokens_at_); }
  const RowTarget* targets() const { return At<RowTarget>(targets_at_); }
  const int32_t* coded_end() const { return At<int32_t>(coded_at_); }  // codes that the row attends to
  const int32_t* length() const { return At<int32_t>(length_at_); }    // tokens that it sees, itself included
  const uint8_t* const* exact() const { return At<const uint8_t*>(exact_at_); }
  // An entry a job.
  const EncodeJob* jobs(const Segment& s) const { return At<EncodeJob>(jobs_at_) + s.first_job; }
  const int32_t* job_count(const Segment& s) const { return At<int32_t>(counts_at_) + s.counter; }
  /// [table rows][table_stride()] block ids in a group of layers (KvCache::groups); the stride grows in
  /// powers of two.
  const int32_t* block_table(int group, int64_t table_row) const {
    return tables_.As<int32_t>() + (group * table_rows_ + table_row) * table_stride_;
  }
  int64_t table_stride() const { return table_stride_; }

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(device_data_.data() + offset);
  }
  Status Upload(std::span<const int32_t> tokens);
  Status UploadTables(std::span<const BatchSlice> slices);

  Device& device_;
  KvCache& cache_;
  int64_t rows_ = 0;
  StepPlan plan_;

  PinnedBuffer host_data_, host_tables_;
  DeviceBuffer device_data_, tables_;
  int64_t tokens_at_ = 0, targets_at_ = 0, coded_at_ = 0, length_at_ = 0, exact_at_ = 0, jobs_at_ = 0,
          counts_at_ = 0;
  int64_t table_stride_ = 0, table_rows_ = 0;
  std::vector<int32_t> uploaded_tables_;  // what the device has
};

}  // namespace blockgtq::cuda
