// Which of the compiled architectures a device runs.
#include <atomic>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

// Only its attributes are of use.
__global__ void ProbeKernel() {}

}  // namespace

bool HasSm90Code() {
  enum : int8_t { kUnknown, kNo, kYes };
  constexpr int kDevices = 64;
  static std::atomic<int8_t> known[kDevices] = {};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  if (const int8_t answer = known[device]; answer != kUnknown) return answer == kYes;
  // The version of the PTX that the code was made from: code of sm_80 can run on later GPUs.
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, ProbeKernel) != cudaSuccess) return false;
  const bool yes = attributes.ptxVersion >= 90;
  known[device] = yes ? kYes : kNo;
  return yes;
}

}  // namespace blockgtq::cuda
