// Rounding a group's coordinates to codes, and the search for the scale whose codes lie closest in angle
// (Rounding::kSearched), on fp16 pairs and tensor cores.
//
// Coordinates x come in the codebook's own units, where centroids c and thresholds t are integers or halves:
// exact in fp16. Between the smallest and the largest scale a coordinate crosses few thresholds. With d the
// step between the centroids beside a threshold, crossing it adds
//   2 d t             to the energy of the codes,         sum of c^2
//   d t + d (x - t)   to their product with x,            sum of c x
// and it is crossed at scale s when x >= t / s, one saturating multiply-add a pair. A product of fp16 tensor
// cores sums d t and d (x - t) of 16 dims over the crossings of 8 tokens at once: rows are 8 tokens' d t and
// their d (x - t), columns 8 tokens' indicators, and the diagonals are what is wanted. The same rounded d t
// in both sums leaves the angle right: it enters the squared error only times 1 - s. Thresholds whose
// crossings could overlap lie in separate sets, so that a coordinate has at most one crossing a set.
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

// An indicator x >= z is (x - z) * kSteep clamped to [0, 1]. From kExactFrom on, fp16 numbers differ by at
// least 1 / kSteep, so between two of them it is 0 or 1.
constexpr float kSteep = 64.0f, kExactFrom = 16.0f;
constexpr float Larger(float a, float b) { return a > b ? a : b; }

__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- codebooks: magnitudes of codec/record.cc in integers and halves

template <int kWidth>
struct Codebook {
  static constexpr int kLevels = kWidth == 8 ? 1 : 1 << (kWidth - 1);
  // Sets of thresholds: k belongs to set k % kSets.
  static constexpr int kSets = kWidth <= 3 ? 1 : kWidth == 4 ? 2 : 4;
  float level[kLevels] = {};
  float unit = 0;  // of a coordinate of unit variance

