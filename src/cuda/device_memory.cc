// Allocation of device and pinned memory with errors that say what was wanted and what is free.
#include "src/cuda/device_memory.h"

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

Status CheckSize(int64_t bytes, const std::string& what) {
  if (bytes >= 0) return Status::Ok();
  return Status(ErrorCode::kInvalidArgument, what + ": a negative size of memory");
}

}  // namespace

Result<DeviceMemoryInfo> ReadDeviceMemory() {
  size_t free = 0, total = 0;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "reading the device's free memory"));
  return DeviceMemoryInfo{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

DeviceBuffer::~DeviceBuffer() {
  if (data_) (void)cudaFree(data_);
}

Result<DeviceBuffer> DeviceBuffer::Allocate(int64_t bytes, const std::string& what) {
  BGTQ_RETURN_IF_ERROR(CheckSize(bytes, what));
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    BGTQ_ASSIGN_OR_RETURN(const DeviceMemoryInfo memory, ReadDeviceMemory());
    return Status(ErrorCode::kOutOfMemory, what + ": " + std::to_string(bytes) +
                                               " bytes of GPU memory wanted, " + std::to_string(memory.free) +
                                               " of " + std::to_string(memory.total) + " are free");
  }
  BGTQ_RETURN_IF_ERROR(CudaStatus(error, what.c_str()));
  buffer.data_ = static_cast<uint8_t*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_) (void)cudaFreeHost(data_);
}

Result<PinnedBuffer> PinnedBuffer::Allocate(int64_t bytes, const std::string& what) {
  BGTQ_RETURN_IF_ERROR(CheckSize(bytes, what));
  PinnedBuffer buffer;
  if (bytes == 0) return buffer;
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return Status(ErrorCode::kOutOfMemory,
                  what + ": " + std::to_string(bytes) + " bytes of pinned host memory wanted");
  }
  BGTQ_RETURN_IF_ERROR(CudaStatus(error, what.c_str()));
  buffer.data_ = static_cast<uint8_t*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace blockgtq::cuda
