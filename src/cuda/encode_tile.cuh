// Tokens of a page on their way into the encoder: from the window or from rows to shared memory, to fragments
// of tensor products, less the mean, checked for NaN and infinity.
#pragma once

#include <cstdint>

#include "src/cuda/encode.h"
#include "src/cuda/encode_mean.cuh"
#include "src/cuda/encode_pair.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

inline constexpr int kEncodeThreads = 128, kEncodeWarps = 4;  // a warp has 16 of a page's 64 tokens
inline constexpr int kPageSlots = 64;

/// A head's keys or values.
struct EncodeSide {
  int head_index, kv_head, layer;
  bool value;
};

template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(uint32_t (&a)[4], uint32_t address) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address));
  }
}

/// The tile in shared memory: rows of 16-byte chunks, chunk c of row r at place c ^ (r % 8).
__device__ __forceinline__ uint32_t ChunkAddress(uint32_t tile, int row, int chunk, int chunks) {
  return tile + 16 * (row * chunks + (chunk ^ (row & 7)));
}

/// Starts the copy of a job's 64 tokens: keys of the window [head_dim][64], otherwise [64][head_dim].
template <int kHeadDim>
__device__ __forceinline__ void LoadTile(const EncodeParams& p, const EncodeSide& side, const EncodeJob& job,
                                         uint32_t tile) {
  constexpr int kTileHalves = kPageSlots * kHeadDim, kRowChunks = kHeadDim / 8,
                kColumnChunks = kPageSlots / 8;
  if (p.keys) {
    const uint16_t* rows = (side.value ? p.values : p.keys) + side.kv_head * kHeadDim;
    const int64_t stride = static_cast<int64_t>(p.kv_heads) * kHeadDim;
    for (int i = threadIdx.x; i < kTileHalves / 8; i += kEncodeThreads) {
      const int slot = i / kRowChunks, chunk = i % kRowChunks;
      const uint32_t to = ChunkAddress(tile, slot, chunk, kRowChunks);
      if (slot >= job.begin && slot < job.end) {
        CopyAsync(to, rows + (job.first_row + slot - job.begin) * stride + 8 * chunk);
      } else {
        ClearAsync(to, rows);
      }
    }
    return;
  }
  const int ring = static_cast<uint32_t>(job.position / kPageSlots) % static_cast<uint32_t>(p.window_tiles);
  const uint16_t* from = reinterpret_cast<const uint16_t*>(job.exact + p.window_offset[side.layer]) +
                         (static_cast<int64_t>(side.kv_head) * p.window_tiles + ring) * 2 * kTileHalves;
  if (side.value) {
    from += kTileHalves;
    for (int i = threadIdx.x; i < kTileHalves / 8; i += kEncodeThreads) {
      CopyAsync(ChunkAddress(tile, i / kRowChunks, i % kRowChunks, kRowChunks), from + 8 * i);
    }
  } else {
    for (int i = threadIdx.x; i < kTileHalves / 8; i += kEncodeThreads) {
      CopyAsync(ChunkAddress(tile, i / kColumnChunks, i % kColumnChunks, kColumnChunks), from + 8 * i);
    }
  }
}

/// A fragments of the warp's 16 tokens. step s, register r of a lane 4 g + t: token g + 8 (r % 2), dims
/// 16 s + 8 (r / 2) + 2 t and the next.
template <int kHeadDim, bool kTransposed>
__device__ __forceinline__ void LoadTokens(uint32_t (&a)[kHeadDim / 16][4], uint32_t tile, int warp,
                                           int lane) {
  const int matrix = lane >> 3, row = lane & 7;
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
    if constexpr (kTransposed) {
      LoadMatrices<true>(a[s], ChunkAddress(tile, 16 * s + row + 8 * (matrix >> 1), 2 * warp + (matrix & 1),
                                            kPageSlots / 8));
    } else {
      LoadMatrices<false>(
          a[s], ChunkAddress(tile, 16 * warp + row + 8 * (matrix & 1), 2 * s + (matrix >> 1), kHeadDim / 8));
    }
  }
}

/// k - R_t mu, where `mean` is mu turned to the page's start and `rotation` goes on to each slot.
template <int kHeadDim>
__device__ __forceinline__ void RemoveMean(uint32_t (&a)[kHeadDim / 16][4], const float2* rotation,
                                           uint32_t mean_units, const float2* mean, int warp, int lane) {
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
    if (!(mean_units >> s & 1)) continue;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int slot = 16 * warp + (lane >> 2) + 8 * (r & 1), block = 8 * s + 4 * (r >> 1) + (lane & 3);
      const float2 m = MeanAt(mean[block], rotation[slot * (kHeadDim / 2) + block]);
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&a[s][r]));
      a[s][r] = PackPair(x.x - m.x, x.y - m.y);
    }
  }
}

/// The lane's tokens (g, g + 8 of the warp's) that are not finite, bits 0 and 1: an exponent of all ones
/// times zero is NaN.
template <int kHeadDim>
__device__ __forceinline__ uint32_t NotFinite(const uint32_t (&a)[kHeadDim / 16][4]) {
  uint32_t zero[2] = {0, 0};
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r & 1] = PairFma(a[s][r], 0, zero[r & 1]);
  }
  return ((zero[0] & kPairMagnitude) != 0 ? 1 : 0) | ((zero[1] & kPairMagnitude) != 0 ? 2 : 0);
}

}  // namespace blockgtq::cuda
