// Two shapes of the same sum: few sequences (a block a query head, latency matters: transform and bounds are
// loaded before the attention kernel ends) and many (a block a KV head, un-rotation on tensor cores).
#include "src/cuda/combine.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr float kNoLogit = -1e30f;
constexpr float kLog2Levels = 7.994353437f;  // log2(255): the attention kernel's sums count P in 255ths

__device__ __forceinline__ float CodedLogSum(float largest, float sum) {
  return sum > 0 ? largest + log2f(sum) - kLog2Levels : kNoLogit;
}

// Output `d` of a query head: the coded tokens' (already normalised, log-sum-exp `coded_log_sum`, base 2) and
// the exact tiles' by their weights.
__device__ __forceinline__ __half MergeExact(const DecodeParams& p, int head_dim, int pair, int column, int d,
                                             float coded, float coded_log_sum) {
  if (p.exact_tiles == 0) return __float2half(coded);
  const size_t first = static_cast<size_t>(pair) * p.exact_tiles;
  float top = coded_log_sum;
  for (int i = 0; i < p.exact_tiles; ++i) {
    top = fmaxf(top, p.exact_state[(first + i) * kMaxQueryHeads + column].largest);
  }
  float weight = coded_log_sum > kNoLogit ? Exp2(coded_log_sum - top) : 0.0f;
  float sum = coded * weight;
  for (int i = 0; i < p.exact_tiles; ++i) {
    const size_t at = (first + i) * kMaxQueryHeads + column;
    const SoftmaxState state = p.exact_state[at];
    if (state.sum == 0) continue;  // a tile without tokens has no partial
    const float factor = Exp2(state.largest - top);
    weight = fmaf(state.sum, factor, weight);
    sum = fmaf(p.exact_partial[at * head_dim + d], factor, sum);
  }
  return __float2half(weight > 0 ? sum / weight : 0.0f);
}

// ---- a block a query head
constexpr int kThreads = kMaxWholeSplits, kWarps = kThreads / 32;

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) CombineKernel(const __grid_constant__ DecodeParams p) {
  constexpr int kSlices = kThreads / kHeadDim;  // threads that share a dim
  constexpr int kHeld = 9;                      // partials in flight a thread
  constexpr int kPairs = kHeadDim / 2, kRowSlices = kThreads / kPairs, kRows = kHeadDim / kRowSlices;
  __shared__ float weight[kThreads];
  __shared__ __align__(16) float reduce[kRowSlices][kHeadDim];
  __shared__ float rotated[kHeadDim], warp_max[kWarps], warp_sum[kWarps];
  const int t = threadIdx.x, pair = blockIdx.x / p.query_heads, column = blockIdx.x % p.query_heads;
  const int h = pair % p.kv_heads;
  const WorkerSpan span = p.spans[pair];
  const int n = span.count;
  // The transform's rows of this thread: [kRows] rotated dims x two output dims.
  const int column_pair = t % kPairs, row_slice = t / kPairs;
  const __half2* matrix =
      reinterpret_cast<const __half2*>(p.value_rows + static_cast<size_t>(h) * kHeadDim * kHeadDim);
  __half2 row[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) row[i] = matrix[(row_slice * kRows + i) * kPairs + column_pair];
  const float value_scale = p.heads[h].header.value_scale;
  const int d = t % kHeadDim, slice = t / kHeadDim;
  bool live = false;  // a worker without tiles left its slot as it was
  if (t < n) live = p.ranges[span.first + t].begin < p.ranges[span.first + t].end;
  weight[t] = 0;
  WaitForPreviousKernel();
  LetNextKernelStart();
  __half* out = reinterpret_cast<__half*>(p.out) + static_cast<size_t>(blockIdx.x) * kHeadDim;
  if (n == 0) {
    if (t < kHeadDim) out[t] = MergeExact(p, kHeadDim, pair, column, t, 0.0f, kNoLogit);
    return;
  }
  const size_t first = static_cast<size_t>(pair) + span.first;
  const float* partial = p.partial + (first * kMaxQueryHeads + column) * kHeadDim + d;
  constexpr size_t kStride = static_cast<size_t>(kMaxQueryHeads) * kHeadDim;
  float held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    held[i] = 0;
    if (slice + i * kSlices < n) held[i] = __ldcg(partial + (slice + i * kSlices) * kStride);
  }
  SoftmaxState state = {kNoLogit, 0};
  if (live) {
    const float2 s =
        __ldcg(reinterpret_cast<const float2*>(p.partial_state) + (first + t) * kMaxQueryHeads + column);
    state = {s.x, s.y};
  }
  float top = state.largest;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  if ((t & 31) == 0) warp_max[t >> 5] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) top = fmaxf(top, warp_max[i]);
  const float factor = live ? Exp2(state.largest - top) : 0.0f;
  weight[t] = factor;
  float total = state.sum * factor;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
  if ((t & 31) == 0) warp_sum[t >> 5] = total;
  __syncthreads();
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += warp_sum[i];

  // Slots of weight 0 may hold anything, NaN too: they are skipped, not multiplied.
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = slice + i * kSlices;
    const float w = at < n ? weight[at] : 0.0f;
    if (w != 0) sum = fmaf(held[i], w, sum);
  }
