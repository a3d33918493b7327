// Rounding a group's unit-variance coordinates to codes, and the search for the scale whose codes lie closest
// in angle (Rounding::kSearched), on fp16 pairs and tensor cores.
//
// Between the smallest and the largest scale a coordinate crosses few thresholds of its codebook. So with
// r = |x| / threshold, the crossing at scale s is the indicator r >= 1 / s, one saturating multiply-add a
// pair, and
//   energy(s)     = energy of the codes below every crossing + sum of 2 w      [r >= 1/s]
//   projection(s) = the same of |x| times the codes          + sum of w r      [r >= 1/s]
// with w = (step between the centroids) x threshold. A product of fp16 tensor cores sums both over 16 dims of
// 8 tokens at once: rows are 8 tokens' w and their w r, columns 8 tokens' indicators, and the diagonals are
// what is wanted. Thresholds whose crossings could overlap lie in separate sets, so that a coordinate has at
// most one crossing a set.
#pragma once

#include <cstdint>

#include "src/codec/plan.h"
#include "src/cuda/encode_pair.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

// ---- scales, ascending: kSearchScales in another order

constexpr int kScales = static_cast<int>(kSearchScales.size());
constexpr float kSmallestScale = 0.8f, kScaleStep = 0.04f;
constexpr float kLargestScale = kSmallestScale + kScaleStep * (kScales - 1);
constexpr int kUnitScale = 5;  // index of scale 1
__host__ __device__ constexpr float ScaleAt(int index) { return kSmallestScale + kScaleStep * index; }
constexpr bool IsScaleGrid() {
  for (float scale : kSearchScales) {
    bool found = false;
    for (int i = 0; i < kScales; ++i) {
      const float off = scale - ScaleAt(i);
      found = found || (off < 1e-5f && off > -1e-5f);
    }
    if (!found) return false;
  }
  return true;
}
static_assert(IsScaleGrid());

// An indicator x >= z is (x - z) * kSteep clamped to [0, 1]: fp16 numbers from 1/16 on that differ do so by
// at least 1 / kSteep.
constexpr float kSteep = 16384.0f;
/// Pair to add to kSteep * r for the indicator of a crossing at scale `index`.
__device__ __forceinline__ uint32_t CrossingOffset(int index) {
  const uint32_t half = __half_as_ushort(__float2half_rn(-kSteep / ScaleAt(index)));
  return half * 0x10001u;
}

// ---- codebooks: magnitudes of codec/record.cc

template <int kWidth>
struct Codebook {
  static constexpr int kLevels = 1 << (kWidth - 1);
  // Sets of thresholds: k belongs to set k % kSets.
  static constexpr int kSets = kWidth <= 3 ? 1 : kWidth == 4 ? 2 : 4;
  float level[kLevels] = {};

  constexpr Codebook() {
    constexpr float kLevel1[] = {127};
    constexpr float kLevel2[] = {33, 110};
    constexpr float kLevel3[] = {10, 31, 55, 88};
    constexpr float kLevel4[] = {5.5f, 16.5f, 27.5f, 39.5f, 52.5f, 67.5f, 86.5f, 114.5f};
    constexpr float kLevel5[] = {2.5f,  7.5f,  12.5f, 17.5f, 22.5f, 27.5f, 33.5f,  39.5f,
                                 45.5f, 51.5f, 58.5f, 66.5f, 75.5f, 86.5f, 100.5f, 121.5f};
    constexpr float kIntegerScale[] = {0, 159.17090f, 72.83102f, 40.90403f, 41.86100f, 37.31166f};
    for (int k = 0; k < kLevels; ++k) {
      const float integer = kWidth == 1   ? kLevel1[k]
                            : kWidth == 2 ? kLevel2[k]
                            : kWidth == 3 ? kLevel3[k]
                            : kWidth == 4 ? kLevel4[k]
                                          : kLevel5[k];
      level[k] = integer / kIntegerScale[kWidth];
    }
  }
  constexpr float Threshold(int k) const { return 0.5f * (level[k] + level[k + 1]); }
  constexpr float Step(int k) const { return level[k + 1] - level[k]; }
};

/// One set as pairs. Threshold i of the set is threshold set + kSets * i of the book; a coordinate belongs to
/// the last whose zone begins at or below it.
template <int kWidth, int kSet>
struct ThresholdSet {
  static constexpr int kSets = Codebook<kWidth>::kSets;
  static constexpr int kCount = (Codebook<kWidth>::kLevels - 1 - kSet + kSets - 1) / kSets;
  uint32_t zone[kCount] = {};     // of i + 1: the offset of its indicator
  uint32_t inverse[kCount] = {};  // 1 / threshold, then differences to the threshold before
  uint32_t weight[kCount] = {};   // w likewise
  uint32_t step[kCount] = {};     // between the centroids at i
  bool apart = true;              // zones exist: no coordinate crosses two thresholds of the set

