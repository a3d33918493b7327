// The two products of latent_attention.cu and the softmax between them, for a block of vectors and a tile of
// keys in shared memory.
#pragma once

#include <cstdint>

#include "src/cuda/latent_tile.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda::latents {

constexpr int kLogitStride = kTileTokens + 4;   // floats
constexpr int kWeightStride = kTileTokens + 8;  // halves
constexpr int kMaxVectors = 64;
/// Warps that share the reduction of a logit where the queries are in registers: each has every fourth 16
/// columns.
constexpr int kColumnParts = 4;

/// What a block keeps of each of its vectors.
struct Vectors {
  int begin[kMaxVectors], end[kMaxVectors], sink_end[kMaxVectors];  // tokens that it sees of the block's kind
  float scale[kMaxVectors];                                         // of its logits, base 2
  float maximum[kMaxVectors], sum[kMaxVectors], rescale[kMaxVectors];
};

__device__ __forceinline__ void StoreLogits(const float (&sums)[4], float* to) {
  *reinterpret_cast<float2*>(to) = {sums[0], sums[1]};
  *reinterpret_cast<float2*>(to + 8 * kLogitStride) = {sums[2], sums[3]};
}

/// A warp's share of 16 vectors, as A fragments: 16 columns each, kColumnParts apart.
template <int kSteps>
using QueryFragments = uint4[kSteps == 0 ? 1 : kSteps];

template <int kSteps>
__device__ __forceinline__ void LoadQueryFragments(const uint16_t* queries, int count, int columns, int warp,
                                                   int lane, QueryFragments<kSteps>& fragments) {
  const int g = lane >> 2;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int c = 16 * (warp % kColumnParts + kColumnParts * s);
    const auto pair = [&](int vector, int column) {
      const bool there = vector < count && c < columns;
      return there ? *reinterpret_cast<const uint32_t*>(queries + static_cast<int64_t>(vector) * columns +
                                                        column)
                   : 0u;
    };
    const int column = c + 2 * (lane & 3);
    fragments[s] = {pair(g, column), pair(g + 8, column), pair(g, column + 8), pair(g + 8, column + 8)};
  }
}

/// Logits of 16 vectors with the tile's tokens in kColumnParts parts: logits [part][16][kLogitStride].
template <int kSteps>
__device__ __forceinline__ void LogitsOfFragments(const QueryFragments<kSteps>& queries, const __half* tile,
                                                  int columns, int warp, int lane, float* logits) {
  const int part = warp % kColumnParts, first_token = 32 * (warp / kColumnParts), stride = Stride(columns);
  const int row = first_token + (lane & 7) + 8 * (lane >> 4);
  float sums[4][4] = {};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int step = part + kColumnParts * s;
    if (16 * step >= columns) break;
    const __half* from = tile + ChunkAt(row, 2 * step + (lane >> 3 & 1), stride);
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
      uint32_t b[4];
      LoadMatrixRows<false>(b, from + 8 * t * stride);
      MmaF16(sums[t], queries[s], b[0], b[1]);
      MmaF16(sums[t + 1], queries[s], b[2], b[3]);
    }
  }
  logits += (16 * part + (lane >> 2)) * kLogitStride + first_token + 2 * (lane & 3);
#pragma unroll
  for (int t = 0; t < 4; ++t) StoreLogits(sums[t], logits + 8 * t);
}

