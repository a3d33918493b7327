#include "src/cuda/flash_attention_numbers.h"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

__global__ void SetNumbersKernel(PrefillNumbers numbers, PrefillNumbers* at) { *at = numbers; }

}  // namespace

Status LaunchSetNumbers(const PrefillNumbers& numbers, PrefillNumbers* at, CUstream_st* stream) {
  return Launch("set numbers", SetNumbersKernel, 1, 1, 0, false, stream, numbers, at);
}

}  // namespace blockgtq::cuda
