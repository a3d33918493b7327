// The parts of mean_bias.cuh that run once a segment and once a batch of 8 tiles: the query's factors, and
// coefficients from phases.
#pragma once

#include "src/cuda/mean_layout.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_block.cuh"

namespace blockgtq::cuda {

__device__ __forceinline__ uint32_t HalfWord(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }
__device__ __forceinline__ __half2 WordHalves(uint32_t w) { return *reinterpret_cast<const __half2*>(&w); }
/// v as (high, low) halves.
__device__ __forceinline__ uint32_t HighLow(float v) {
  const float2 high = __half22float2(__floats2half2_rn(v, v));
  return HalfWord(__floats2half2_rn(v, v - high.x));
}

/// The query's side, shared by the warps: a warp makes terms warp, warp + kWarps, ... (mean_layout.h).
template <int kHeadDim, int kWarps, bool kFew>
struct MeanFactors {
  static constexpr int kGroups = kFew ? 1 : 2, kSlots = SeriesSlots(kHeadDim, 0);
  static constexpr int kTerms = SeriesTerms(kHeadDim), kTermsAWarp = (kTerms + kWarps - 1) / kWarps;
  uint2 query[kTermsAWarp][kGroups];  // blocks t and t + 4 of the term's unit
  // A direct unit a warp, or two; the last warps first, which have fewer terms.
  static constexpr int kDirectAWarp = (kHeadDim / kUnitWidth + kWarps - 1) / kWarps;
  uint2 direct_query[kDirectAWarp];

  static __device__ __forceinline__ int DirectUnitOf(int warp, int i) { return kWarps * (i + 1) - 1 - warp; }

  static __device__ __forceinline__ MeanShared Layout(const DecodeParams& p) {
    return MeanShared::For(kHeadDim, kFew, p.max_direct_units);
  }
  static __device__ __forceinline__ uint2 QueryOf(const uint32_t* queries, int head, int heads, int unit) {
    const uint32_t* q = queries + head * (kHeadDim / 2) + unit * (kUnitWidth / 2) + (threadIdx.x & 3);
    return head < heads ? make_uint2(q[0], q[4]) : make_uint2(0, 0);
  }

  __device__ __forceinline__ void Load(const DecodeParams& p, const HeadHeader& header, int sequence,
                                       int work_head) {
    const int g = threadIdx.x >> 2 & 7, warp = WarpIndex();
    const QueryRows rows = RowsOf(p, work_head);
    const uint32_t* queries =
        reinterpret_cast<const uint32_t*>(p.queries) +
        (static_cast<size_t>(sequence) * p.kv_heads * p.query_heads + rows.first) * (kHeadDim / 2);
#pragma unroll
    for (int i = 0; i < kTermsAWarp; ++i) {
      const int term = min(warp + i * kWarps, kTerms - 1);
      int slot = term;
#pragma unroll
      for (int level = 1; level < kSeriesLevels; ++level) {
        if (term >= SeriesTerms(kHeadDim, level)) slot = term - SeriesTerms(kHeadDim, level);
      }
      const int unit = min(header.series_first + slot, kHeadDim / kUnitWidth - 1);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        query[i][group] = QueryOf(queries, 4 * group + (g >> 1), rows.count, unit);
      }
    }
#pragma unroll
    for (int i = 0; i < kDirectAWarp; ++i) {
      const int own = min(DirectUnitOf(warp, i), kMaxDirectUnits - 1);
      direct_query[i] = QueryOf(queries, kFew ? g >> 1 : g, rows.count, header.direct_unit[own]);
    }
  }

