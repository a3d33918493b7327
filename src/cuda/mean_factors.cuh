// The part of mean_bias.cuh that runs once a segment: the factors that the query brings to the key mean's
// bias, i^n a_n conj(q) mu of the series' units and the query as direct units want it.
#pragma once

#include "src/cuda/mean_layout.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_block.cuh"

namespace blockgtq::cuda {

__device__ __forceinline__ uint32_t HalfWord(__half2 h) { return *reinterpret_cast<const uint32_t*>(&h); }
__device__ __forceinline__ __half2 WordHalves(uint32_t w) { return *reinterpret_cast<const __half2*>(&w); }

/// The query's side, shared by the warps: a warp makes terms warp, warp + kWarps, ... (mean_layout.h). Load
/// does what does not depend on the queries, while they are on their way.
template <int kHeadDim, int kWarps, bool kFew>
struct MeanFactors {
  static constexpr int kGroups = kFew ? 1 : 2, kSlots = SeriesSlots(kHeadDim, 0);
  static constexpr int kTerms = SeriesTerms(kHeadDim), kTermsAWarp = (kTerms + kWarps - 1) / kWarps;
  static constexpr bool kAhead = kWarps <= 8 && kHeadDim <= 128;  // otherwise registers are lacking
  struct Term {
    int unit;
    float4 mean;  // blocks t and t + 4 of the column's degree, times the logits' scale
  };
  Term terms[kAhead ? kTermsAWarp : 1] = {};

  /// constants: of the head, which are there
  __device__ __forceinline__ void Load(const DecodeParams& p, const HeadHeader& header,
                                       const uint8_t* constants) {
    if (!kAhead) return;
    const int warp = Fresh(WarpIndex());
#pragma unroll
    for (int i = 0; i < kTermsAWarp; ++i) terms[i] = Read(p, header, constants, warp + i * kWarps);
  }

  /// Every thread calls it; the factors are there after the next __syncthreads.
  /// count: of `queries`; the factors of the others are zero
  __device__ __forceinline__ void Store(const DecodeParams& p, const HeadHeader& header,
                                        const QueryWords& queries, int count, uint8_t* constants,
                                        uint8_t* factors) const {
    const int lane = Fresh(threadIdx.x & 31), g = lane >> 2, warp = Fresh(WarpIndex());
    const auto query_of = [&](int head, int unit) {  // blocks t and t + 4
      const uint32_t* q = queries.rows + head * queries.row_words + unit * (kUnitWidth / 2) + (lane & 3);
      return head < count ? make_uint2(q[0], q[4]) : make_uint2(0, 0);
    };
#pragma unroll
    for (int i = 0; i < kTermsAWarp; ++i) {
      const int index = warp + i * kWarps;
      if (!kAhead && index >= kTerms) continue;
      const Term term = kAhead ? terms[kAhead ? i : 0] : Read(p, header, constants, index);
      const float4 m = term.mean;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint2 query = query_of(4 * group + (g >> 1), term.unit);
        const float2 q0 = __half22float2(WordHalves(query.x)), q1 = __half22float2(WordHalves(query.y));
        // conj(q) m: its product with e^{i phase} has the real part (cos, sin) . (c, s).
        const float c0 = q0.x * m.x + q0.y * m.y, s0 = q0.y * m.x - q0.x * m.y;
        const float c1 = q1.x * m.z + q1.y * m.w, s1 = q1.y * m.z - q1.x * m.w;
        const __half2 z0 = __floats2half2_rn(c0, s0), z1 = __floats2half2_rn(c1, s1);
        uint8_t* to = factors + group * FactorBytesOfGroup(kHeadDim);
        if (index < kSlots) {  // level 0
          const float2 r0 = __half22float2(z0), r1 = __half22float2(z1);
          reinterpret_cast<uint4*>(to)[index * 32 + lane] =
              make_uint4(HalfWord(z0), HalfWord(z1), HalfWord(__floats2half2_rn(c0 - r0.x, s0 - r0.y)),
                         HalfWord(__floats2half2_rn(c1 - r1.x, s1 - r1.y)));
        } else if (index < kTerms) {
          reinterpret_cast<uint2*>(to)[(kSlots + index) * 32 + lane] = make_uint2(HalfWord(z0), HalfWord(z1));
        }
      }
    }
    // Direct units, by the last warps, which have fewer terms.
    const float scale = p.logit_scale;
#pragma unroll 1
    for (int u = kWarps - 1 - warp; u < header.direct_units; u += kWarps) {
      const uint2 q = query_of(kFew ? g >> 1 : g, header.direct_unit[u]);
      const float2 q0 = __half22float2(WordHalves(q.x)), q1 = __half22float2(WordHalves(q.y));
      reinterpret_cast<uint4*>(constants + MeanConstants::Direct(kHeadDim) + u * MeanConstants::kDirectBytes +
                               MeanConstants::kDirectQuery)[lane] =
          make_uint4(HalfWord(__floats2half2_rn(q0.x * scale, q0.y * scale)),
                     HalfWord(__floats2half2_rn(q1.x * scale, q1.y * scale)),
                     HalfWord(__floats2half2_rn(q0.y * scale, -q0.x * scale)),
                     HalfWord(__floats2half2_rn(q1.y * scale, -q1.x * scale)));
    }
  }

 private:
  /// Past the last term, that one again. Terms that a head lacks are zero.
  static __device__ __forceinline__ Term Read(const DecodeParams& p, const HeadHeader& header,
                                              const uint8_t* constants, int index) {
    const int lane = Fresh(threadIdx.x & 31), g = lane >> 2, tq = lane & 3;
    const int term = min(index, kTerms - 1);
    int slot = term;
#pragma unroll
    for (int level = 1; level < kSeriesLevels; ++level) {
      if (term >= SeriesTerms(kHeadDim, level)) slot = term - SeriesTerms(kHeadDim, level);
    }
    const float4 m = *reinterpret_cast<const float4*>(
        constants + MeanConstants::Terms() + term * MeanConstants::kTermBytes + (g & 1) * 64 + tq * 16);
    const float scale = p.logit_scale;
    return {min(header.series_first + slot, kHeadDim / kUnitWidth - 1),
            make_float4(m.x * scale, m.y * scale, m.z * scale, m.w * scale)};
  }
};

}  // namespace blockgtq::cuda
