// q~ = (T^-T) q * scale, by fp16 tensor products; then one scale a (query head, key group) and int8 codes:
// hi, and lo = 256 times what hi left, for groups of at least LowQueryWidth() bits. One block a (sequence, KV
// head).
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_prep.h"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowStride = kMaxKeyUnits * kUnitWidth + 4;  // floats a head; the 4 spread columns over banks
// With few heads the attention kernel adds log2(scale) to the norm's exponent in fp32 at magnitude 1028: the
// scale is put on that grid before the query is rounded, so nothing is lost.
constexpr float kScaleGrid = 8192.0f;
// byte15() of the attention kernel gives 2^15 + norm byte; a 32nd of it is 1024 + log2(norm) + 4.
constexpr float kNormExponentBias = 1028.0f;
constexpr int kLowBits = 8;  // lo counts 2^-8 of hi's step

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
  return x;
}
__device__ __forceinline__ int WarpSum(int x) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
  return x;
}

// rotated [8][kRowStride]: columns past query_heads are zero. Every warp takes units warp, warp + 8 of the
// array's max_key_units (those a head lacks are zero), so that nothing waits for the head's own numbers; the
// transform is loaded before the kernel waits for the one that makes the queries.
template <int kHeadDim>
__device__ void RotateQueries(const DecodeParams& p, int b, int h, float* rotated) {
  constexpr int kSteps = kHeadDim / kUnitWidth;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, tq = lane & 3;
  const uint4* a = reinterpret_cast<const uint4*>(p.query_transform) +
                   static_cast<size_t>(h * p.max_key_units) * kSteps * 32 + lane;
  uint4 fragment[kSteps];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    fragment[k] = warp < p.max_key_units ? __ldg(a + (warp * kSteps + k) * 32) : make_uint4(0, 0, 0, 0);
  }
  WaitForPreviousKernel();
  uint32_t b0[kSteps], b1[kSteps];
  const uint32_t* q = reinterpret_cast<const uint32_t*>(
      p.queries + (static_cast<size_t>(b * p.kv_heads + h) * p.query_heads + g) * kHeadDim);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    b0[k] = g < p.query_heads ? q[8 * k + tq] : 0;
    b1[k] = g < p.query_heads ? q[8 * k + tq + 4] : 0;
  }
  for (int u = warp; u < p.max_key_units; u += kWarps) {
    if (u != warp) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) fragment[k] = __ldg(a + (u * kSteps + k) * 32);
    }
    float c[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) MmaF16(c, fragment[k], b0[k], b1[k]);
    float* out = rotated + u * kUnitWidth + g;
    out[2 * tq * kRowStride] = c[0] * p.logit_scale;
    out[(2 * tq + 1) * kRowStride] = c[1] * p.logit_scale;
    out[2 * tq * kRowStride + 8] = c[2] * p.logit_scale;
    out[(2 * tq + 1) * kRowStride + 8] = c[3] * p.logit_scale;
  }
}

// Passes before group `group` in the list of its layout.
template <bool kFew>
__device__ int PassOf(const DeviceHead& head, int group) {
  int pass = group;
  if (!kFew) {
    for (int i = 0; i < group; ++i) pass += head.group[i].width >= LowQueryWidth(false);
  }
  return pass;
}

// One warp: rounds head `column`'s query in one group.
template <bool kFew>
__device__ void RoundGroup(const DecodeParams& p, const DeviceHead& head, int group, int column,
                           const float* rotated, uint8_t* block) {
  const int lane = threadIdx.x & 31;
  const KeyGroup& info = head.group[group];
  const int dims = info.units * kUnitWidth, width = info.width;
  const bool has_low = width >= LowQueryWidth(kFew);
  const float* q = rotated + column * kRowStride + info.first_unit * kUnitWidth;
  float largest = 0;
  for (int i = lane; i < dims; i += 32) largest = fmaxf(largest, fabsf(q[i]));
  largest = WarpMax(largest);
  float step = largest > 0 ? largest * (1.0f / 127) : 1.0f, log_scale = 0;
  if (kFew) {
    log_scale = ceilf(log2f(step * info.scale) * kScaleGrid) * (1 / kScaleGrid);
    step = exp2f(log_scale) / info.scale;
  }
  int sum_high = 0, sum_low = 0;
  const int high_column = kFew ? 2 * column : column;
  for (int i = lane; i < dims; i += 32) {
    const float v = q[i] / step;
    const int high = max(-127, min(127, __float2int_rn(v)));
    sum_high += high;
    const int unit = info.first_unit + i / kUnitWidth, d = i % kUnitWidth;
    const int byte = (unit * 32 + (d >> 2)) * 4 + (d & 3);
    block[byte + high_column * 16] = static_cast<uint8_t>(high);
    if (has_low) {
      const int low = max(-127, min(127, __float2int_rn((v - high) * (1 << kLowBits))));
      sum_low += low;
      block[byte + (kFew ? (high_column + 1) * 16 : p.query_layout.lo + column * 16)] =
          static_cast<uint8_t>(low);
    }
  }
  // Codes of 4 and 5 bits stand for n + 1/2: the halves' part of the dot product is its start.
  const bool halves = width == 4 || width == 5;
  sum_high = halves ? WarpSum(sum_high) : 0;
  sum_low = halves ? WarpSum(sum_low) : 0;
  if (lane != 0) return;
  const int pass = PassOf<kFew>(head, group);
  float* scale = reinterpret_cast<float*>(block + p.query_layout.scale) + pass * 8;
  int* start = reinterpret_cast<int*>(block + p.query_layout.start) + pass * 8;
  start[high_column] = kAccumulatorStart + (sum_high >> 1);
  if (kFew) {
    scale[high_column] = log_scale - kNormExponentBias - (has_low ? kLowBits : 0);
    start[high_column + 1] = kAccumulatorStart + (sum_low >> 1);
  } else {
    scale[column] = step * info.scale;
    if (has_low) {
      scale[8 + column] = step * info.scale * (1.0f / (1 << kLowBits));
      start[8 + column] = kAccumulatorStart + (sum_low >> 1);
    }
  }
}

