// The key mean's part of the logits, which the codes leave out.
#pragma once

#include "src/cuda/decode_params.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

/// logit += q' R_t mu: R_t = R_64tile R_r, so the queries are rotated back by the tile's angle (exact modular
/// arithmetic in 2^-32 turns: no drift) and multiplied with the table of R_r mu.
/// logit, block, kBlocks: as AttendTile has them. phase [head_dim / 2]: scratch of this warp
template <int kHeadDim, bool kFew, int kBlocks>
__device__ __forceinline__ void MeanBias(float (&logit)[2 * kBlocks * (kFew ? 1 : 2)],
                                         const HeadHeader& header, int tile, int block,
                                         const uint32_t (&step)[kHeadDim / 64], float2* phase,
                                         const float4* queries, const uint4* table) {
  constexpr int kHeads = kFew ? 1 : 2;
  const int lane = threadIdx.x & 31, tq = lane & 3;
#pragma unroll
  for (int i = 0; i < kHeadDim / 64; ++i) {
    const uint32_t turns = step[i] * static_cast<uint32_t>(tile);
    const float angle = static_cast<float>(static_cast<int>(turns)) * (6.283185307179586f / 4294967296.0f);
    phase[lane + 32 * i] = make_float2(__cosf(angle), __sinf(angle));
  }
  __syncwarp();
  float bias[4 * kBlocks] = {};
#pragma unroll 1
  for (int u = 0; u < header.mean_units; ++u) {
    const int pair = header.mean_unit[u] * 8 + tq;
    const float2 z0 = phase[pair], z1 = phase[pair + 4];
    const float4 q = queries[u * 32];
    const __half2 b0 = __floats2half2_rn(q.x * z0.x + q.y * z0.y, q.y * z0.x - q.x * z0.y);
    const __half2 b1 = __floats2half2_rn(q.z * z1.x + q.w * z1.y, q.w * z1.x - q.z * z1.y);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      MmaF16(bias + 4 * m, table[(u * 4 + (kBlocks == 4 ? m : block)) * 32],
             *reinterpret_cast<const uint32_t*>(&b0), *reinterpret_cast<const uint32_t*>(&b1));
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * kBlocks; ++i) {
#pragma unroll
    for (int e = 0; e < kHeads; ++e) logit[i * kHeads + e] += bias[2 * i + e];
  }
}

}  // namespace blockgtq::cuda