/// Logits of 64 vectors in shared memory: a warp has 32 of them and 16 tokens.
__device__ __forceinline__ void LogitsOfRows(const __half* queries, const __half* tile, int columns, int warp,
                                             int lane, float* logits) {
  const int first_vector = 32 * (warp & 1), first_token = 16 * (warp >> 1), stride = Stride(columns);
  const int vector = first_vector + (lane & 15), token = first_token + (lane & 7) + 8 * (lane >> 4);
  float sums[2][2][4] = {};
#pragma unroll 2
  for (int chunk = 0; chunk < columns / 8; chunk += 2) {
    uint32_t b[4];
    LoadMatrixRows<false>(b, tile + ChunkAt(token, chunk + (lane >> 3 & 1), stride));
    const __half* from = queries + ChunkAt(vector, chunk + (lane >> 4), stride);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t a[4];
      LoadMatrixRows<false>(a, from + 16 * r * stride);
      MmaF16(sums[r][0], {a[0], a[1], a[2], a[3]}, b[0], b[1]);
      MmaF16(sums[r][1], {a[0], a[1], a[2], a[3]}, b[2], b[3]);
    }
  }
  logits += (first_vector + (lane >> 2)) * kLogitStride + first_token + 2 * (lane & 3);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int t = 0; t < 2; ++t) StoreLogits(sums[r][t], logits + 16 * r * kLogitStride + 8 * t);
  }
}

/// Weights of the tile's tokens, whose first is at `start`, for the warp's vectors, and their running sums.
/// logits: kParts parts [kVectors][kLogitStride] of them.
template <int kVectors, int kParts>
__device__ __forceinline__ void Softmax(Vectors& v, bool sinks, int start, const float* logits,
                                        __half* weights, int warp, int lane) {
#pragma unroll 1
  for (int i = warp; i < kVectors; i += kWarps) {
    const int begin = sinks ? 0 : v.begin[i], end = sinks ? v.sink_end[i] : v.end[i];
    float2 x = {0, 0};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float2 y =
          *reinterpret_cast<const float2*>(logits + (part * kVectors + i) * kLogitStride + 2 * lane);
      x.x += y.x;
      x.y += y.y;
    }
    const float scale = v.scale[i], before = v.maximum[i], nothing = -INFINITY;
    const int t = start + 2 * lane;
    const float a = t >= begin && t < end ? x.x * scale : nothing;
    const float b = t + 1 >= begin && t + 1 < end ? x.y * scale : nothing;
    float largest = fmaxf(a, b);
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
    const float after = fmaxf(before, largest), base = after == nothing ? 0.0f : after;
    const __half2 pair = __floats2half2_rn(Exp2(a - base), Exp2(b - base));
    *reinterpret_cast<__half2*>(weights + i * kWeightStride + 2 * lane) = pair;
    const float2 rounded = __half22float2(pair);
    float sum = rounded.x + rounded.y;
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    __syncwarp();
    if (lane == 0) {
      const float rescale = Exp2(before - base);
      v.rescale[i] = rescale;
      v.maximum[i] = after;
      v.sum[i] = v.sum[i] * rescale + sum;
    }
  }
}

/// sums += weights times the tile's values, which begin at chunk first_chunk: units warp, warp + 8, .. of the
/// warp.
template <int kRowTiles, int kUnits>
__device__ __forceinline__ void AddValues(const Vectors& v, const __half* weights, const __half* tile,
                                          int stride, int first_chunk, int units, int warp, int lane,
                                          float (&sums)[kRowTiles][kUnits][8]) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const float low = v.rescale[16 * r + (lane >> 2)], high = v.rescale[16 * r + 8 + (lane >> 2)];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[r][u][e] *= (e & 2) != 0 ? high : low;
    }
  }
#pragma unroll 1  // more at a time take registers that the queries need
  for (int k = 0; k < kTileTokens; k += 16) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      LoadMatrixRows<false>(a[r], weights + (16 * r + (lane & 15)) * kWeightStride + k + 8 * (lane >> 4));
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = warp + kWarps * u;
      if (unit >= units) break;
      uint32_t b[4];
      LoadMatrixRows<true>(b, tile + ChunkAt(k + (lane & 15), first_chunk + 2 * unit + (lane >> 4), stride));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MmaF16(sums[r][u], {a[r][0], a[r][1], a[r][2], a[r][3]}, b[0], b[1]);
        MmaF16(sums[r][u] + 4, {a[r][0], a[r][1], a[r][2], a[r][3]}, b[2], b[3]);
      }
    }
  }
}

}  // namespace blockgtq::cuda::latents
