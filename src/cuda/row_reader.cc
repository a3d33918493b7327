// See row_reader.h.
#include "src/cuda/row_reader.h"

#include <cuda_runtime.h>

#include <utility>

#include "src/cuda/argmax.h"
#include "src/cuda/elementwise.h"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

Status RowReader::Gather(const CudaActivations& x, std::span<const int64_t> rows, CudaActivations& y) {
  const int64_t count = static_cast<int64_t>(rows.size());
  BGTQ_RETURN_IF_ERROR(UploadIndices(rows));
  BGTQ_RETURN_IF_ERROR(x.is_full() ? y.BecomeFull() : y.BecomeHalves(x.has_low(), x.scale()));
  const auto gather = [&](const void* from, int64_t element_bytes, void* to) {
    return LaunchGatherRows(from, x.cols() * element_bytes, indices_.As<int32_t>(), count, to, false,
                            device_.stream());
  };
  if (x.is_full()) return gather(x.full(), sizeof(float), y.full());
  BGTQ_RETURN_IF_ERROR(gather(x.high(), sizeof(uint16_t), y.high()));
  return x.has_low() ? gather(x.low(), sizeof(uint16_t), y.low()) : Status::Ok();
}

Status RowReader::Read(const CudaActivations& x, int64_t row, float* out) {
  const int64_t offset = row * x.cols(), bytes = x.cols() * static_cast<int64_t>(sizeof(float));
  if (!x.is_halves()) return ReadFloats(x.full() + offset, x.cols(), out);
  BGTQ_RETURN_IF_ERROR(device_.Reserve(widened_, bytes, "a row of activations"));
  BGTQ_RETURN_IF_ERROR(LaunchWiden(x.high() + offset, x.has_low() ? x.low() + offset : nullptr, x.cols(),
                                   widened_.As<float>(), false, device_.stream()));
  return ReadFloats(widened_.As<float>(), x.cols(), out);
}

Status RowReader::Largest(const CudaActivations& x, std::span<int32_t> out) {
  const int64_t bytes = static_cast<int64_t>(out.size_bytes());
  BGTQ_RETURN_IF_ERROR(device_.Reserve(largest_, bytes, "chosen tokens"));
  BGTQ_RETURN_IF_ERROR(LaunchArgMax(x.full(), static_cast<int64_t>(out.size()), x.cols(),
                                    largest_.As<int32_t>(), device_.stream()));
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(out.data(), largest_.data(), out.size_bytes(),
                                                  cudaMemcpyDeviceToHost, device_.stream()),
                                  "reading chosen tokens"));
  return device_.Synchronize();
}

Status RowReader::UploadIndices(std::span<const int64_t> rows) {
  const int64_t bytes = static_cast<int64_t>(rows.size() * sizeof(int32_t));
  std::vector<int32_t> narrow(rows.begin(), rows.end());
  if (narrow == uploaded_indices_) return Status::Ok();
  uploaded_indices_.clear();  // until the new ones are there
  BGTQ_RETURN_IF_ERROR(device_.Reserve(indices_, bytes, "row numbers"));
  // Pageable memory: the call returns once the numbers have been taken.
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(indices_.data(), narrow.data(), static_cast<size_t>(bytes),
                                                  cudaMemcpyHostToDevice, device_.stream()),
                                  "uploading row numbers"));
  uploaded_indices_ = std::move(narrow);
  return Status::Ok();
}

Status RowReader::ReadFloats(const float* from, int64_t count, float* out) {
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(out, from, static_cast<size_t>(count) * sizeof(float),
                                                  cudaMemcpyDeviceToHost, device_.stream()),
                                  "reading rows"));
  return device_.Synchronize();
}

}  // namespace blockgtq::cuda
