// See device.h.
#include "src/cuda/device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

Result<std::unique_ptr<Device>> Device::Open(int index) {
  std::unique_ptr<Device> device(new Device);
  BGTQ_ASSIGN_OR_RETURN(device->limits_, ReadDeviceLimits(index));
  cudaDeviceProp properties;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, index), "reading the device"));
  device->name_ = fmt::format("{}, {:.1f} GiB", properties.name,
                              static_cast<double>(properties.totalGlobalMem) / (1 << 30));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "creating a stream"));
  return device;
}

Device::~Device() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Status Device::Reserve(DeviceBuffer& buffer, int64_t bytes, const std::string& what) {
  if (buffer.bytes() >= bytes) return Status::Ok();
  if (buffer.bytes() > 0) {
    BGTQ_RETURN_IF_ERROR(Synchronize());  // kernels may still use the old memory
    buffer = DeviceBuffer();
    NoteMoved();
  }
  BGTQ_ASSIGN_OR_RETURN(buffer, DeviceBuffer::Allocate(bytes, what));
  return Status::Ok();
}

Status Device::Synchronize() { return CudaStatus(cudaStreamSynchronize(stream_), "running a step"); }

}  // namespace blockgtq::cuda