// The queries of the mean's frequency blocks, unrotated: lane 4 column + t holds blocks t and t + 4 of a
// unit.
template <bool kFew, int kHeadDim>
__device__ void CopyMeanQueries(const DecodeParams& p, const DeviceHead& head, int b, int h, uint8_t* block) {
  float4* mean = reinterpret_cast<float4*>(block + p.query_layout.mean);
  const int entries = head.header.mean_units * 4;
  for (int i = threadIdx.x; i < entries * p.query_heads; i += kThreads) {
    const int column = i / entries, unit = i % entries >> 2, t = i & 3;
    const __half2* q = reinterpret_cast<const __half2*>(
        p.queries + (static_cast<size_t>(b * p.kv_heads + h) * p.query_heads + column) * kHeadDim);
    const int first = head.header.mean_unit[unit] * 8 + t;
    const float2 low = __half22float2(q[first]), high = __half22float2(q[first + 4]);
    mean[unit * 32 + (kFew ? 2 * column : column) * 4 + t] = make_float4(
        low.x * p.logit_scale, low.y * p.logit_scale, high.x * p.logit_scale, high.y * p.logit_scale);
  }
}

template <int kHeadDim, bool kFew>
__global__ void __launch_bounds__(kThreads) QueryPrepKernel(const __grid_constant__ DecodeParams p) {
  LetNextKernelStart();
  extern __shared__ __align__(16) uint8_t block[];  // the query block, zero where no head is
  __shared__ __align__(16) float rotated[kMaxQueryHeads * kRowStride];
  __shared__ DeviceHead head;
  const int b = blockIdx.x / p.kv_heads, h = blockIdx.x % p.kv_heads, warp = threadIdx.x >> 5;
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(DeviceHead)) / 16; i += kThreads) {
    reinterpret_cast<uint4*>(&head)[i] = __ldg(reinterpret_cast<const uint4*>(p.heads + h) + i);
  }
  uint4* words = reinterpret_cast<uint4*>(block);
  for (int i = threadIdx.x; i < p.query_layout.bytes / 16; i += kThreads) words[i] = make_uint4(0, 0, 0, 0);
  RotateQueries<kHeadDim>(p, b, h, rotated);
  __syncthreads();
  for (int task = warp; task < head.header.groups * p.query_heads; task += kWarps) {
    RoundGroup<kFew>(p, head, task / p.query_heads, task % p.query_heads, rotated, block);
  }
  CopyMeanQueries<kFew, kHeadDim>(p, head, b, h, block);
  __syncthreads();
  uint4* out =
      reinterpret_cast<uint4*>(p.query_blocks + static_cast<size_t>(blockIdx.x) * p.query_layout.bytes);
  for (int i = threadIdx.x; i < p.query_layout.bytes / 16; i += kThreads) out[i] = words[i];
}

}  // namespace

Status LaunchQueryPrep(const DecodeParams& params, bool few_heads, bool early, CUstream_st* stream) {
  auto* kernel = params.head_dim == 64
                     ? (few_heads ? QueryPrepKernel<64, true> : QueryPrepKernel<64, false>)
                     : (few_heads ? QueryPrepKernel<128, true> : QueryPrepKernel<128, false>);
  return Launch("query preparation", kernel, static_cast<int64_t>(params.batch) * params.kv_heads, kThreads,
                params.query_layout.bytes, early, stream, params);
}

}  // namespace blockgtq::cuda