  constexpr ThresholdSet() {
    constexpr Codebook<kWidth> book;
    float inverse_sum = 0, weight_sum = 0;
    for (int i = 0; i < kCount; ++i) {
      const int k = kSet + kSets * i;
      const float t = book.Threshold(k), w = t * book.Step(k);
      inverse[i] = HalfPair(1.0f / t - inverse_sum);
      weight[i] = HalfPair(w - weight_sum);
      inverse_sum = 1.0f / t;
      weight_sum = w;
      step[i] = HalfPair(book.Step(k));
      if (i + 1 < kCount) {
        const float low = t / kSmallestScale, high = book.Threshold(k + kSets) / kLargestScale;
        apart = apart && low < high;
        zone[i] = HalfPair(-kSteep * 0.5f * (low + high));
      }
    }
  }
};

/// A pair's crossings in one set.
struct Crossing {
  uint32_t ratio, weight;
};
/// x: magnitudes. Adds to `base` the steps below the zones of x, and to `code` their number.
template <int kWidth, int kSet>
__device__ __forceinline__ Crossing FindCrossing(uint32_t x, uint32_t& base, uint32_t& code) {
  constexpr ThresholdSet<kWidth, kSet> set;
  static_assert(set.apart);
  uint32_t inverse = set.inverse[0], weight = set.weight[0];
#pragma unroll
  for (int i = 0; i + 1 < set.kCount; ++i) {
    const uint32_t above = PairFmaClamped(x, HalfPair(kSteep), set.zone[i]);
    inverse = PairFma(above, set.inverse[i + 1], inverse);
    weight = PairFma(above, set.weight[i + 1], weight);
    base = PairFma(above, set.step[i], base);
    code = PairAdd(code, above);
  }
  return {PairMultiply(x, inverse), weight};
}

/// Sums of the search for 8 tokens: [0]: base, [1 + i]: crossings at scale i. Elements as MmaF16 leaves them.
using SearchSums = float[kScales + 1][4];

template <int kWidth, int kSet>
__device__ __forceinline__ void AddCrossings(uint32_t x0, uint32_t x1, uint32_t& base0, uint32_t& base1,
                                             SearchSums& sums) {
  uint32_t unused = 0;
  const Crossing c0 = FindCrossing<kWidth, kSet>(x0, base0, unused);
  const Crossing c1 = FindCrossing<kWidth, kSet>(x1, base1, unused);
  const uint4 rows = {c0.weight, PairMultiply(c0.weight, c0.ratio), c1.weight,
                      PairMultiply(c1.weight, c1.ratio)};
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    constexpr uint32_t kOne = HalfPair(kSteep);
    const uint32_t offset = HalfPair(-kSteep / ScaleAt(i));
    MmaF16(sums[1 + i], rows, PairFmaClamped(c0.ratio, kOne, offset), PairFmaClamped(c1.ratio, kOne, offset));
  }
}

/// Adds 16 dims of the lane's token: x0, x1 are magnitudes of two pairs.
template <int kWidth>
__device__ __forceinline__ void AddSearch(uint32_t x0, uint32_t x1, SearchSums& sums) {
  if constexpr (kWidth == 8) {  // the codes of a scale are integers: sums of their squares and products
    constexpr uint32_t kInteger = HalfPair(1024.0f), kBack = HalfPair(-1024.0f), kLargest = HalfPair(127.0f);
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const uint32_t scale = HalfPair(32.4f * ScaleAt(i));
      const uint32_t c0 = PairMin(PairAdd(PairFma(x0, scale, kInteger), kBack), kLargest);
      const uint32_t c1 = PairMin(PairAdd(PairFma(x1, scale, kInteger), kBack), kLargest);
      MmaF16(sums[1 + i], {c0, x0, c1, x1}, c0, c1);
    }
  } else {
    constexpr Codebook<kWidth> book;
    uint32_t base0 = HalfPair(book.level[0]), base1 = base0;
    if constexpr (kWidth >= 2) {
      AddCrossings<kWidth, 0>(x0, x1, base0, base1, sums);
      if constexpr (book.kSets >= 2) AddCrossings<kWidth, 1>(x0, x1, base0, base1, sums);
      if constexpr (book.kSets >= 4) {
        AddCrossings<kWidth, 2>(x0, x1, base0, base1, sums);
        AddCrossings<kWidth, 3>(x0, x1, base0, base1, sums);
      }
    }
    MmaF16(sums[0], {base0, x0, base1, x1}, base0, base1);
  }
}