  __device__ __forceinline__ void Store(const DecodeParams& p, bool series, int direct_units,
                                        uint8_t* shared) const {
    const int lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3, warp = WarpIndex();
    const MeanShared layout = Layout(p);
    const float scale = p.logit_scale;
#pragma unroll
    for (int i = 0; i < kTermsAWarp; ++i) {
      const int term = warp + i * kWarps;
      if (!series || term >= kTerms) continue;
      const float4 m = *reinterpret_cast<const float4*>(
          shared + MeanConstants::Terms() + term * MeanConstants::kTermBytes + (g & 1) * 64 + tq * 16);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const float2 q0 = __half22float2(WordHalves(query[i][group].x)),
                     q1 = __half22float2(WordHalves(query[i][group].y));
        // conj(q) m: its product with e^{i phase} has the real part (cos, sin) . (c, s).
        const float c0 = (q0.x * m.x + q0.y * m.y) * scale, s0 = (q0.y * m.x - q0.x * m.y) * scale;
        const float c1 = (q1.x * m.z + q1.y * m.w) * scale, s1 = (q1.y * m.z - q1.x * m.w) * scale;
        const __half2 z0 = __floats2half2_rn(c0, s0), z1 = __floats2half2_rn(c1, s1);
        uint8_t* to = shared + layout.factors + group * layout.group_bytes;
        if (term < kSlots) {  // level 0
          const float2 r0 = __half22float2(z0), r1 = __half22float2(z1);
          reinterpret_cast<uint4*>(to)[term * 32 + lane] =
              make_uint4(HalfWord(z0), HalfWord(z1), HalfWord(__floats2half2_rn(c0 - r0.x, s0 - r0.y)),
                         HalfWord(__floats2half2_rn(c1 - r1.x, s1 - r1.y)));
        } else {
          reinterpret_cast<uint2*>(to)[(kSlots + term) * 32 + lane] = make_uint2(HalfWord(z0), HalfWord(z1));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kDirectAWarp; ++i) {
      const int own = DirectUnitOf(warp, i);
      if (own >= direct_units) continue;
      const float2 q0 = __half22float2(WordHalves(direct_query[i].x)),
                   q1 = __half22float2(WordHalves(direct_query[i].y));
      reinterpret_cast<uint4*>(shared + layout.queries)[own * 32 + lane] =
          make_uint4(HalfWord(__floats2half2_rn(q0.x * scale, q0.y * scale)),
                     HalfWord(__floats2half2_rn(q1.x * scale, q1.y * scale)),
                     HalfWord(__floats2half2_rn(q0.y * scale, -q0.x * scale)),
                     HalfWord(__floats2half2_rn(q1.y * scale, -q1.x * scale)));
    }
  }
};

/// Phases of the half tiles of a batch, rows of a product: of a lane rows g and g + 8, the halves of tile g.
/// kHeld: slots whose phases are in registers; more are loaded when they are used.
template <int kHeadDim, int kHeld>
struct BatchPhases {
  static constexpr int kUnits = kHeadDim / kUnitWidth, kSlots = SeriesSlots(kHeadDim, 0);
  static constexpr int kUnitQuads = 8;  // uint4 a unit
  uint4 high[kHeld], low[kHeld];        // the series' units
  uint4 direct;                         // the first direct unit, high
  const uint4* series_row;              // of this lane: slot 0
  const uint4* row;                     // unit 0

  /// tile_of(i): tile of the batch, 0 <= i < kBatchTiles; those outside [0, last] count as the nearest.
  template <typename TileOf>
  __device__ __forceinline__ void Load(const DecodeParams& p, const HeadHeader& header, int last,
                                       TileOf tile_of) {
    const int tile = max(0, min(tile_of(static_cast<int>(threadIdx.x >> 2 & 7)), last));
    row = reinterpret_cast<const uint4*>(p.phases) + static_cast<size_t>(tile) * (kUnits * kUnitQuads) +
          (threadIdx.x & 3);
    series_row = row + header.series_first * kUnitQuads;
    const int units = header.series_units;
    if (units > 0) {
#pragma unroll
      for (int s = 0; s < kHeld; ++s) {
        if (s >= 4 && units <= 4) continue;
        high[s] = __ldg(series_row + s * kUnitQuads);
        low[s] = __ldg(series_row + s * kUnitQuads + 4);
      }
    }
    if (header.direct_units > 0) direct = __ldg(row + header.direct_unit[0] * kUnitQuads);
  }

