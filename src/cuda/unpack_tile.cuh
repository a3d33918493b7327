// One tile of unpacking, for one warp: codes become fp16 A fragments, scaled by the tokens' norms, and meet
// the un-rotation's B fragments unit by unit; the rows get the mean back and are stored.
#pragma once

#include <cstdint>

#include "src/cuda/encode_mean.cuh"
#include "src/cuda/encode_pair.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/record_codes.cuh"
#include "src/cuda/unpack.h"

namespace blockgtq::cuda::unpacking {

constexpr int kTokens = 64;          // a tile
constexpr int kWarpDims = 64;        // output dims of a warp
constexpr int kWarpTiles = 8;        // 8-wide tiles of them
constexpr int kMaxUnitBytes = 1024;  // width 8

/// Two dims of four codes as fp16: bytes of `biased` (code + 128) that `selector` names.
__device__ __forceinline__ uint32_t CodesToPair(uint32_t biased, uint32_t selector) {
  return PairAdd(SelectBytes(biased, 0x64646464u, selector), HalfPair(-1152.0f));
}

/// A fragments of one unit: 16 tokens a block m of the warp's 32, norms not yet applied.
template <int kWidth, int kHalf, bool kValue>
__device__ __forceinline__ void UnitFragments(const uint32_t* codes, uint32_t (&a)[2][4]) {
  uint32_t quads[8];
  DecodeUnit<kWidth>(codes, LookUp{}, quads);
  constexpr uint32_t kBias = 0x80808080u;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint32_t first = quads[4 * kHalf + 2 * m], second = quads[4 * kHalf + 2 * m + 1];
    if constexpr (kValue) {  // quads are tokens of one dim: bytes of dims d and d + 8 travel together
      const uint32_t low = TransposeB16(SelectBytes(first, second, 0x6240)) ^ kBias;
      const uint32_t high = TransposeB16(SelectBytes(first, second, 0x7351)) ^ kBias;
      a[m][0] = CodesToPair(low, 0x4240);
      a[m][1] = CodesToPair(high, 0x4240);
      a[m][2] = CodesToPair(low, 0x4341);
      a[m][3] = CodesToPair(high, 0x4341);
    } else {
      a[m][0] = CodesToPair(first ^ kBias, 0x4140);
      a[m][1] = CodesToPair(second ^ kBias, 0x4140);
      a[m][2] = CodesToPair(first ^ kBias, 0x4342);
      a[m][3] = CodesToPair(second ^ kBias, 0x4342);
    }
  }
}

constexpr int BlocksPerProcessor(int head_dim) { return head_dim <= 128 ? 512 / head_dim : 1; }

using Rows = float[2][kWarpTiles][4];  // [16-token block][8-wide tile][accumulator]

/// One group's share of the warp's rows. codes: plus the lane. norms: of tokens g, g + 8 of both blocks.
template <int kHeadDim, int kWidth, int kHalf, bool kValue>
__device__ __forceinline__ void AddGroup(const uint32_t* codes, const uint4* fragments, int units,
                                         const uint32_t (&norms)[4], Rows& rows) {
  constexpr bool kHalves = kWidth == 4 || kWidth == 5;  // codes stand for n + 1/2
  uint32_t halves[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) halves[i] = kHalves ? PairMultiply(norms[i], HalfPair(0.5f)) : 0;
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    uint32_t a[2][4];
    UnitFragments<kWidth, kHalf, kValue>(codes, a);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int token = 2 * m + (r & 1);
        a[m][r] =
            kHalves ? PairFma(a[m][r], norms[token], halves[token]) : PairMultiply(a[m][r], norms[token]);
      }
    }
#pragma unroll
    for (int j = 0; j < kWarpTiles / 2; ++j) {
      const uint4 b = fragments[32 * j];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4 tokens = {a[m][0], a[m][1], a[m][2], a[m][3]};
        MmaF16(rows[m][2 * j], tokens, b.x, b.y);
        MmaF16(rows[m][2 * j + 1], tokens, b.z, b.w);
      }
    }
    codes += 32 * kWidth;
    fragments += kHeadDim / 16 * 32;
  }
}

template <int kHeadDim, int kHalf, bool kValue>
__device__ __forceinline__ void AddGroup(int width, const uint32_t* codes, const uint4* fragments, int units,
                                         const uint32_t (&norms)[4], Rows& rows) {
  switch (width) {
    case 1:
      return AddGroup<kHeadDim, 1, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 2:
      return AddGroup<kHeadDim, 2, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 3:
      return AddGroup<kHeadDim, 3, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 4:
      return AddGroup<kHeadDim, 4, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 5:
      return AddGroup<kHeadDim, 5, kHalf, kValue>(codes, fragments, units, norms, rows);
    default:
      return AddGroup<kHeadDim, 8, kHalf, kValue>(codes, fragments, units, norms, rows);
  }
}

