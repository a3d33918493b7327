// How much shared memory a launch may ask for.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

/// Bytes that a block may have on the current device; 0 where it can't be asked.
inline int SharedMemoryLimit() {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
    return 0;
  return value;
}

/// Lets launches of `kernel` have `bytes`, and all others what the device has: a captured graph may hold
/// launches of another size. kernel: without static shared memory. what: "attention over latents: a tile of
/// 640 coordinates". Errors: kUnsupported where a block can't have so many; a CUDA error.
template <typename Kernel>
Status AllowSharedMemory(Kernel kernel, int bytes, const std::string& what) {
  const int limit = SharedMemoryLimit();
  if (bytes > limit) {
    return Status(ErrorCode::kUnsupported, what + " needs " + std::to_string(bytes) +
                                               " bytes of shared memory, the GPU has " +
                                               std::to_string(limit));
  }
  return CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit),
                    "shared memory of a kernel");
}

}  // namespace blockgtq::cuda