#pragma unroll 8
  for (int at = slice + kHeld * kSlices; at < n; at += kSlices) {
    if (weight[at] != 0) sum = fmaf(__ldcg(partial + at * kStride), weight[at], sum);
  }
  reduce[slice][d] = sum;
  __syncthreads();
  if (t < kHeadDim) {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) all += reduce[i][t];
    rotated[t] = total > 0 ? all / total * value_scale : 0.0f;
  }
  __syncthreads();
  float x = 0, y = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float2 m = __half22float2(row[i]);
    const float v = rotated[row_slice * kRows + i];
    x = fmaf(m.x, v, x);
    y = fmaf(m.y, v, y);
  }
  *reinterpret_cast<float2*>(&reduce[row_slice][2 * column_pair]) = make_float2(x, y);
  __syncthreads();
  if (t < kHeadDim) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kRowSlices; ++i) value += reduce[i][t];
    out[t] = MergeExact(p, kHeadDim, pair, column, t, value, CodedLogSum(top, total));
  }
}

// ---- a block a (sequence, KV head)
constexpr int kHeadThreads = 256;

template <int kHeadDim>
__global__ void __launch_bounds__(kHeadThreads)
    CombineByKvHeadKernel(const __grid_constant__ DecodeParams p) {
  constexpr int kSteps = kHeadDim / kUnitWidth;
  extern __shared__ float weights[];  // [query_heads][n]
  __shared__ __align__(16) __half rotated[kMaxQueryHeads][kHeadDim + 8];
  __shared__ float inverse[kMaxQueryHeads], log_sum[kMaxQueryHeads];
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, g = lane >> 2, tq = lane & 3;
  const int pair = blockIdx.x, h = pair % p.kv_heads;
  const WorkerSpan span = p.spans[pair];
  const int n = span.count;
  uint4 fragment[kSteps];
  const uint4* matrix = reinterpret_cast<const uint4*>(p.value_fragments) +
                        (static_cast<size_t>(h) * kSteps + min(warp, kSteps - 1)) * kSteps * 32 + lane;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) fragment[k] = __ldg(matrix + k * 32);
  const float value_scale = p.heads[h].header.value_scale;
  WaitForPreviousKernel();
  LetNextKernelStart();
  const size_t first = static_cast<size_t>(pair) + span.first;
  if (warp < p.query_heads) {  // weights of one head
    const SoftmaxState* states = p.partial_state + first * kMaxQueryHeads + warp;
    const auto live = [&](int i) { return p.ranges[span.first + i].begin < p.ranges[span.first + i].end; };
    float top = kNoLogit;
    for (int i = lane; i < n; i += 32) {
      if (live(i)) top = fmaxf(top, states[i * kMaxQueryHeads].largest);
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    float total = 0;
    for (int i = lane; i < n; i += 32) {
      float factor = 0;
      if (live(i)) {
        factor = Exp2(states[i * kMaxQueryHeads].largest - top);
        total += states[i * kMaxQueryHeads].sum * factor;
      }
      weights[warp * n + i] = factor;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
    if (lane == 0) {
      inverse[warp] = total > 0 ? value_scale / total : 0.0f;
      log_sum[warp] = CodedLogSum(top, total);
    }
  }
  __syncthreads();
  for (int i = t; i < kMaxQueryHeads * kHeadDim / 4; i += kHeadThreads) {
    const int column = i / (kHeadDim / 4), d = i % (kHeadDim / 4) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    float scale = 0;
    if (column < p.query_heads) {
      scale = inverse[column];
      for (int c = 0; c < n; ++c) {
        const float w = weights[column * n + c];
        if (w == 0) continue;
        const float4 o = *reinterpret_cast<const float4*>(
            p.partial + ((first + c) * kMaxQueryHeads + column) * kHeadDim + d);
        sum.x = fmaf(o.x, w, sum.x);
        sum.y = fmaf(o.y, w, sum.y);
        sum.z = fmaf(o.z, w, sum.z);
        sum.w = fmaf(o.w, w, sum.w);
      }
    }
    *reinterpret_cast<__half2*>(&rotated[column][d]) = __floats2half2_rn(sum.x * scale, sum.y * scale);
    *reinterpret_cast<__half2*>(&rotated[column][d + 2]) = __floats2half2_rn(sum.z * scale, sum.w * scale);
  }
  __syncthreads();
  if (warp >= kSteps) return;
  float c[4] = {0, 0, 0, 0};
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    MmaF16(c, fragment[k], *reinterpret_cast<const uint32_t*>(&rotated[g][16 * k + 2 * tq]),
           *reinterpret_cast<const uint32_t*>(&rotated[g][16 * k + 2 * tq + 8]));
  }
  __half* out = reinterpret_cast<__half*>(p.out) + static_cast<size_t>(pair) * p.query_heads * kHeadDim;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int column = 2 * tq + (e & 1), d = warp * kUnitWidth + g + 8 * (e >> 1);
    if (column < p.query_heads) {
      out[column * kHeadDim + d] = MergeExact(p, kHeadDim, pair, column, d, c[e], log_sum[column]);
    }
  }
}

}  // namespace

Status LaunchCombine(const DecodeParams& params, bool by_kv_head, CUstream_st* stream) {
  const int64_t pairs = static_cast<int64_t>(params.batch) * params.kv_heads;
  if (!by_kv_head) {
    return Launch("combine", params.head_dim == 64 ? CombineKernel<64> : CombineKernel<128>,
                  pairs * params.query_heads, kThreads, 0, true, stream, params);
  }
  auto* kernel = params.head_dim == 64 ? CombineByKvHeadKernel<64> : CombineByKvHeadKernel<128>;
  const size_t shared_bytes = sizeof(float) * params.query_heads * params.workers;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shared_bytes)),
                                  "combine's shared memory"));
  return Launch("combine", kernel, pairs, kHeadThreads, shared_bytes, true, stream, params);
}

}  // namespace blockgtq::cuda
