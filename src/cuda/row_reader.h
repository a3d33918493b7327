// Rows of activations on their way out of a pass: gathered on the device, read by the host, or their largest
// elements alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "blockgtq/status.h"
#include "src/cuda/cuda_activations.h"
#include "src/cuda/device.h"

namespace blockgtq::cuda {

/// Errors of all: kOutOfMemory; what a kernel or copy of the stream ended with.
class RowReader {
 public:
  explicit RowReader(Device& device) : device_(device) {}

  /// Row i of y, which takes x's form, becomes row rows[i] of x. Only launches where the rows are those of
  /// the last call.
  Status Gather(const CudaActivations& x, std::span<const int64_t> rows, CudaActivations& y);
  /// out [x.cols()]: one row, of either form. Waits for the stream.
  Status Read(const CudaActivations& x, int64_t row, float* out);
  /// out [rows, x.cols()]: the first rows of x, which is full. Waits for the stream.
  Status ReadFull(const CudaActivations& x, int64_t rows, float* out) {
    return ReadFloats(x.full(), rows * x.cols(), out);
  }
  /// out[i]: where the largest element of row i of x is, which is full. Waits for the stream.
  Status Largest(const CudaActivations& x, std::span<int32_t> out);

 private:
  Status UploadIndices(std::span<const int64_t> rows);
  Status ReadFloats(const float* from, int64_t count, float* out);

  Device& device_;
  DeviceBuffer indices_, widened_, largest_;
  std::vector<int32_t> uploaded_indices_;
};

}  // namespace blockgtq::cuda