/// The norms of tokens g and g + 8 of both blocks as fp16 pairs, over the reference. bytes: of the group.
__device__ __forceinline__ void LoadNorms(const uint8_t* bytes, int half, int lane, uint32_t (&norms)[4]) {
  const uint32_t four = *reinterpret_cast<const uint32_t*>(bytes + 8 * (lane >> 2) + 4 * half);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float norm = Exp2(static_cast<float>(static_cast<int>(four >> (8 * i) & 255) - 128) * (1.0f / 32));
    norms[i] = PackPair(norm, norm);
  }
}

/// What one item reads: a head's keys or values.
struct Side {
  const EncodeGroup* groups;
  int group_count, units;
  int begin, bytes;  // its part of the record
  uint32_t mean_units;
  bool value;
};

__device__ __forceinline__ Side FindSide(const EncodeHead& head, bool value) {
  Side side;
  side.value = value;
  side.groups = value ? &head.value : head.key;
  side.group_count = value ? 1 : head.groups;
  const EncodeGroup& last = side.groups[side.group_count - 1];
  side.units = last.first_unit + last.units;
  side.begin = side.groups[0].codes;
  side.bytes = last.norms + kTokens - side.begin;
  side.mean_units = value ? 0 : head.mean_units;
  return side;
}

template <int kHeadDim, int kHalf, bool kValue>
__device__ __forceinline__ void DecodeTile(const Side& side, const uint8_t* codes, const uint4* fragments,
                                           int lane, Rows& rows) {
#pragma unroll 1
  for (int g = 0; g < side.group_count; ++g) {
    const EncodeGroup& group = side.groups[g];
    uint32_t norms[4];
    LoadNorms(codes + group.norms - side.begin, kHalf, lane, norms);
    AddGroup<kHeadDim, kHalf, kValue>(
        group.width, reinterpret_cast<const uint32_t*>(codes + group.codes - side.begin) + lane,
        fragments + group.first_unit * (kHeadDim / 16 * 32), group.units, norms, rows);
  }
}

/// Tokens of the tile that are exact and wanted, by the whole block. Few tiles have any.
template <int kHeadDim>
__device__ void CopyExact(const UnpackParams& p, int head, bool value, int64_t tile, uint16_t* out) {
  for (int i = threadIdx.x; i < kTokens * kHeadDim; i += blockDim.x) {
    const int slot = i % kTokens, d = i / kTokens;
    const int64_t t = tile * kTokens + slot;
    if (t < p.first || t >= p.first + p.count || (t >= p.sinks && t < p.coded_end)) continue;
    const bool sink = t < p.sinks;
    const int tokens = sink ? p.sink_tile_tokens : kTokens;
    const int64_t index = sink ? head : static_cast<int64_t>(head) * p.window_tiles + tile % p.window_tiles;
    const uint16_t* from =
        reinterpret_cast<const uint16_t*>(p.exact + (sink ? p.sink_offset : p.window_offset)) +
        index * 2 * kHeadDim * tokens;
    out[((t - p.first) * p.kv_heads + head) * kHeadDim + d] =
        value ? from[tokens * kHeadDim + slot * kHeadDim + d] : from[d * tokens + slot];
  }
}

/// Rows of the warp's coded tokens: a lane has 8 dims of a token at a time. mean: turned to the tile's start
/// (zero where the head has none), with kMean.
template <int kHeadDim, bool kMean>
__device__ __forceinline__ void StoreRows(const UnpackParams& p, const Rows& rows, float scale,
                                          const float2* mean, int64_t tile, int half, int first_dim, int lane,
                                          uint16_t* out) {
  // Slots of the tile that are wanted and coded.
  const int64_t start = tile * kTokens;
  const int begin = static_cast<int>(max(max(p.first, static_cast<int64_t>(p.sinks)) - start, int64_t{0}));
  const int end = static_cast<int>(min(min(p.first + p.count, p.coded_end) - start, int64_t{kTokens}));
  const int row = p.kv_heads * kHeadDim;
  out += (start - p.first) * row + first_dim + 8 * (lane & 3);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int slot = 32 * half + 16 * m + 8 * r + (lane >> 2);
      if (slot < begin || slot >= end) continue;
#pragma unroll
      for (int c = 0; c < kWarpDims / 32; ++c) {
        const int dim = first_dim + 32 * c + 8 * (lane & 3);
        const float4* rotation = reinterpret_cast<const float4*>(p.slot_rotation + slot * kHeadDim + dim);
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* y = &rows[m][4 * c + i][2 * r];
          if constexpr (kMean) {
            const float4 turn = rotation[i >> 1];
            const float2 add =
                MeanAt(mean[dim / 2 + i], i & 1 ? float2{turn.z, turn.w} : float2{turn.x, turn.y});
            words[i] = PackPair(fmaf(y[0], scale, add.x), fmaf(y[1], scale, add.y));
          } else {
            words[i] = PackPair(y[0] * scale, y[1] * scale);
          }
        }
        *reinterpret_cast<uint4*>(out + slot * row + 32 * c) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

}  // namespace blockgtq::cuda::unpacking
