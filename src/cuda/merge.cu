// A thread merges 8 dims: one 16-byte load of each part.
#include <cuda_fp16.h>

#include <cmath>

#include "src/cuda/launch.cuh"
#include "src/cuda/merge.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256, kDims = 8;

// Blocks take whole rows (of rows x heads), so that a log sum that is also a part's is read by all its
// threads before one of them replaces it.
__global__ void __launch_bounds__(kThreads) MergeKernel(AttentionPart a, AttentionPart b, int64_t rows,
                                                        int row_threads, uint16_t* out, float* log_sum) {
  const int rows_a_block = kThreads / row_threads, local = threadIdx.x / row_threads;
  const int64_t row = blockIdx.x * static_cast<int64_t>(rows_a_block) + local;  // of rows x heads
  const int chunk = threadIdx.x % row_threads;
  const bool active = local < rows_a_block && row < rows;
  WaitForPreviousKernel();
  LetNextKernelStart();
  float sum_a = -INFINITY, sum_b = -INFINITY;
  if (active) sum_a = a.log_sum[row], sum_b = b.log_sum[row];
  __syncthreads();
  if (!active) return;
  const float top = fmaxf(sum_a, sum_b);
  float weight_a = 0, weight_b = 0;
  if (top > -INFINITY) weight_a = expf(sum_a - top), weight_b = expf(sum_b - top);
  const float total = weight_a + weight_b, inverse = total > 0 ? 1 / total : 0.0f;
  weight_a *= inverse;
  weight_b *= inverse;
  const int64_t at = row * row_threads + chunk;
  uint4 part_a = {}, part_b = {};
  if (weight_a > 0) part_a = reinterpret_cast<const uint4*>(a.out)[at];
  if (weight_b > 0) part_b = reinterpret_cast<const uint4*>(b.out)[at];
  uint4 merged;
  const auto* halves_a = reinterpret_cast<const __half2*>(&part_a);
  const auto* halves_b = reinterpret_cast<const __half2*>(&part_b);
  auto* halves = reinterpret_cast<__half2*>(&merged);
#pragma unroll
  for (int i = 0; i < kDims / 2; ++i) {
    const float2 x = __half22float2(halves_a[i]), y = __half22float2(halves_b[i]);
    halves[i] = __floats2half2_rn(x.x * weight_a + y.x * weight_b, x.y * weight_a + y.y * weight_b);
  }
  reinterpret_cast<uint4*>(out)[at] = merged;
  if (log_sum != nullptr && chunk == 0) log_sum[row] = total > 0 ? top + logf(total) : -INFINITY;
}

}  // namespace

Status LaunchMerge(const AttentionPart& a, const AttentionPart& b, int64_t rows, int heads, int head_dim,
                   uint16_t* out, float* log_sum, bool early, CUstream_st* stream) {
  if (head_dim <= 0 || head_dim % kDims != 0 || head_dim > kThreads * kDims) {
    return Status(ErrorCode::kInvalidArgument,
                  "merging attention: head dim " + std::to_string(head_dim) + " is not a multiple of 8");
  }
  const int row_threads = head_dim / kDims;
  const int64_t pairs = rows * heads, rows_a_block = kThreads / row_threads;
  if (pairs == 0) return Status::Ok();
  return Launch("merge", MergeKernel, (pairs + rows_a_block - 1) / rows_a_block, kThreads, 0, early, stream,
                a, b, pairs, row_threads, out, log_sum);
}

}  // namespace blockgtq::cuda
