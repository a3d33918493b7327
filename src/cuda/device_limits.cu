// What decode attention may use of a device, and whether this build has code for it.
#include <string>

#include "src/cuda/decode_attention.h"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

// Whether this build has code for the (current) device; if not, which build would.
Status CheckArchitecture(const cudaDeviceProp& device) {
  cudaFuncAttributes attributes;
  const cudaError_t found = cudaFuncGetAttributes(&attributes, DecodeKernel64({}));
  if (found == cudaSuccess) return Status::Ok();
  (void)cudaGetLastError();
  const std::string capability = std::to_string(device.major) + "." + std::to_string(device.minor);
  if (device.major != 8 && device.major != 9) {
    return Status(ErrorCode::kUnsupported, std::string(device.name) + " has compute capability " +
                                               capability + "; the kernels are for 8.0 to 9.0");
  }
  return Status(
      ErrorCode::kUnsupported,
      std::string(device.name) + ", compute capability " + capability +
          ", runs none of this build's kernels (" + cudaGetErrorString(found) +
          "); build with -DBGTQ_CUDA_ARCHITECTURES=" + (device.major == 8 ? "80-real" : "90a-real"));
}

// Clusters of `blocks` blocks that the device runs at once, each block alone on its processor.
int CountClusters(int blocks, int shared_bytes) {
  const DecodeKernelPointer kernel = DecodeKernel128Value3({8, true, false, false, false});
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(256);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const bool known =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) ==
          cudaSuccess &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
      cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
  if (!known) (void)cudaGetLastError();
  return known ? clusters : 0;
}

}  // namespace

Result<DeviceLimits> ReadDeviceLimits(int device) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count <= device) {
    (void)cudaGetLastError();
    return Status(ErrorCode::kUnsupported,
                  "there is no CUDA device " + std::to_string(device) +
                      (found == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(found) + ")"));
  }
  cudaDeviceProp properties;
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device), "reading the device's limits"));
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "choosing the device"));
  BGTQ_RETURN_IF_ERROR(CheckArchitecture(properties));
  DeviceLimits limits;
  limits.processors = properties.multiProcessorCount;
  limits.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  limits.l2_bytes = properties.l2CacheSize;
  limits.clusters[0] = limits.processors;
  for (int i = 1; i < kClusterSizes && HasSm90Code(); ++i) {
    limits.clusters[i] = CountClusters(1 << i, limits.shared_bytes);
  }
  return limits;
}

}  // namespace blockgtq::cuda
