// The arithmetic of one tile, for one warp: dot products of prepared queries with a record's key groups, and
// weighted sums of its values. Tokens (keys) or dims (values) are the rows of the int8 tensor products, query
// heads the 8 columns.
//
// The tile loop must fit the instruction cache (with every width inlined twice, instruction fetch was the
// largest stall), so units run in compact loops.
#pragma once

#include "src/cuda/decode_params.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/record_codes.cuh"

namespace blockgtq::cuda {

/// Two units of a group: dims of both make one product of depth 32. dots [4][4] of 16-token blocks.
template <int kWidth, bool kFirst>
__device__ __forceinline__ void KeyUnitPair(int* dots, const uint32_t* codes, uint32_t q0, uint32_t q1,
                                            const Int4& start) {
  uint32_t a[8], b[8];
  DecodeUnit<kWidth>(codes, a);
  DecodeUnit<kWidth>(codes + 32 * kWidth, b);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    if (kFirst) {
      MmaS8K32From(dots + 4 * m, a[2 * m], a[2 * m + 1], b[2 * m], b[2 * m + 1], q0, q1, start);
    } else {
      MmaS8K32(dots + 4 * m, a[2 * m], a[2 * m + 1], b[2 * m], b[2 * m + 1], q0, q1);
    }
  }
}

/// Integer dot products of one group with the tile's 64 tokens. codes, query: already plus the lane.
template <int kWidth>
__device__ __forceinline__ void KeyGroupDots(int* dots, const uint32_t* codes, const uint32_t* query,
                                             int units, const Int4& start) {
  if constexpr (kWidth == 2 || kWidth == 3 || kWidth == 4) {
    // The common widths peel their first pair, whose start is one register quad. A group of one unit runs as
    // a pair with a zero query: what follows in the record is decoded and multiplied by 0.
    KeyUnitPair<kWidth, true>(dots, codes, query[0], units > 1 ? query[32] : 0u, start);
    codes += 64 * kWidth;
    query += 64;
    units -= 2;
  } else {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      dots[4 * m] = start.x;
      dots[4 * m + 1] = start.y;
      dots[4 * m + 2] = start.z;
      dots[4 * m + 3] = start.w;
    }
  }
#pragma unroll 1
  for (; units >= 2; units -= 2) {
    KeyUnitPair<kWidth, false>(dots, codes, query[0], query[32], start);
    codes += 64 * kWidth;
    query += 64;
  }
  if (units == 1) {
    uint32_t quads[8];
    DecodeUnit<kWidth>(codes, quads);
    const uint32_t q0 = query[0];
#pragma unroll
    for (int m = 0; m < 4; ++m) MmaS8K16(dots + 4 * m, quads[2 * m], quads[2 * m + 1], q0);
  }
}

__device__ __forceinline__ void KeyGroupDots(int width, int* dots, const uint32_t* codes,
                                             const uint32_t* query, int units, const Int4& start) {
  if (width == 3) {
    KeyGroupDots<3>(dots, codes, query, units, start);
  } else if (width == 4) {
    KeyGroupDots<4>(dots, codes, query, units, start);
  } else if (width == 2) {
    KeyGroupDots<2>(dots, codes, query, units, start);
  } else if (width == 5) {
    KeyGroupDots<5>(dots, codes, query, units, start);
  } else if (width == 8) {
    KeyGroupDots<8>(dots, codes, query, units, start);
  } else {
    KeyGroupDots<1>(dots, codes, query, units, start);
  }
}

/// Norm bytes become floats by one PRMT: 2^23 + byte, or 2^15 + byte, byte i of the eight in v.
__device__ __forceinline__ float ByteAt23(uint2 v, int i) {
  return __uint_as_float(SelectBytes(i < 4 ? v.x : v.y, 0x4b000000u, 0x7650u + (i & 3)));
}
__device__ __forceinline__ float ByteAt15(uint2 v, int i) {
  return __uint_as_float(SelectBytes(i < 4 ? v.x : v.y, 0x47000000u, 0x7604u | ((i & 3) << 4)));
}
/// log2 of norm byte i over its reference: (byte - 128) / 32.
__device__ __forceinline__ float LogNorm(uint2 v, int i) {
  return fmaf(ByteAt23(v, i), 1.0f / 32, -262144.0f - 4.0f);
}

/// output [2 * units][kHeadsALane] += factor * (values' codes x probabilities). probabilities: u8 B fragments
/// of 4 16-token blocks.
template <int kWidth, int kUnits, int kHeadsALane>
__device__ __forceinline__ void ValueProducts(float* output, const uint32_t* codes,
                                              const uint32_t (&probabilities)[4],
                                              const float (&factor)[kHeadsALane]) {
  Int4 start = {kAccumulatorStart, kAccumulatorStart, kAccumulatorStart, kAccumulatorStart};
  if constexpr (kWidth == 4 || kWidth == 5) {  // codes stand for n + 1/2: half the sum of P
    int sums[4] = {0, 0, 0, 0};
    constexpr uint32_t kOnes = 0x01010101u;
    MmaS8U8K32(sums, kOnes, kOnes, kOnes, kOnes, probabilities[0], probabilities[1]);
    MmaS8U8K32(sums, kOnes, kOnes, kOnes, kOnes, probabilities[2], probabilities[3]);
    start.x += sums[0] >> 1;
    start.y += sums[1] >> 1;
    start.z = start.x;
    start.w = start.y;
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    int sum[4];
    uint32_t q[8];
    DecodeUnit<kWidth>(codes + u * 32 * kWidth, q);
    MmaS8U8K32From(sum, q[0], q[1], q[2], q[3], probabilities[0], probabilities[1], start);
    MmaS8U8K32(sum, q[4], q[5], q[6], q[7], probabilities[2], probabilities[3]);
#pragma unroll
    for (int e = 0; e < kHeadsALane; ++e) {
      float* o = output + 2 * u * kHeadsALane + e;
      o[0] = fmaf(AccumulatorToFloat(sum[e]), factor[e], o[0]);
      o[kHeadsALane] = fmaf(AccumulatorToFloat(sum[2 + e]), factor[e], o[kHeadsALane]);
    }
  }
}

}  // namespace blockgtq::cuda