  constexpr Codebook() {
    constexpr float kLevel3[] = {10, 31, 55, 88};
    constexpr float kLevel4[] = {5.5f, 16.5f, 27.5f, 39.5f, 52.5f, 67.5f, 86.5f, 114.5f};
    constexpr float kLevel5[] = {2.5f,  7.5f,  12.5f, 17.5f, 22.5f, 27.5f, 33.5f,  39.5f,
                                 45.5f, 51.5f, 58.5f, 66.5f, 75.5f, 86.5f, 100.5f, 121.5f};
    if constexpr (kWidth == 1) {
      level[0] = 127;
      unit = 159.17090f;
    } else if constexpr (kWidth == 2) {  // half of record.cc's: keeps products of outliers in fp16's range
      level[0] = 16.5f;
      level[1] = 55;
      unit = 72.83102f / 2;
    } else if constexpr (kWidth == 8) {  // the codes are the integers
      unit = 32.4f;
    } else {
      for (int k = 0; k < kLevels; ++k) {
        level[k] = kWidth == 3 ? kLevel3[k % 4] : kWidth == 4 ? kLevel4[k % 8] : kLevel5[k];
      }
      unit = kWidth == 3 ? 40.90403f : kWidth == 4 ? 41.86100f : 37.31166f;
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
  uint32_t zone[kCount] = {};       // of i + 1: the offset of its indicator
  uint32_t threshold[kCount] = {};  // from i = 1 on the difference to the one before
  uint32_t step[kCount] = {};       // between the centroids at i
  uint32_t step_difference[kCount] = {};
  bool apart = true;  // zones exist: no coordinate crosses two thresholds of the set

  constexpr ThresholdSet() {
    constexpr Codebook<kWidth> book;
    for (int i = 0; i < kCount; ++i) {
      const int k = kSet + kSets * i;
      const float t = book.Threshold(k);
      threshold[i] = HalfPair(i == 0 ? t : t - book.Threshold(k - kSets));
      step[i] = HalfPair(book.Step(k));
      step_difference[i] = i == 0 ? 0 : HalfPair(book.Step(k) - book.Step(k - kSets));
      if (i + 1 < kCount) {
        const float low = Larger(t / kSmallestScale, kExactFrom);
        const float high = book.Threshold(k + kSets) / kLargestScale;
        apart = apart && low < high;
        zone[i] = HalfPair(-kSteep * 0.5f * (low + high));
      }
    }
  }
};

/// A pair's own thresholds in a set and the steps there.
struct Crossing {
  uint32_t threshold, step;
};
/// steep_x: kSteep times magnitudes. Adds to `base` the steps below their zones, and to `code` the number of
/// those.
template <int kWidth, int kSet>
__device__ __forceinline__ Crossing FindCrossing(uint32_t steep_x, uint32_t& base, uint32_t& code) {
  constexpr ThresholdSet<kWidth, kSet> set;
  static_assert(set.apart);
  Crossing c = {set.threshold[0], set.step[0]};
#pragma unroll
  for (int i = 0; i + 1 < set.kCount; ++i) {
    const uint32_t above = PairAddClamped(steep_x, set.zone[i]);
    c.threshold = PairFma(above, set.threshold[i + 1], c.threshold);
    c.step = PairFma(above, set.step_difference[i + 1], c.step);
    base = PairFma(above, set.step[i], base);
    code = PairAdd(code, above);
  }
  return c;
}
/// The indicator of a crossing: steep_x = kSteep * x, inverse = -kSteep / scale.
__device__ __forceinline__ uint32_t Crossed(const Crossing& c, uint32_t steep_x, uint32_t inverse) {
  return PairFmaClamped(c.threshold, inverse, steep_x);
}

/// Sums of the search for 8 tokens: [0]: base, [1 + i]: crossings at scale i. Elements as MmaF16 leaves them.
using SearchSums = float[kScales + 1][4];

template <int kWidth, int kSet>
__device__ __forceinline__ void AddCrossings(uint32_t x0, uint32_t x1, uint32_t steep_x0, uint32_t steep_x1,
                                             uint32_t& base0, uint32_t& base1, SearchSums& sums) {
  uint32_t unused = 0;
  const Crossing c0 = FindCrossing<kWidth, kSet>(steep_x0, base0, unused);
  const Crossing c1 = FindCrossing<kWidth, kSet>(steep_x1, base1, unused);
  const uint4 rows = {
      PairMultiply(c0.step, c0.threshold), PairMultiply(c0.step, PairSubtract(x0, c0.threshold)),
      PairMultiply(c1.step, c1.threshold), PairMultiply(c1.step, PairSubtract(x1, c1.threshold))};
#pragma unroll
  for (int i = 0; i < kScales; ++i) {
    const uint32_t inverse = HalfPair(-kSteep / ScaleAt(i));
    MmaF16(sums[1 + i], rows, Crossed(c0, steep_x0, inverse), Crossed(c1, steep_x1, inverse));
  }
}

/// Adds 16 dims of the lane's token: x0, x1 are magnitudes of two pairs, in the codebook's units.
template <int kWidth>
__device__ __forceinline__ void AddSearch(uint32_t x0, uint32_t x1, SearchSums& sums) {
  if constexpr (kWidth == 8) {
    // Codes are close to s x: what ranks the scales is the residual e = code - s x and its product with x.
    constexpr uint32_t kInteger = HalfPair(1024.0f), kBack = HalfPair(-1024.0f), kLargest = HalfPair(127.0f);
    const auto residual = [](uint32_t x, float s) {
      const uint32_t code = PairMin(PairAdd(PairFma(x, HalfPair(s), kInteger), kBack), kLargest);
      return PairFma(x, HalfPair(-s), code);
    };
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const uint32_t e0 = residual(x0, ScaleAt(i)), e1 = residual(x1, ScaleAt(i));
      MmaF16(sums[1 + i], {e0, x0, e1, x1}, e0, e1);
    }
    MmaF16(sums[0], {x0, x0, x1, x1}, x0, x1);
  } else {
    constexpr Codebook<kWidth> book;
    uint32_t base0 = HalfPair(book.level[0]), base1 = base0;
    if constexpr (kWidth >= 2) {
      const uint32_t s0 = PairMultiply(x0, HalfPair(kSteep)), s1 = PairMultiply(x1, HalfPair(kSteep));
      AddCrossings<kWidth, 0>(x0, x1, s0, s1, base0, base1, sums);
      if constexpr (book.kSets >= 2) AddCrossings<kWidth, 1>(x0, x1, s0, s1, base0, base1, sums);
      if constexpr (book.kSets >= 4) {
        AddCrossings<kWidth, 2>(x0, x1, s0, s1, base0, base1, sums);
        AddCrossings<kWidth, 3>(x0, x1, s0, s1, base0, base1, sums);
      }
    }
    MmaF16(sums[0], {base0, x0, base1, x1}, base0, base1);
  }
}

struct BestScale {
  int index;
  float energy;  // of the codes, for coordinates of unit variance
};
/// Energy of the codes at a scale and how close in angle they are (larger is closer).
struct Fit {
  float energy, score;
};
template <int kWidth>
__device__ __forceinline__ Fit FitOf(float2 base, float2 sum, int index) {
  if constexpr (kWidth == 8) {
    // c = z + e with z = s x: the squared sine is (e.e - (z.e)^2 / z.z) / c.c.
    const float s = __half2float(__float2half_rn(ScaleAt(index)));
    const float zz = fmaxf(s * s * base.x, 1e-20f), ze = s * sum.y;
    const float energy = fmaxf(zz + 2 * ze + sum.x, 1e-20f);
    return {energy, (ze * ze * Reciprocal(zz) - sum.x) * Reciprocal(energy)};
  } else {
    const float energy = fmaf(2, sum.x, base.x), projection = base.y + sum.x + sum.y;
    return {energy, projection * projection * Reciprocal(energy)};
  }
}

/// The best scale of the token of a lane group (lane / 4), for every lane of the group.
/// sums: the lane's own; a token's diagonal is in the lane of its group whose number mod 4 is lane / 8
/// padding: dims of x that are zero and have no code
template <int kWidth>
__device__ __forceinline__ BestScale ChooseScale(const SearchSums& sums, int padding, bool searched,
                                                 int lane) {
  const bool odd = (lane >> 2) & 1;
  const auto diagonal = [&](int i) {
    return float2{odd ? sums[i][1] : sums[i][0], odd ? sums[i][3] : sums[i][2]};
  };
  constexpr Codebook<kWidth> book;
  constexpr float kToUnit = 1.0f / (book.unit * book.unit);
  float2 base = diagonal(0);
  if constexpr (kWidth < 8) base.x -= padding * book.level[0] * book.level[0];
  BestScale best = {kUnitScale, base.x};
  if constexpr (kWidth > 1) {
    Fit fit = FitOf<kWidth>(base, diagonal(1 + kUnitScale), kUnitScale);
    if (searched) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        if (i == kUnitScale) continue;
        const Fit tried = FitOf<kWidth>(base, diagonal(1 + i), i);
        if (tried.score > fit.score) {
          fit = tried;
          best.index = i;
        }
      }
    }
    best.energy = fit.energy;
  }
  const int source = (lane & 28) | (lane >> 3);
  best.index = __shfl_sync(~0u, best.index, source);
  best.energy = __shfl_sync(~0u, best.energy, source) * kToUnit;
  return best;
}