struct BestScale {
  int index;
  float energy;  // of the codes, in units of centroids
};
/// sums: a lane's own; the token of a lane group (lane / 4) has its diagonal in the lane whose number mod 4
/// is lane / 8. padding: dims of x that are zero and have no code. Every lane of the group gets the result.
template <int kWidth>
__device__ __forceinline__ BestScale ChooseScale(const SearchSums& sums, int padding, bool searched,
                                                 int lane) {
  const bool odd = (lane >> 2) & 1;
  float base_energy = 0, base_projection = 0;
  if constexpr (kWidth < 8) {
    constexpr Codebook<kWidth> book;
    base_energy = (odd ? sums[0][1] : sums[0][0]) - padding * book.level[0] * book.level[0];
    base_projection = odd ? sums[0][3] : sums[0][2];
  }
  BestScale best = {kUnitScale, base_energy};
  if constexpr (kWidth > 1) {
    float score = -1;
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      float energy = odd ? sums[1 + i][1] : sums[1 + i][0];
      float projection = odd ? sums[1 + i][3] : sums[1 + i][2];
      if constexpr (kWidth < 8) {
        energy = fmaf(2, energy, base_energy);
        projection += base_projection;
      }
      const float square = __fdividef(projection * projection, fmaxf(energy, 1e-20f));
      if ((searched || i == kUnitScale) && square > score) {
        score = square;
        best = {i, energy};
      }
    }
  }
  const int source = (lane & 28) | (lane >> 3);
  best.index = __shfl_sync(~0u, best.index, source);
  best.energy = __shfl_sync(~0u, best.energy, source);
  if constexpr (kWidth == 8) best.energy *= 1.0f / (32.4f * 32.4f);
  return best;
}

/// The scale of one token as the roundings want it: a crossing's offset, or at width 8 the factor.
template <int kWidth>
__device__ __forceinline__ uint32_t CodeScale(int index) {
  if constexpr (kWidth == 8) return __half_as_ushort(__float2half_rn(32.4f * ScaleAt(index))) * 0x10001u;
  return CrossingOffset(index);
}

template <int kWidth, int kSet>
__device__ __forceinline__ void CountCrossings(uint32_t x, uint32_t offset, uint32_t& code) {
  uint32_t unused = 0;
  const Crossing c = FindCrossing<kWidth, kSet>(x, unused, code);
  code = PairAdd(code, PairFmaClamped(c.ratio, HalfPair(kSteep), offset));
}

/// Codes of a pair of coordinates (signed, unit variance), in the low bits of its halves.
template <int kWidth>
__device__ __forceinline__ uint32_t RoundPair(uint32_t x, uint32_t scale) {
  // PRMT selector that spreads the sign bit of each half over it.
  constexpr uint32_t kSpreadSigns = 0xbb99;
  if constexpr (kWidth == 8) {
    constexpr uint32_t kLargest = HalfPair(127.0f), kSmallest = HalfPair(-127.0f);
    uint32_t code = PairMin(PairMultiply(x, scale), kLargest);
    asm("max.f16x2 %0,%1,%2;" : "=r"(code) : "r"(code), "r"(kSmallest));
    return PairAdd(code, HalfPair(1536.0f)) & 0x00ff00ffu;
  } else if constexpr (kWidth == 1) {
    return (~x >> 15) & 0x00010001u;
  } else {
    // 1024 + code: fp16 integers with the code in the low bits. Widths 2 and 3 ascend with the value: a
    // positive value's codes are the upper half, a negative one's their complement.
    constexpr uint32_t kFirst = HalfPair(1024.0f + (kWidth <= 3 ? 1 << (kWidth - 1) : 0));
    uint32_t code = kFirst;
    const uint32_t magnitude = x & kPairMagnitude;
    CountCrossings<kWidth, 0>(magnitude, scale, code);
    if constexpr (Codebook<kWidth>::kSets >= 2) CountCrossings<kWidth, 1>(magnitude, scale, code);
    if constexpr (Codebook<kWidth>::kSets >= 4) {
      CountCrossings<kWidth, 2>(magnitude, scale, code);
      CountCrossings<kWidth, 3>(magnitude, scale, code);
    }
    if constexpr (kWidth <= 3) {
      constexpr uint32_t kMask = ((1u << kWidth) - 1) * 0x10001u;
      return (code ^ SelectBytes(x, 0, kSpreadSigns)) & kMask;
    } else {
      constexpr uint32_t kMagnitude = ((1u << (kWidth - 1)) - 1) * 0x10001u;
      constexpr uint32_t kSign = (1u << (kWidth - 1)) * 0x10001u;
      return (code & kMagnitude) | ((x >> (16 - kWidth)) & kSign);
    }
  }
}

}  // namespace blockgtq::cuda
