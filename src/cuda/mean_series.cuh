// The part of mean_bias.cuh that runs once a batch of 8 tiles: coefficients from phases and the query's
// factors.
#pragma once

#include <algorithm>

#include "src/cuda/mean_factors.cuh"
#include "src/cuda/mean_layout.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

/// v as (high, low) halves.
__device__ __forceinline__ uint32_t HighLow(float v) {
  const float2 high = __half22float2(__floats2half2_rn(v, v));
  return HalfWord(__floats2half2_rn(v, v - high.x));
}

/// The last slot that a row of phases has for `units`, which need not be many.
constexpr int LastSlot(int head_dim, int units) { return SeriesSlotsUsed(head_dim, units) - 1; }

/// Phases of the half tiles of a batch, rows of a product: of a lane rows g and g + 8, the halves of tile g.
/// kHeld: slots whose phases Load asks for; the others follow as those are used.
/// kSparing: loads as few as that at a time.
template <int kHeadDim, int kHeld, bool kSparing>
struct BatchPhases {
  static constexpr int kUnits = kHeadDim / kUnitWidth, kSlots = SeriesSlots(kHeadDim, 0);
  static constexpr int kUnitQuads = 8;  // uint4 a unit
  uint4 high[kHeld], low[kHeld];        // the series' units
  uint4 direct;                         // the first direct unit, high
  const uint4* series_row;              // of this lane: slot 0
  const uint4* row;                     // unit 0

  /// tile_of(i): tile of the batch, 0 <= i < kBatchTiles; those outside [0, last] count as the nearest.
  /// It loads without conditions, so that no register is live before. skips_low: those are not needed; in
  /// their place the high halves come again, which costs no further lines.
  template <typename TileOf>
  __device__ __forceinline__ void Load(const DecodeParams& p, const HeadHeader& header, int last,
                                       TileOf tile_of, bool skips_low = false) {
    // All heads have 4 units from series_first on.
    const int last_slot = kHeld <= 4 ? kHeld - 1 : max(LastSlot(kHeadDim, header.series_units), 0);
    const int low_quads = skips_low ? 0 : kUnitQuads / 2;
    const int tile = max(0, min(tile_of(Fresh(threadIdx.x >> 2 & 7)), last));
    row = reinterpret_cast<const uint4*>(p.phases) + static_cast<size_t>(tile) * (kUnits * kUnitQuads) +
          (threadIdx.x & 3);
    series_row = row + header.series_first * kUnitQuads;
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      const uint4* slot = series_row + min(s, last_slot) * kUnitQuads;
      high[s] = Read(slot);
      low[s] = Read(slot + low_quads);
    }
    direct = __ldg(row + header.direct_unit[0] * kUnitQuads);
  }

  /// Asks L2 for the phases of a batch later on; tile_of as Load has it. A lane takes a part of one tile's.
  template <typename TileOf>
  static __device__ __forceinline__ void Prefetch(const DecodeParams& p, int last, TileOf tile_of) {
    constexpr int kLines = PhaseBytes(kHeadDim) / 128;
    const int tile = min(tile_of(Fresh(threadIdx.x >> 2 & 7)), last);
    const uint8_t* row = reinterpret_cast<const uint8_t*>(p.phases) +
                         static_cast<size_t>(tile) * PhaseBytes(kHeadDim) + (threadIdx.x & 3) * (32 * kLines);
#pragma unroll
    for (int i = 0; i < kLines / 4; ++i) PrefetchToL2(row + 128 * i);
  }

  __device__ __forceinline__ uint4 High(int slot) const { return Read(series_row + slot * kUnitQuads); }
  __device__ __forceinline__ uint4 Low(int slot) const { return Read(series_row + slot * kUnitQuads + 4); }
  /// Plain loads stay behind a __syncwarp.
  static __device__ __forceinline__ uint4 Read(const uint4* from) { return kSparing ? *from : __ldg(from); }

  /// Direct units' phases to where the tiles have them. to: of this lane's tile
  __device__ __forceinline__ void StoreDirect(const HeadHeader& header, uint32_t* to) const {
    to += 2 * (threadIdx.x & 3);
    const auto store = [to](int u, const uint4& phase) {
      *reinterpret_cast<uint2*>(to + 16 * u) = make_uint2(phase.x, phase.z);
      *reinterpret_cast<uint2*>(to + 16 * u + 8) = make_uint2(phase.y, phase.w);
    };
    store(0, direct);
#pragma unroll 1
    for (int u = 1; u < header.direct_units; ++u) {
      store(u, __ldg(row + header.direct_unit[u] * kUnitQuads));
    }
  }
};