/// The scale of one token as a pair for RoundPair: at width 8 itself, otherwise Crossed's inverse.
template <int kWidth>
__device__ __forceinline__ uint32_t CodeScale(int index) {
  const float x = kWidth == 8 ? ScaleAt(index) : -kSteep / ScaleAt(index);
  return __half_as_ushort(__float2half_rn(x)) * 0x10001u;
}

template <int kWidth, int kSet>
__device__ __forceinline__ void CountCrossings(uint32_t steep_x, uint32_t inverse, uint32_t& code) {
  uint32_t unused = 0;
  const Crossing c = FindCrossing<kWidth, kSet>(steep_x, unused, code);
  code = PairAdd(code, Crossed(c, steep_x, inverse));
}

/// Codes of a pair of coordinates (signed, in the codebook's units), in the low bits of its halves.
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
    const uint32_t steep_x = PairMultiply(x & kPairMagnitude, HalfPair(kSteep));
    CountCrossings<kWidth, 0>(steep_x, scale, code);
    if constexpr (Codebook<kWidth>::kSets >= 2) CountCrossings<kWidth, 1>(steep_x, scale, code);
    if constexpr (Codebook<kWidth>::kSets >= 4) {
      CountCrossings<kWidth, 2>(steep_x, scale, code);
      CountCrossings<kWidth, 3>(steep_x, scale, code);
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
