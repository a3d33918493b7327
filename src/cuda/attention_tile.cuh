// The integer products of one tile, for one warp: dot products of prepared queries with a record's key
// groups, and weighted sums of its values. Tokens (keys) or dims (values) are the rows of the int8 tensor
// products, query heads the 8 columns.
//
// kBlocks: 16-token blocks that the warp works on: all 4 of a tile, or only block `block` (then 4 warps share
// a tile, and each finishes in a third of the time).
//
// The tile loop must fit the instruction cache (with every width inlined twice, instruction fetch was the
// largest stall), so units run in compact loops.
#pragma once

#include "src/cuda/decode_params.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/record_codes.cuh"

namespace blockgtq::cuda {

/// What the products need again and again. The compiler makes constants anew before each use, which was one
/// instruction in eight of the tile loop, so it must not know these: they are loaded, and from places
/// that depend on the lane, which keeps them out of the uniform registers.
struct TileConstantsOfLanes;
struct TileConstants {
  LookUp tables;
  uint32_t two_to_15;            // as a float
  int norm_offset, head_offset;  // of the lane: 8 g, 8 tq
  Int4 start;                    // of the accumulators

  /// from: in global or shared memory.
  static __device__ __forceinline__ TileConstants Load(const TileConstantsOfLanes& from);
};

struct alignas(16) TileConstantsOfLanes {
  uint32_t word[4][4];  // the same for every lane: lane % 4
  int start[4][4];      // the same
  int norm_offset[8];   // lane / 4
  int head_offset[4];   // lane % 4

  static constexpr TileConstantsOfLanes Make() {
    TileConstantsOfLanes c{};
    for (int t = 0; t < 4; ++t) {
      c.word[0][t] = kTable2;
      c.word[1][t] = kTable3Low;
      c.word[2][t] = kTable4Low;
      c.word[3][t] = 0x47000000;
      for (auto& start : c.start) start[t] = kAccumulatorStart;
      c.head_offset[t] = 8 * t;
    }
    for (int g = 0; g < 8; ++g) c.norm_offset[g] = 8 * g;
    return c;
  }
};
static __device__ TileConstantsOfLanes tile_constants = TileConstantsOfLanes::Make();

__device__ __forceinline__ TileConstants TileConstants::Load(const TileConstantsOfLanes& from) {
  const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
  const auto& word = from.word;
  const auto& start = from.start;
  return {{word[0][t], word[1][t], word[2][t]},
          word[3][t],
          from.norm_offset[g],
          from.head_offset[t],
          {start[0][t], start[1][t], start[2][t], start[3][t]}};
}

/// Whether the codes of the last block lie apart.
constexpr bool LastBlockDiffers(int width) { return width >= 3 && width <= 5; }

template <int kWidth, int kBlocks, bool kLast>
__device__ __forceinline__ void DecodeBlocks(const uint32_t* codes, int block, const LookUp& tables,
                                             uint32_t (&quads)[2 * kBlocks]) {
  if constexpr (kBlocks == 4) {
    DecodeUnit<kWidth>(codes, tables, quads);
  } else {
    DecodeUnitBlock<kWidth, kLast>(codes, block, tables, quads);
  }
}

/// Two units of a group: dims of both make one product of depth 32. dots [kBlocks][4].
template <int kWidth, int kBlocks, bool kLast, bool kFirst>
__device__ __forceinline__ void KeyUnitPair(int* dots, const uint32_t* codes, int block, uint32_t q0,
                                            uint32_t q1, const TileConstants& constants) {
  uint32_t a[2 * kBlocks], b[2 * kBlocks];
  DecodeBlocks<kWidth, kBlocks, kLast>(codes, block, constants.tables, a);
  DecodeBlocks<kWidth, kBlocks, kLast>(codes + 32 * kWidth, block, constants.tables, b);
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    if (kFirst) {
      MmaS8K32From(dots + 4 * m, a[2 * m], a[2 * m + 1], b[2 * m], b[2 * m + 1], q0, q1, constants.start);
    } else {
      MmaS8K32(dots + 4 * m, a[2 * m], a[2 * m + 1], b[2 * m], b[2 * m + 1], q0, q1);
    }
  }
}

/// Integer dot products of one group with the warp's tokens, from constants.start on. codes, query: already
/// plus the lane.
template <int kWidth, int kBlocks, bool kLast>
__device__ __forceinline__ void KeyGroupDotsOf(int* dots, const uint32_t* codes, int block,
                                               const uint32_t* query, int units,
                                               const TileConstants& constants) {
  if constexpr (kBlocks == 4 && (kWidth == 2 || kWidth == 3 || kWidth == 4)) {
    // The common widths peel their first pair. A group of one unit runs as
    // a pair with a zero query: what follows in the record is decoded and multiplied by 0.
    KeyUnitPair<kWidth, kBlocks, kLast, true>(dots, codes, block, query[0], units > 1 ? query[32] : 0u,
                                              constants);
    codes += 64 * kWidth;
    query += 64;
    units -= 2;
  } else {
#pragma unroll
    for (int i = 0; i < 4 * kBlocks; ++i) dots[i] = constants.start.x;
  }
#pragma unroll 1
  for (; units >= 2; units -= 2) {
    KeyUnitPair<kWidth, kBlocks, kLast, false>(dots, codes, block, query[0], query[32], constants);
    codes += 64 * kWidth;
    query += 64;
  }
  if (units == 1) {
    uint32_t quads[2 * kBlocks];
    DecodeBlocks<kWidth, kBlocks, kLast>(codes, block, constants.tables, quads);
    const uint32_t q0 = query[0];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) MmaS8K16(dots + 4 * m, quads[2 * m], quads[2 * m + 1], q0);
  }
}

