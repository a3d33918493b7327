// See device_cache_memory.h.
#include "src/cuda/device_cache_memory.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

Result<std::byte*> DeviceCacheMemory::Allocate(int64_t bytes, const std::string& what) {
  BGTQ_ASSIGN_OR_RETURN(const DeviceMemoryInfo info, ReadDeviceMemory());
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes)); error != cudaSuccess) {
    (void)cudaGetLastError();
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("{}: {} bytes wanted, {} of {} free on the GPU ({}): use fewer tokens (-c), a "
                              "smaller model, or --device cpu",
                              what, bytes, info.free, info.total, cudaGetErrorString(error)));
  }
  Clear(static_cast<std::byte*>(data), bytes);
  return static_cast<std::byte*>(data);
}

void DeviceCacheMemory::Free(std::byte* data, int64_t) {
  device_.NoteMoved();
  (void)cudaFree(data);  // waits for the device
}

void DeviceCacheMemory::Clear(std::byte* data, int64_t bytes) {
  (void)cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), device_.stream());
}

Status DeviceCacheMemory::Copy(std::byte* to, const std::byte* from, int64_t bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, device_.stream()),
      "copying a page");
}

Status DeviceCacheMemory::Read(std::byte* host, const std::byte* from, int64_t bytes) {
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, device_.stream()),
      "reading the cache"));
  return device_.Synchronize();
}

Status DeviceCacheMemory::Write(std::byte* to, const std::byte* host, int64_t bytes) {
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, device_.stream()),
      "writing the cache"));
  return device_.Synchronize();
}

}  // namespace blockgtq::cuda
