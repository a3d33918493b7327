// Dequantises rows on the host and uploads them through two pinned slices.
#include "src/cuda/matmul_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "src/core/half.h"
#include "src/core/thread_pool.h"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kSliceBytes = int64_t{32} << 20;
constexpr uint16_t kHalfExponent = 0x7c00;  // all ones: NaN or infinity

// One row in fp16. scratch: [cols]. Returns the first column that is not finite, or -1.
int64_t RowToHalf(const TensorView& tensor, int64_t row, float* scratch, uint16_t* out) {
  if (tensor.type == TensorType::kF16) {
    std::memcpy(out, tensor.data + row * tensor.row_bytes(), static_cast<size_t>(tensor.cols) * 2);
  } else {
    DequantizeRow(tensor, row, scratch);
    for (int64_t i = 0; i < tensor.cols; ++i) out[i] = FloatToHalf(scratch[i]);
  }
  for (int64_t i = 0; i < tensor.cols; ++i) {
    if ((out[i] & kHalfExponent) == kHalfExponent) return i;
  }
  return -1;
}

}  // namespace

struct WeightUploader::Impl {
  explicit Impl(int threads) : pool(threads) {}
  ~Impl() {
    for (cudaEvent_t event : copied) {
      if (event) (void)cudaEventDestroy(event);
    }
    if (stream) (void)cudaStreamDestroy(stream);
  }

  ThreadPool pool;
  PinnedBuffer slices[2];
  cudaEvent_t copied[2] = {};  // the slice may be written again
  cudaStream_t stream = nullptr;

  // Uploads `rows` rows of `row_bytes` bytes. fill(row, worker, out) makes one; it may not fail.
  template <typename Fill>
  Result<DeviceBuffer> Upload(int64_t rows, int64_t row_bytes, const std::string& name, Fill fill) {
    BGTQ_ASSIGN_OR_RETURN(DeviceBuffer out, DeviceBuffer::Allocate(rows * row_bytes, "weight " + name));
    const int64_t slice_rows = kSliceBytes / std::max<int64_t>(row_bytes, 1);
    if (slice_rows == 0) {
      return Status(ErrorCode::kUnsupported, "weight " + name + ": rows of " + std::to_string(row_bytes) +
                                                 " bytes; they may have " + std::to_string(kSliceBytes));
    }
    int slice = 0;
    for (int64_t first = 0; first < rows; first += slice_rows, slice ^= 1) {
      const int64_t count = std::min(slice_rows, rows - first);
      BGTQ_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(copied[slice]), "uploading weights"));
      uint8_t* pinned = slices[slice].data();
      const int64_t tasks = std::min<int64_t>(count, int64_t{8} * pool.threads());
      pool.Run(tasks, [&](int64_t task, int worker) {
        for (int64_t r = count * task / tasks; r < count * (task + 1) / tasks; ++r) {
          fill(first + r, worker, pinned + r * row_bytes);
        }
      });
      BGTQ_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(out.data() + first * row_bytes, pinned,
                                     static_cast<size_t>(count * row_bytes), cudaMemcpyHostToDevice, stream),
                     "uploading weights"));
      BGTQ_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(copied[slice], stream), "uploading weights"));
    }
    BGTQ_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "uploading weights"));
    return out;
  }
};

WeightUploader::WeightUploader() = default;
WeightUploader::~WeightUploader() = default;

Result<std::unique_ptr<WeightUploader>> WeightUploader::Create(int threads) {
  std::unique_ptr<WeightUploader> uploader(new WeightUploader());
  uploader->impl_ = std::make_unique<Impl>(threads);
  Impl& impl = *uploader->impl_;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&impl.stream, cudaStreamNonBlocking),
                                  "making the stream that uploads weights"));
  for (int i = 0; i < 2; ++i) {
    BGTQ_ASSIGN_OR_RETURN(impl.slices[i], PinnedBuffer::Allocate(kSliceBytes, "uploading weights"));
    BGTQ_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&impl.copied[i], cudaEventDisableTiming),
                                    "making the event that uploads weights"));
  }
  return uploader;
}

Result<DeviceBuffer> WeightUploader::Matrix(const TensorView& tensor, const std::string& name) {
  std::vector<std::vector<float>> scratch(static_cast<size_t>(impl_->pool.threads()));
  for (auto& s : scratch) s.resize(static_cast<size_t>(tensor.cols));
  std::atomic<int64_t> bad = -1;  // an element that is not finite
  auto out = impl_->Upload(tensor.rows, tensor.cols * 2, name, [&](int64_t row, int worker, uint8_t* to) {
    const int64_t column =
        RowToHalf(tensor, row, scratch[static_cast<size_t>(worker)].data(), reinterpret_cast<uint16_t*>(to));
    if (column >= 0) bad = row * tensor.cols + column;
  });
  if (out.ok() && bad >= 0) {
    return Status(ErrorCode::kUnsupported, "weight " + name + ": row " + std::to_string(bad / tensor.cols) +
                                               ", column " + std::to_string(bad % tensor.cols) +
                                               " is not finite in fp16, which the GPU computes in");
  }
  return out;
}

Result<DeviceBuffer> WeightUploader::Vector(const TensorView& tensor, const std::string& name) {
  return impl_->Upload(tensor.rows, tensor.cols * 4, name, [&](int64_t row, int, uint8_t* to) {
    DequantizeRow(tensor, row, reinterpret_cast<float*>(to));
  });
}

}  // namespace blockgtq::cuda