template <int kWidth, int kBlocks>
__device__ __forceinline__ void KeyGroupDots(int* dots, const uint32_t* codes, int block,
                                             const uint32_t* query, int units,
                                             const TileConstants& constants) {
  if (kBlocks == 1 && LastBlockDiffers(kWidth) && block == 3) {
    KeyGroupDotsOf<kWidth, kBlocks, true>(dots, codes, block, query, units, constants);
  } else {
    KeyGroupDotsOf<kWidth, kBlocks, false>(dots, codes, block, query, units, constants);
  }
}

template <int kBlocks>
__device__ __forceinline__ void KeyGroupDots(int width, int* dots, const uint32_t* codes, int block,
                                             const uint32_t* query, int units,
                                             const TileConstants& constants) {
  if (width == 3) {
    KeyGroupDots<3, kBlocks>(dots, codes, block, query, units, constants);
  } else if (width == 4) {
    KeyGroupDots<4, kBlocks>(dots, codes, block, query, units, constants);
  } else if (width == 2) {
    KeyGroupDots<2, kBlocks>(dots, codes, block, query, units, constants);
  } else if (width == 5) {
    KeyGroupDots<5, kBlocks>(dots, codes, block, query, units, constants);
  } else if (width == 8) {
    KeyGroupDots<8, kBlocks>(dots, codes, block, query, units, constants);
  } else {
    KeyGroupDots<1, kBlocks>(dots, codes, block, query, units, constants);
  }
}

/// Norm bytes become floats by one PRMT: 2^15 + byte i of the eight in v.
__device__ __forceinline__ float ByteAt15(const TileConstants& constants, uint2 v, int i) {
  return __uint_as_float(SelectBytes(i < 4 ? v.x : v.y, constants.two_to_15, 0x7604u | ((i & 3) << 4)));
}
/// log2 of norm byte i over its reference: (byte - 128) / 32.
__device__ __forceinline__ float LogNorm(const TileConstants& constants, uint2 v, int i) {
  return fmaf(ByteAt15(constants, v, i), 1.0f / 32, -kNormExponentBias);
}
/// The norm bytes of this lane's tokens 16 (i / 2) + 8 (i & 1) + g of the warp's blocks. norms: 64 bytes.
template <int kBlocks>
__device__ __forceinline__ uint2 LoadNorms(const TileConstants& constants, const uint8_t* norms, int block) {
  if constexpr (kBlocks == 4) {
    return *reinterpret_cast<const uint2*>(norms + constants.norm_offset);
  } else {
    return make_uint2(*reinterpret_cast<const uint16_t*>(norms + constants.norm_offset + 2 * block), 0);
  }
}

/// output [2 * units][kHeadsALane] += factor * (values' codes x probabilities). probabilities: u8 B fragments
/// of the warp's 16-token blocks.
template <int kWidth, int kUnits, int kHeadsALane, int kBlocks, bool kLast>
__device__ __forceinline__ void ValueProductsOf(float* output, const uint32_t* codes, int block,
                                                const TileConstants& constants,
                                                const uint32_t (&probabilities)[kBlocks],
                                                const float (&factor)[kHeadsALane]) {
  Int4 start = constants.start;
  if constexpr (kWidth == 4 || kWidth == 5) {  // codes stand for n + 1/2: half the sum of P
    int sums[4] = {0, 0, 0, 0};
    constexpr uint32_t kOnes = 0x01010101u;
    if constexpr (kBlocks == 4) {
      MmaS8U8K32(sums, kOnes, kOnes, kOnes, kOnes, probabilities[0], probabilities[1]);
      MmaS8U8K32(sums, kOnes, kOnes, kOnes, kOnes, probabilities[2], probabilities[3]);
    } else {
      MmaS8U8K16(sums, kOnes, kOnes, probabilities[0]);
    }
    start.x += sums[0] >> 1;
    start.y += sums[1] >> 1;
    start.z = start.x;
    start.w = start.y;
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    int sum[4];
    uint32_t q[2 * kBlocks];
    DecodeBlocks<kWidth, kBlocks, kLast>(codes + u * 32 * kWidth, block, constants.tables, q);
    if constexpr (kBlocks == 4) {
      MmaS8U8K32From(sum, q[0], q[1], q[2], q[3], probabilities[0], probabilities[1], start);
      MmaS8U8K32(sum, q[4], q[5], q[6], q[7], probabilities[2], probabilities[3]);
    } else {
      MmaS8U8K16From(sum, q[0], q[1], probabilities[0], start);
    }
#pragma unroll
    for (int e = 0; e < kHeadsALane; ++e) {
      float* o = output + 2 * u * kHeadsALane + e;
      o[0] = fmaf(AccumulatorToFloat(sum[e]), factor[e], o[0]);
      o[kHeadsALane] = fmaf(AccumulatorToFloat(sum[2 + e]), factor[e], o[kHeadsALane]);
    }
  }
}

template <int kWidth, int kUnits, int kHeadsALane, int kBlocks>
__device__ __forceinline__ void ValueProducts(float* output, const uint32_t* codes, int block,
                                              const TileConstants& constants,
                                              const uint32_t (&probabilities)[kBlocks],
                                              const float (&factor)[kHeadsALane]) {
  if (kBlocks == 1 && LastBlockDiffers(kWidth) && block == 3) {
    ValueProductsOf<kWidth, kUnits, kHeadsALane, kBlocks, true>(output, codes, block, constants,
                                                                probabilities, factor);
  } else {
    ValueProductsOf<kWidth, kUnits, kHeadsALane, kBlocks, false>(output, codes, block, constants,
                                                                 probabilities, factor);
  }
}

}  // namespace blockgtq::cuda
