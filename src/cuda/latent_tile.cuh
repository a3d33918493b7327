// A tile of 64 keys in shared memory as fp16 rows [64, columns], for latent_attention.cu: decoded from a
// record's codes, with the rope key's mean as further coordinates, or copied from exact tokens.
#pragma once

#include <cstdint>

#include "src/cuda/latent_attention.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/record_codes.cuh"

namespace blockgtq::cuda::latents {

constexpr int kThreads = 256, kWarps = 8, kTileTokens = 64;

/// Halves between rows of a matrix of `columns`: whole lines of 128 bytes.
__host__ __device__ constexpr int Stride(int columns) { return (columns + 63) / 64 * 64; }
/// Which 16-byte chunk of a row's line has chunk c: c ^ Turn(row). Eight rows' chunks then lie in different
/// banks, and four rows' pairs of chunks as well.
__device__ __forceinline__ int Turn(int row) { return (row & 3) << 1 | (row >> 2 & 1); }
/// Offset of a chunk of a row.
__device__ __forceinline__ int ChunkAt(int row, int chunk, int stride) {
  return row * stride + 8 * (chunk ^ Turn(row));
}

__device__ __forceinline__ __half2 AsPair(uint32_t x) { return *reinterpret_cast<const __half2*>(&x); }
__device__ __forceinline__ uint32_t AsWord(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
constexpr uint32_t kOnePair = 0x3c003c00u, kHalfPair = 0x38003800u, kMinus1152 = 0xe480e480u;

/// Norms over their references as fp16 pairs, by their byte in the record: norms [p.norm_count].
__device__ __forceinline__ void DecodeNorms(const LatentParams& p, const uint8_t* record, uint32_t* norms) {
  for (int i = threadIdx.x; i < p.norm_count; i += kThreads) {
    const float norm = Exp2((static_cast<float>(record[p.norm_begin + i]) - 128.0f) * (1.0f / 32));
    norms[i] = AsWord(__floats2half2_rn(norm, norm));
  }
}

/// One unit by one warp. codes: of the unit, plus the lane; norms: the lane's eight tokens', t = lane / 4 + 8
/// q; to: the lane's four dims of token lane / 4.
template <int kWidth>
__device__ __forceinline__ void DecodeUnitRows(const uint32_t* codes, const uint32_t* norms, int stride,
                                               __half* to) {
  constexpr bool kHalves = kWidth == 4 || kWidth == 5;  // codes stand for n + 1/2
  uint32_t quads[8];
  DecodeUnit<kWidth>(codes, LookUp{}, quads);
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    const uint32_t biased = quads[q] ^ 0x80808080u;
    const __half2 norm = AsPair(norms[q]);
    // Bytes under 0x64 are 1024 + byte.
    const auto scaled = [&](uint32_t selector) {
      const __half2 integers =
          __hfma2(AsPair(SelectBytes(biased, 0x64646464u, selector)), AsPair(kOnePair), AsPair(kMinus1152));
      return AsWord(kHalves ? __hfma2(integers, norm, __hmul2(norm, AsPair(kHalfPair)))
                            : __hmul2(integers, norm));
    };
    *reinterpret_cast<uint2*>(to + 8 * q * stride) = uint2{scaled(0x4140), scaled(0x4342)};
  }
}

__device__ __forceinline__ void DecodeUnits(const LatentParams& p, const uint8_t* record,
                                            const uint32_t* norms, int warp, int lane, int stride,
                                            __half* tile) {
#pragma unroll 1
  for (int u = warp; u < p.unit_count; u += kWarps) {
    const LatentUnit unit = p.units[u];
    const uint32_t* mine = norms + unit.norms + 8 * (lane >> 2);
    const uint32_t* codes = reinterpret_cast<const uint32_t*>(record + unit.codes) + lane;
    __half* to = tile + ChunkAt(lane >> 2, unit.column / 8 + (lane >> 1 & 1), stride) + 4 * (lane & 1);
    switch (unit.width) {
      case 1:
        DecodeUnitRows<1>(codes, mine, stride, to);
        break;
      case 2:
        DecodeUnitRows<2>(codes, mine, stride, to);
        break;
      case 3:
        DecodeUnitRows<3>(codes, mine, stride, to);
        break;
      case 4:
        DecodeUnitRows<4>(codes, mine, stride, to);
        break;
      case 5:
        DecodeUnitRows<5>(codes, mine, stride, to);
        break;
      default:
        DecodeUnitRows<8>(codes, mine, stride, to);
    }
  }
}

/// R_t mu of a block of frequencies, for the token at `position`.
__device__ __forceinline__ float2 RotatedMean(const float* mean, int block, uint64_t step, int64_t position,
                                              int rotary_dims, float attention_factor) {
  const float x = mean[2 * block], y = mean[2 * block + 1];
  if (2 * block >= rotary_dims) return {x, y};
  const uint64_t phase = static_cast<uint64_t>(position) * step;
  float sine, cosine;
  sincospif(static_cast<float>(static_cast<int32_t>(phase >> 32)) * 0x1p-31f, &sine, &cosine);
  sine *= attention_factor;
  cosine *= attention_factor;
  return {x * cosine - y * sine, x * sine + y * cosine};
}

/// The mean's coordinates of a tile's tokens, 16 a mean unit, in the columns before the values'.
__device__ __forceinline__ void WriteMeans(const LatentParams& p, int64_t position, int stride,
                                           __half* tile) {
  const int blocks = 8 * p.mean_unit_count;
  const int first = p.key_columns - 2 * blocks;
  for (int i = threadIdx.x; i < kTileTokens * blocks; i += kThreads) {
    const int token = i / blocks, at = i % blocks, block = 8 * p.mean_units[at / 8] + at % 8;
    const float2 m =
        RotatedMean(p.key_mean, block, p.steps[block], position + token, p.rotary_dims, p.attention_factor);
    const int column = first + 2 * at;
    *reinterpret_cast<__half2*>(tile + ChunkAt(token, column / 8, stride) + column % 8) =
        __floats2half2_rn(m.x * p.mean_key, m.y * p.mean_key);
  }
}

/// Starts the copy of a record. Completes on `barrier`, at which every thread arrives.
__device__ __forceinline__ void StartRecord(const LatentParams& p, const int32_t* block_table, int tile,
                                            uint32_t to, uint32_t barrier) {
  const uint8_t* from = p.pool + block_table[tile] * p.block_bytes;
  for (int i = 16 * threadIdx.x; i < p.record_bytes; i += 16 * kThreads) CopyAsync(to + i, from + i);
  BarrierArriveAfterCopies(barrier);
}

/// Starts the copy of rows at slots [begin, end) of an exact tile; the others become zero.
__device__ __forceinline__ void StartRows(const uint16_t* rows, int dim, int begin, int end, __half* tile,
                                          uint32_t barrier) {
  const int chunks = dim / 8;
  const uint32_t to = SharedAddress(tile);
  for (int i = threadIdx.x; i < kTileTokens * chunks; i += kThreads) {
    const int slot = i / chunks, chunk = i % chunks, at = ChunkAt(slot, chunk, Stride(dim));
    if (slot >= begin && slot < end) {
      CopyAsync(to + 2 * at, rows + static_cast<int64_t>(slot) * dim + 8 * chunk);
    } else {
      *reinterpret_cast<uint4*>(tile + at) = uint4{0, 0, 0, 0};
    }
  }
  BarrierArriveAfterCopies(barrier);
}

}  // namespace blockgtq::cuda::latents