__device__ __forceinline__ void MmaF16Or0(bool from_zero, float* d, const uint4& a, uint32_t b0,
                                          uint32_t b1) {
  if (from_zero) {
    MmaF16FromZero(d, a, b0, b1);
  } else {
    MmaF16(d, a, b0, b1);
  }
}

// The sums of a batch's product for 4 query heads: of a lane [sums][4]. Store: half tile r's words of them
// (MeanTileWords).

/// Of level 0. kChains: of dependent products that the mixed ones (high x low) are.
template <int kChains>
struct FirstLevelSums {
  float high[4], low[kChains][4];  // high: high x high

  __device__ __forceinline__ void Add(const uint8_t* factors, int s, bool first, const uint4& a_high,
                                      const uint4& a_low) {
    const uint4 z = reinterpret_cast<const uint4*>(factors)[s * 32 + Fresh(threadIdx.x & 31)];
    MmaF16Or0(first, high, a_high, z.x, z.y);
    MmaF16Or0(first, low[0], a_low, z.x, z.y);
    MmaF16Or0(first && kChains > 1, low[kChains - 1], a_high, z.z, z.w);
  }
  __device__ __forceinline__ void Store(uint32_t* words, int r) const {
    *reinterpret_cast<uint2*>(words) = make_uint2(HighLow(Sum(2 * r)), HighLow(Sum(2 * r + 1)));
  }

 private:
  __device__ __forceinline__ float Sum(int i) const {
    return high[i] + (kChains > 1 ? low[0][i] + low[kChains - 1][i] : low[0][i]);
  }
};

/// Of the levels from 1 on.
template <int kHeadDim>
struct LaterLevelSums {
  float sums[kSeriesLevels][4];
  uint32_t pair[kSeriesLevels][2];  // of levels from 3 on, which the first slots complete

  /// Slot s, in order. kLeast: a slot that s is not below, where the compiler does not know s.
  template <int kLeast = 0>
  __device__ __forceinline__ void Add(const uint8_t* factors, int s, const uint4& a_high) {
    const int lane = Fresh(threadIdx.x & 31);
#pragma unroll
    for (int level = kSeriesLevels - 1; level > 0; --level) {
      if (kLeast >= SeriesSlots(kHeadDim, level) || s >= SeriesSlots(kHeadDim, level)) continue;
      const int term = SeriesSlots(kHeadDim, 0) + SeriesTerms(kHeadDim, level) + s;
      const uint2 y = reinterpret_cast<const uint2*>(factors)[term * 32 + lane];
      MmaF16Or0(kLeast == 0 && s == 0, sums[level], a_high, y.x, y.y);
      if (level > 2 && s == SeriesSlots(kHeadDim, level) - 1) {  // frees registers
        pair[level][0] = Packed(level, 0);
        pair[level][1] = Packed(level, 1);
      }
    }
  }
  __device__ __forceinline__ void Store(uint32_t* words, int r) const {
    reinterpret_cast<uint2*>(words)[1] = make_uint2(Packed(1, r), Packed(2, r));
    reinterpret_cast<uint4*>(words)[1] = make_uint4(pair[3][r], pair[4][r], pair[5][r], pair[6][r]);
  }

 private:
  __device__ __forceinline__ uint32_t Packed(int level, int r) const {
    return HalfWord(__floats2half2_rn(sums[level][2 * r], sums[level][2 * r + 1]));
  }
};

/// Where this lane's query head has the coefficients of a half tile. to: of its tile; group: of 4 heads
template <bool kFew>
__device__ __forceinline__ uint32_t* SeriesWords(uint32_t* to, int group, int half) {
  const int tq = Fresh(threadIdx.x & 3);
  return to + half * (CoefficientWords(kFew) / 2) + (4 * group + (tq ^ 2 * half)) * 8;
}
/// The coefficients of groups group, group + 1, ... without units.
template <bool kFew, int kGroups>
__device__ __forceinline__ void StoreNoSeries(uint32_t* to, int group) {
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      reinterpret_cast<uint4*>(SeriesWords<kFew>(to, group + i, r >> 1))[r & 1] = make_uint4(0, 0, 0, 0);
    }
  }
}
/// Slots of `slots` whose phases are asked for when slot `done` is: `most` at a time, fewer while many levels
/// have their sums in registers.
constexpr int SlotsAskedFor(int done, int most, int slots) {
  return std::min(slots, done + 1 + (done < 1 ? std::min(3, most) : most));
}

