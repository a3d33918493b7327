// The first step of encoding latents (latent_encode.cu): coordinates T (k - R_t mu) of a page's tokens, to
// global memory. Keys and transform enter fp16 tensor products in two halves each (matmul_item.h), about 22
// bits.
#pragma once

#include <cstdint>

#include "src/cuda/latent_encode.h"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/matmul_item.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda::latents {

/// Halves between rows of keys in shared memory: an odd number of 16-byte chunks. dim: a multiple of 16.
__host__ __device__ constexpr int KeyStride(int dim) { return dim + 8; }

/// Where a job's coordinates of a layer are: [64 tokens][16 most_units].
__device__ __forceinline__ float* CoordinatesOf(const LatentEncodeParams& p, int job, int layer) {
  return p.coordinates +
         (static_cast<int64_t>(job) * p.layer_count + layer) * kTileTokens * 16 * p.most_units;
}

/// Keys at slots [first, first + tokens) less their mean, in two halves; low null: none has a mean. Slots
/// outside of the job are zero.
__device__ __forceinline__ void LoadKeys(const LatentEncodeParams& p, const LatentCodec& layer,
                                         const EncodeJob& job, int first, int tokens, __half* high,
                                         __half* low) {
  const int chunks = p.head_dim / 8;
  const uint16_t* rows = p.keys;
  int64_t at = job.first_row - p.first_row - job.begin;  // of slot 0
  if (rows == nullptr) {
    rows = reinterpret_cast<const uint16_t*>(job.exact + layer.window_offset);
    at = job.position / kTileTokens % p.window_tiles * kTileTokens;
  }
  for (int i = threadIdx.x; i < tokens * chunks; i += kThreads) {
    const int t = i / chunks, chunk = i % chunks, slot = first + t;
    const bool wanted = slot >= job.begin && slot < job.end;
    uint4 words = {0, 0, 0, 0}, rest = words;
    if (wanted) words = reinterpret_cast<const uint4*>(rows + (at + slot) * p.head_dim)[chunk];
    if (low != nullptr && wanted && layer.mean != nullptr) {
      uint32_t pairs[4] = {words.x, words.y, words.z, words.w}, lows[4] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int block = 4 * chunk + j;
        if (layer.mean[2 * block] == 0 && layer.mean[2 * block + 1] == 0) continue;
        const float2 m = RotatedMean(layer.mean, block, p.steps[block], job.position + slot, p.rotary_dims,
                                     p.attention_factor);
        const float2 x = __half22float2(AsPair(pairs[j]));
        const float2 centred = {x.x - m.x, x.y - m.y};
        const __half2 rounded = __floats2half2_rn(centred.x, centred.y);
        const float2 back = __half22float2(rounded);
        pairs[j] = AsWord(rounded);
        lows[j] = AsWord(
            __floats2half2_rn((centred.x - back.x) * kLowHalfScale, (centred.y - back.y) * kLowHalfScale));
      }
      words = {pairs[0], pairs[1], pairs[2], pairs[3]};
      rest = {lows[0], lows[1], lows[2], lows[3]};
    }
    const int to = t * KeyStride(p.head_dim) + 8 * chunk;
    *reinterpret_cast<uint4*>(high + to) = words;
    if (low != nullptr) *reinterpret_cast<uint4*>(low + to) = rest;
  }
}

/// A block has 16 kRowTiles tokens and 8 units of a job's page in a layer; kMean: some layer has a mean.
/// Coordinates are those of products with a group's fragments, its factor is the reader's. A key that is not
/// finite leaves NaN in all of its token's.
template <int kRowTiles, bool kMean>
__global__ void __launch_bounds__(kThreads, 1)
    LatentCoordinatesKernel(const __grid_constant__ LatentEncodeParams p) {
  constexpr int kTokens = 16 * kRowTiles, kParts = kTileTokens / kTokens, kAhead = 4;
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  const int stride = KeyStride(p.head_dim), steps = p.head_dim / 16;
  __half* high = reinterpret_cast<__half*>(shared);
  __half* low = kMean ? high + kTokens * stride : nullptr;
  const int warp = WarpIndex(), lane = threadIdx.x & 31;
  // Blocks: units, then parts of a page, then layers, then jobs.
  const int unit_blocks = (p.most_units + kWarps - 1) / kWarps;
  int rest = static_cast<int>(blockIdx.x);
  const int unit = rest % unit_blocks * kWarps + warp;
  rest /= unit_blocks;
  const int first = rest % kParts * kTokens;
  rest /= kParts;
  const int layer_index = rest % p.layer_count, job_index = rest / p.layer_count;
  const LatentCodec layer = p.layers[layer_index];
  const bool mine = unit < layer.unit_count;
  const int64_t fragment = static_cast<int64_t>(unit) * steps * 32 + lane;
  const uint4* t_high = reinterpret_cast<const uint4*>(layer.fragments) + fragment;
  const uint4* t_low = reinterpret_cast<const uint4*>(layer.low_fragments) + fragment;
  uint4 columns[kAhead], low_columns[kAhead];
  const auto load = [&](int first_step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!mine || first_step + i >= steps) continue;
      columns[i] = t_high[32 * (first_step + i)];
      low_columns[i] = t_low[32 * (first_step + i)];
    }
  };
  load(0);  // constants: they arrive while the kernel ahead finishes
  WaitForPreviousKernel();
  LetNextKernelStart();
  if (job_index >= *p.job_count) return;
  const EncodeJob job = p.jobs[job_index];
  if (first >= job.end || first + kTokens <= job.begin) return;
  LoadKeys(p, layer, job, first, kTokens, high, low);
  __syncthreads();
  if (!mine) return;

  float sums[kRowTiles][8] = {}, low_sums[kRowTiles][8] = {};
  const int a_at = (lane & 15) * stride + 8 * (lane >> 4);
#pragma unroll 1
  for (int step = 0; step < steps; step += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (step + i >= steps) break;
      const uint4 b = columns[i], b_low = low_columns[i];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        uint32_t a[4];
        LoadMatrixRows<false>(a, high + a_at + 16 * r * stride + 16 * (step + i));
        const uint4 keys = {a[0], a[1], a[2], a[3]};
        MmaF16(sums[r], keys, b.x, b.y);
        MmaF16(sums[r] + 4, keys, b.z, b.w);
        MmaF16(low_sums[r], keys, b_low.x, b_low.y);
        MmaF16(low_sums[r] + 4, keys, b_low.z, b_low.w);
        if constexpr (kMean) {
          LoadMatrixRows<false>(a, low + a_at + 16 * r * stride + 16 * (step + i));
          MmaF16(low_sums[r], {a[0], a[1], a[2], a[3]}, b.x, b.y);
          MmaF16(low_sums[r] + 4, {a[0], a[1], a[2], a[3]}, b.z, b.w);
        }
      }
    }
    load(step + kAhead);
  }
  float* out = CoordinatesOf(p, job_index, layer_index) + 16 * unit + 2 * (lane & 3);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const int slot = first + 16 * r + (lane >> 2) + 8 * (e >> 1 & 1);
      const auto whole = [&](int i) { return fmaf(low_sums[r][i], 1.0f / kLowHalfScale, sums[r][i]); };
      *reinterpret_cast<float2*>(out + static_cast<int64_t>(slot) * 16 * p.most_units + 8 * (e >> 2)) = {
          whole(e), whole(e + 1)};
    }
  }
}

}  // namespace blockgtq::cuda::latents