  /// Direct units' phases to where the tiles have them. to: of the batch's first tile
  __device__ __forceinline__ void StoreDirect(const HeadHeader& header, int direct_units, uint32_t* to,
                                              int tile_words) const {
    to += (threadIdx.x >> 2 & 7) * tile_words + 2 * (threadIdx.x & 3);
    const auto store = [to](int u, const uint4& phase) {
      *reinterpret_cast<uint2*>(to + 16 * u) = make_uint2(phase.x, phase.z);
      *reinterpret_cast<uint2*>(to + 16 * u + 8) = make_uint2(phase.y, phase.w);
    };
    if (direct_units > 0) store(0, direct);
#pragma unroll 1
    for (int u = 1; u < direct_units; ++u) {
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

/// Coefficients of a batch's tiles for 4 query heads.
/// factors  of the group (MeanShared); group: of heads 4 group ..
/// to       the batch's first tile (MeanTileWords)
template <int kHeadDim, bool kFew, int kHeld>
__device__ __forceinline__ void ComputeSeries(const BatchPhases<kHeadDim, kHeld>& phases, int units,
                                              const uint8_t* factors, int group, uint32_t* to,
                                              int tile_words) {
  constexpr int kSlots = SeriesSlots(kHeadDim, 0), kTogether = 4;
  const int lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3;
  const uint4* first_factors = reinterpret_cast<const uint4*>(factors) + lane;
  const uint2* other_factors = reinterpret_cast<const uint2*>(factors) + lane;
  float high[4], low[2][4], rest[kSeriesLevels][4];  // of level 0: high x high, the two mixed products
  const auto add_slot = [&](int s, const uint4& a, const uint4& a_low) {
    const uint4 z = first_factors[s * 32];
    MmaF16Or0(s == 0, high, a, z.x, z.y);
    MmaF16Or0(s == 0, low[0], a_low, z.x, z.y);
    MmaF16Or0(s == 0, low[1], a, z.z, z.w);
#pragma unroll
    for (int level = 1; level < kSeriesLevels; ++level) {
      if (s >= SeriesSlots(kHeadDim, level)) continue;
      const uint2 y = other_factors[(kSlots + SeriesTerms(kHeadDim, level) + s) * 32];
      MmaF16Or0(s == 0, rest[level], a, y.x, y.y);
    }
  };
#pragma unroll
  for (int s = 0; s < kHeld; ++s) {
    if (s == 4 && units <= 4) break;
    add_slot(s, phases.high[s], phases.low[s]);
  }
#pragma unroll
  for (int s0 = kHeld; s0 < kSlots; s0 += kTogether) {
    if (s0 >= 4 && units <= 4) break;
    uint4 a[kTogether], a_low[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (s0 + i >= kSlots) continue;
      a[i] = __ldg(phases.series_row + (s0 + i) * phases.kUnitQuads);
      a_low[i] = __ldg(phases.series_row + (s0 + i) * phases.kUnitQuads + 4);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (s0 + i < kSlots) add_slot(s0 + i, a[i], a_low[i]);
    }
  }
  // Words of B operands: pairs of halves 2 p, 2 p + 1 along the reduction, p = 0, 4, 1, 5, 2, 6, 3, 7. Pairs
  // 0 and 1 are degrees 0 and 1 as (high, low), pair p > 1 is level p - 1.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t pair[8];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      pair[e] = HighLow(high[2 * r + e] + (low[0][2 * r + e] + low[1][2 * r + e]));
    }
#pragma unroll
    for (int level = 1; level < kSeriesLevels; ++level) {
      pair[level + 1] = HalfWord(__floats2half2_rn(rest[level][2 * r], rest[level][2 * r + 1]));
    }
    uint4* at = reinterpret_cast<uint4*>(to + g * tile_words + r * (CoefficientWords(kFew) / 2) +
                                         (4 * group + (tq ^ 2 * r)) * 8);
    at[0] = make_uint4(pair[0], pair[4], pair[1], pair[5]);
    at[1] = make_uint4(pair[2], pair[6], pair[3], pair[7]);
  }
}

}  // namespace blockgtq::cuda