/// Coefficients of a batch's tiles for kGroups groups of 4 query heads; zero without units.
/// factors  of the first group (mean_layout.h); group: heads 4 group .. are its
/// to       of this lane's tile (MeanTileWords)
template <int kHeadDim, bool kFew, int kGroups, int kMostHeld, int kHeld, bool kSparing>
__device__ __forceinline__ void ComputeSeries(const BatchPhases<kHeadDim, kHeld, kSparing>& phases, int units,
                                              const uint8_t* factors, int group, uint32_t* to) {
  constexpr int kSlots = SeriesSlots(kHeadDim, 0);
  if (units == 0) return StoreNoSeries<kFew, kGroups>(to, group);
  FirstLevelSums<1> first[kGroups];
  LaterLevelSums<kHeadDim> later[kGroups];
  // A slot's phases are read once. Those of the first kHeld are there; the others are asked for as soon as
  // the first slots, which have the most levels, have given their registers back: two waits a batch, where
  // there is room for kMostHeld = kSlots.
  constexpr int kUnrolled = kSlots > 8 ? 4 : kSlots, kAtOnce = kSlots > 8 ? 2 : kSlots;
  static_assert((kSlots - kUnrolled) % kAtOnce == 0);
  constexpr bool kOrdered = kSparing || kMostHeld < kSlots;  // keeps the compiler from moving loads ahead
  const int last = LastSlot(kHeadDim, units);
  uint4 high[kUnrolled], low[kUnrolled];
#pragma unroll
  for (int s = 0; s < kHeld; ++s) {
    high[s] = phases.high[s];
    low[s] = phases.low[s];
  }
#pragma unroll
  for (int s = 0; s < kUnrolled; ++s) {
    if (s == 4 && units <= 4) break;
    if (kOrdered) __syncwarp();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const uint8_t* from = factors + i * FactorBytesOfGroup(kHeadDim);
      later[i].Add(from, s, high[s]);
      first[i].Add(from, s, s == 0, high[s], low[s]);
    }
    if (kOrdered) __syncwarp();
    const int from = s == 0 ? kHeld : std::max(kHeld, SlotsAskedFor(s - 1, kMostHeld, kUnrolled));
    const int until = SlotsAskedFor(s, kMostHeld, kUnrolled);
#pragma unroll
    for (int next = from; next < until; ++next) {
      high[next] = phases.High(std::min(next, last));
      low[next] = phases.Low(std::min(next, last));
    }
  }
  if (kSlots > kUnrolled && units > 4) {  // many slots: a loop, or the compiler loads them all at once
#pragma unroll 1
    for (int s = kUnrolled; s < kSlots; s += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        high[i] = phases.High(s + i);
        low[i] = phases.Low(s + i);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        for (int g = 0; g < kGroups; ++g) {
          const uint8_t* from = factors + g * FactorBytesOfGroup(kHeadDim);
          later[g].template Add<kUnrolled>(from, s + i, high[i]);
          first[g].Add(from, s + i, false, high[i], low[i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t* words = SeriesWords<kFew>(to, group + i, r);
      first[i].Store(words, r);
      later[i].Store(words, r);
    }
  }
}

/// A part of the same, for batches that warps share: part 0 is level 0, part 1 the levels from 1 on; each
/// writes words of its own. All phases that it needs are asked for at once.
template <int kHeadDim, bool kFew, int kGroups, int kHeld, bool kSparing>
__device__ __forceinline__ void ComputeSeriesPart(int part,
                                                  const BatchPhases<kHeadDim, kHeld, kSparing>& phases,
                                                  int units, const uint8_t* factors, int group,
                                                  uint32_t* to) {
  constexpr int kSlots = SeriesSlots(kHeadDim, 0), kLaterSlots = SeriesSlots(kHeadDim, 1);
  const int last = LastSlot(kHeadDim, units);
  if (units == 0) {
    if (part == 0) StoreNoSeries<kFew, kGroups>(to, group);
  } else if (part == 0) {
    uint4 high[kSlots], low[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {  // factors of the slots past the last one are zero
      high[s] = s < kHeld ? phases.high[s < kHeld ? s : 0] : phases.High(std::min(s, last));
      low[s] = s < kHeld ? phases.low[s < kHeld ? s : 0] : phases.Low(std::min(s, last));
    }
    FirstLevelSums<2> sums[kGroups];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        sums[i].Add(factors + i * FactorBytesOfGroup(kHeadDim), s, s == 0, high[s], low[s]);
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[i].Store(SeriesWords<kFew>(to, group + i, r), r);
    }
  } else {
    uint4 high[kLaterSlots];
#pragma unroll
    for (int s = 0; s < kLaterSlots; ++s) {
      high[s] = s < kHeld ? phases.high[s < kHeld ? s : 0] : phases.High(std::min(s, last));
    }
    LaterLevelSums<kHeadDim> sums[kGroups];
#pragma unroll
    for (int s = 0; s < kLaterSlots; ++s) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        sums[i].Add(factors + i * FactorBytesOfGroup(kHeadDim), s, high[s]);
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) sums[i].Store(SeriesWords<kFew>(to, group + i, r), r);
    }
  }
}

}  // namespace blockgtq::cuda
