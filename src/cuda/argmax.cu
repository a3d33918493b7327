// A block a row: each thread scans its columns, the block keeps the best.
#include <math_constants.h>

#include "src/cuda/argmax.h"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kNone = -1;

struct Best {
  float value;
  int32_t index;
};

// The larger, the lower index of equals. A bad element has value +infinity and index kNone, which wins.
__device__ Best Better(Best a, Best b) {
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

__global__ void __launch_bounds__(kThreads) ArgMaxKernel(const float* x, int64_t cols, int32_t* out) {
  __shared__ Best shared[kThreads / 32];
  const float* row = x + blockIdx.x * cols;
  Best best = {-CUDART_INF_F, INT32_MAX};
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float value = row[i];
    const bool bad = !(value < CUDART_INF_F);  // NaN too
    best = Better(best, bad ? Best{CUDART_INF_F, kNone} : Best{value, static_cast<int32_t>(i)});
  }
  for (int o = 16; o > 0; o /= 2) {
    const Best other = {__shfl_xor_sync(~0u, best.value, o), __shfl_xor_sync(~0u, best.index, o)};
    best = Better(best, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) best = Better(best, shared[w]);
  out[blockIdx.x] = best.value > -CUDART_INF_F ? best.index : kNone;
}

}  // namespace

Status LaunchArgMax(const float* x, int64_t rows, int64_t cols, int32_t* out, CUstream_st* stream) {
  return Launch("argmax", ArgMaxKernel, rows, kThreads, 0, false, stream, x, cols, out);
}

}  // namespace blockgtq::cuda
