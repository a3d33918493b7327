// The key mean's part of the logits, which the codes leave out: q . R_t mu for every token t.
//
// Half tiles of 32 tokens, around their centre c (mean_layout.h has the kinds of units):
//   series  sum_n T_n(x) Re(i^n a_n conj(q) mu e^{i theta c}), blocks summed. The query's factors i^n a_n
//           conj(q) mu are made once a segment; a product of 16 rows of phases (8 tiles) with them gives the
//           coefficients, another one with the constant polynomials the logits. Degrees 0 and 1, which carry
//           large means, have 22 bits throughout.
//   direct  (R_{-c} q) . (R_{r - 15.5} mu) in fp16.
// Columns of a product are query heads; with few heads a half tile each, (head, half) = (column / 2, column % 2).
#pragma once

#include "src/cuda/decode_layout.h"
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

/// The mean's bias of one warp. kTeams: warps of a block that have tiles of their own (decode_kernel.cuh).
template <int kHeadDim, int kWarps, bool kFew, int kBlocks>
class MeanBias {
 public:
  static constexpr int kHeads = kFew ? 1 : 2, kTeams = kBlocks == 4 ? kWarps : kWarps / 4;
  static constexpr int kUnits = kHeadDim / kUnitWidth, kGroups = kFew ? 1 : 2;
  static constexpr int kTileWords = CoefficientWords(kFew), kHalfWords = (kTileWords - 4) / 2;
  static constexpr int kSlots = SeriesSlots(kHeadDim, 0), kTerms = SeriesTerms(kHeadDim);

  /// shared: MeanShared. coefficients: [kWarps][kBatchTiles][kTileWords]
  __device__ __forceinline__ MeanBias(const DecodeParams& params, uint8_t* shared, uint32_t* coefficients,
                                      uint32_t barrier)
      : p(params), shared_(shared), coefficients_(coefficients), barrier_(barrier) {}

  /// One thread sends for the constants of a segment's head; nobody may still read those of the one before.
  __device__ __forceinline__ void SendForConstants(const HeadHeader& header, int kv_head) const {
    if (threadIdx.x != 0 || header.mean_units == 0) return;
    const int bytes = MeanConstants::Bytes(kHeadDim, header.direct_units);
    BarrierExpect(barrier_, bytes);
    BulkCopy(SharedAddress(shared_),
             p.mean_constants +
                 static_cast<size_t>(kv_head) * MeanConstants::Bytes(kHeadDim, p.max_direct_units),
             bytes, barrier_);
  }

  /// The query's side of a segment. Every thread calls it; ready after the next __syncthreads.
  __device__ __forceinline__ void PrepareQueries(const HeadHeader& header, int sequence, int work_head) {
    if (header.mean_units == 0) return;
    BarrierWait(barrier_, phase_);
    phase_ ^= 1;
    const int lane = threadIdx.x & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
    const MeanShared layout = Layout();
    const QueryRows rows = RowsOf(p, work_head);
    // Blocks tq and tq + 4 of a unit.
    const uint32_t* queries = reinterpret_cast<const uint32_t*>(p.queries) +
                              (static_cast<size_t>(sequence) * p.kv_heads * p.query_heads + rows.first) *
                                  (kHeadDim / 2) +
                              tq;
    const auto query_pair = [&](int head, int unit) {
      const uint32_t* q = queries + head * (kHeadDim / 2) + unit * (kUnitWidth / 2);
      return head < rows.count ? make_uint2(q[0], q[4]) : make_uint2(0, 0);
    };
    if (header.series_units > 0) {
#pragma unroll 1
      for (int term = warp; term < kTerms; term += kWarps) {
        int slot = term;
        bool first = true;
#pragma unroll
        for (int level = 0; level < kSeriesLevels; ++level) {
          if (term >= SeriesTerms(kHeadDim, level)) {
            slot = term - SeriesTerms(kHeadDim, level);
            first = level == 0;
          }
        }
        const int unit = header.mean_unit[slot];
        uint2 q[kGroups];
#pragma unroll
        for (int i = 0; i < kGroups; ++i) q[i] = query_pair(4 * i + (g >> 1), unit);
        const float4 m = *reinterpret_cast<const float4*>(shared_ + MeanConstants::Terms() +
                                                          term * MeanConstants::kTermBytes + (g & 1) * 64 +
                                                          tq * 16);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const float2 q0 = __half22float2(WordHalves(q[i].x)), q1 = __half22float2(WordHalves(q[i].y));
          // conj(q) m, whose product with (cos, sin) as a row vector is the real part.
          const float c0 = (q0.x * m.x + q0.y * m.y) * p.logit_scale,
                      s0 = (q0.y * m.x - q0.x * m.y) * p.logit_scale,
                      c1 = (q1.x * m.z + q1.y * m.w) * p.logit_scale,
                      s1 = (q1.y * m.z - q1.x * m.w) * p.logit_scale;
          const __half2 z0 = __floats2half2_rn(c0, s0), z1 = __floats2half2_rn(c1, s1);
          uint8_t* to = shared_ + layout.factors + i * layout.group_bytes;
          if (first) {
            const float2 r0 = __half22float2(z0), r1 = __half22float2(z1);
            reinterpret_cast<uint4*>(to)[term * 32 + lane] =
                make_uint4(HalfWord(z0), HalfWord(z1), HalfWord(__floats2half2_rn(c0 - r0.x, s0 - r0.y)),
                           HalfWord(__floats2half2_rn(c1 - r1.x, s1 - r1.y)));
          } else {
            reinterpret_cast<uint2*>(to)[(kSlots + term) * 32 + lane] =
                make_uint2(HalfWord(z0), HalfWord(z1));
          }
        }
      }
    }
#pragma unroll 1
    for (int u = kWarps - 1 - warp; u < header.direct_units; u += kWarps) {
      const uint2 q = query_pair(kFew ? g >> 1 : g, header.mean_unit[kMaxMeanUnits - 1 - u]);
      const float2 q0 = __half22float2(WordHalves(q.x)), q1 = __half22float2(WordHalves(q.y));
      const float scale = p.logit_scale;
      reinterpret_cast<uint4*>(shared_ + layout.queries)[u * 32 + lane] =
          make_uint4(HalfWord(__floats2half2_rn(q0.x * scale, q0.y * scale)),
                     HalfWord(__floats2half2_rn(q1.x * scale, q1.y * scale)),
                     HalfWord(__floats2half2_rn(q0.y * scale, -q0.x * scale)),
                     HalfWord(__floats2half2_rn(q1.y * scale, -q1.x * scale)));
    }
  }

  /// Where the block's tiles of a segment are: round k has tiles base + step k + team, of those in [0, tiles)
  /// that belong to the segment.
  struct Tiles {
    int base, step, tiles;  // `tiles` of the (sequence, head)
    int first_round, end_round;
  };

  /// Before a segment's first tile, `round` of this team. Every thread of the block calls it.
  __device__ __forceinline__ void Begin(const HeadHeader& header, const Tiles& t, int team, int round,
                                        int block) {
    const int warp = WarpIndex();
    LoadPhases(header, min(t.base + t.step * round + team, t.tiles - 1), block);
    if (header.series_units == 0) return;
    const int rounds = t.end_round - t.first_round;
    left_ = 0;
    if (rounds > kBatchTiles) return;
    // A short segment: the warps share the work. Row i / 2 of the coefficients is tile i of the block.
    constexpr int kMost = 1 << 30;
    left_ = kMost;
    at_ = coefficients_ + ((round - t.first_round) * kTeams + team) * kTileWords;
    const int tiles = rounds * kTeams, tasks = (tiles + kBatchTiles - 1) / kBatchTiles * kGroups;
#pragma unroll 1
    for (int task = warp; task < tasks; task += kWarps) {
      const int batch = task / kGroups, group = task % kGroups;
      const auto tile_of = [&](int i) {
        const int index = batch * kBatchTiles + i;
        return t.base + t.step * (t.first_round + index / kTeams) + index % kTeams;
      };
      ComputeBatch(header, coefficients_ + batch * kBatchTiles * kTileWords, group, t.tiles - 1, tile_of);
    }
    __syncthreads();
  }

  /// The bias of one tile (AttendTile's logits), and the phases of the next one of this warp.
  __device__ __forceinline__ void Add(float (&logit)[2 * kBlocks * kHeads], const HeadHeader& header,
                                      int tile, int step, int tiles, int block) {
    constexpr int kRows = kBlocks == 4 ? 2 : 1, kHalves = kFew || kBlocks == 1 ? 1 : 2;
    const int lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3;
    const MeanShared layout = Layout();
    float c[kHalves][kRows][4];
    const uint4* constants = reinterpret_cast<const uint4*>(shared_) + lane;
    const int row = kBlocks == 4 ? 0 : block & 1;
    if (header.series_units > 0) {
      if (left_ == 0) {
        at_ = coefficients_ + WarpIndex() * kBatchTiles * kTileWords;
        left_ = kBatchTiles;
        __syncwarp();
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
          ComputeBatch(header, at_, group, tiles - 1, [&](int i) { return tile + step * i; });
        }
        __syncwarp();
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int half = kFew ? g & 1 : kBlocks == 4 ? h : block >> 1, head = kFew ? g >> 1 : g;
        const uint2 b =
            *reinterpret_cast<const uint2*>(at_ + half * kHalfWords + (head ^ 2 * half) * 8 + 2 * tq);
#pragma unroll
        for (int m = 0; m < kRows; ++m) MmaF16FromZero(c[h][m], constants[(row + m) * 32], b.x, b.y);
      }
      at_ += left_ > kBatchTiles ? kTeams * kTileWords : kTileWords;
      --left_;
    } else {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int m = 0; m < kRows; ++m) c[h][m][0] = c[h][m][1] = c[h][m][2] = c[h][m][3] = 0;
      }
    }

    const uint4* direct = constants + MeanConstants::Direct(kHeadDim) / 16 + row * 32;
    const uint4* queries = reinterpret_cast<const uint4*>(shared_ + layout.queries) + lane;
    const auto add_unit = [&](int u, const uint2(&phase)[kPhases]) {
      const uint4 q = queries[u * 32];
      uint32_t b0[kHalves], b1[kHalves];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        b0[h] = Rotate(q.x, q.z, phase[h].x);
        b1[h] = Rotate(q.y, q.w, phase[h].y);
      }
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const uint4 a = direct[(2 * u + m) * 32];
#pragma unroll
        for (int h = 0; h < kHalves; ++h) MmaF16(c[h][m], a, b0[h], b1[h]);
      }
    };
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (u < header.direct_units) add_unit(u, phases_[u]);
    }
#pragma unroll 1
    for (int u = kAhead; u < header.direct_units; ++u) {
      uint2 phase[kPhases];
      PhasesOf(header, u, tile, block, phase);
      add_unit(u, phase);
    }
    LoadPhases(header, min(tile + step, tiles - 1), block);

#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {  // token 32 half + 16 m + 8 r + g
          if constexpr (kFew && kBlocks == 4) {
            logit[2 * m + r] = c[0][m][2 * r];
            logit[4 + 2 * m + r] = c[0][m][2 * r + 1];
          } else if constexpr (kFew) {
            logit[r] = block >> 1 ? c[0][0][2 * r + 1] : c[0][0][2 * r];
          } else {
            logit[2 * (4 * h + 2 * m + r)] = c[h][m][2 * r];
            logit[2 * (4 * h + 2 * m + r) + 1] = c[h][m][2 * r + 1];
          }
        }
      }
    }
  }

 private:
  static constexpr int kAhead = 2;                                // direct units whose phases are loaded ahead
  static constexpr int kPhases = kFew || kBlocks == 1 ? 1 : 2;  // half tiles of a lane

  __device__ __forceinline__ MeanShared Layout() const {
    return MeanShared::For(kHeadDim, kFew, p.max_direct_units);
  }
  /// This lane's element of unit 0 of a half tile.
  __device__ __forceinline__ const uint4* PhaseRow(int row) const {
    return reinterpret_cast<const uint4*>(p.phases) + static_cast<size_t>(row) * (kUnits * 4) +
           (threadIdx.x & 3);
  }
  __device__ __forceinline__ void PhasesOf(const HeadHeader& header, int u, int tile, int block,
                                           uint2 (&phase)[kPhases]) const {
#pragma unroll
    for (int h = 0; h < kPhases; ++h) {
      const int half = kFew ? threadIdx.x >> 2 & 1 : kBlocks == 4 ? h : block >> 1;
      phase[h] = __ldg(reinterpret_cast<const uint2*>(PhaseRow(2 * tile + half) +
                                                      4 * header.mean_unit[kMaxMeanUnits - 1 - u]));
    }
  }
  __device__ __forceinline__ void LoadPhases(const HeadHeader& header, int tile, int block) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (u < header.direct_units) PhasesOf(header, u, tile, block, phases_[u]);
    }
  }
  /// (x, y) cos + (y, -x) sin: a block turned back.
  static __device__ __forceinline__ uint32_t Rotate(uint32_t xy, uint32_t yx, uint32_t phase) {
    const __half2 z = WordHalves(phase);
    return HalfWord(__hfma2(WordHalves(xy), __low2half2(z), __hmul2(WordHalves(yx), __high2half2(z))));
  }

  /// Coefficients of kBatchTiles tiles tile_of(i) (of which those past `last` count as it) for 4 query heads.
  template <typename TileOf>
  __device__ __forceinline__ void ComputeBatch(const HeadHeader& header, uint32_t* to, int group, int last,
                                               TileOf tile_of) const {
    const int lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3, half = g & 1;
    // Rows g and g + 8 of the product: this half of tiles g / 2 and g / 2 + 4.
    const uint4* row0 = PhaseRow(2 * max(0, min(tile_of(g >> 1), last)) + half);
    const uint4* row1 = PhaseRow(2 * max(0, min(tile_of((g >> 1) + 4), last)) + half);
    const MeanShared layout = Layout();
    const uint4* first_factors =
        reinterpret_cast<const uint4*>(shared_ + layout.factors + group * layout.group_bytes) + lane;
    const uint2* factors =
        reinterpret_cast<const uint2*>(shared_ + layout.factors + group * layout.group_bytes) + lane;
    const uint4 units = *reinterpret_cast<const uint4*>(header.mean_unit);
    float high[4], low[2][4], rest[kSeriesLevels][4];  // of level 0: high x high, the two mixed products
    constexpr int kTogether = 4;                       // slots whose phases are on their way at a time
#pragma unroll
    for (int s0 = 0; s0 < kSlots; s0 += kTogether) {
      if (s0 > 0 && s0 >= header.series_units) break;
      uint4 a0[kTogether], a1[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int s = s0 + i;
        if (s >= kSlots) continue;
        const uint32_t word = s < 4 ? units.x : s < 8 ? units.y : s < 12 ? units.z : units.w;
        const int unit = word >> 8 * (s & 3) & 255;
        a0[i] = __ldg(row0 + 4 * unit);
        a1[i] = __ldg(row1 + 4 * unit);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int s = s0 + i;
        if (s >= kSlots) continue;
        const uint4 a = make_uint4(a0[i].x, a1[i].x, a0[i].y, a1[i].y);
        const uint4 a_low = make_uint4(a0[i].z, a1[i].z, a0[i].w, a1[i].w);
        const uint4 z = first_factors[s * 32];
        Accumulate(s == 0, high, a, z.x, z.y);
        Accumulate(s == 0, low[0], a_low, z.x, z.y);
        Accumulate(s == 0, low[1], a, z.z, z.w);
#pragma unroll
        for (int level = 1; level < kSeriesLevels; ++level) {
          if (s >= SeriesSlots(kHeadDim, level)) continue;
          const uint2 y = factors[(kSlots + SeriesTerms(kHeadDim, level) + s) * 32];
          Accumulate(s == 0, rest[level], a, y.x, y.y);
        }
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
      uint4* at = reinterpret_cast<uint4*>(to + ((g >> 1) + 4 * r) * kTileWords + half * kHalfWords +
                                           (4 * group + (tq ^ 2 * half)) * 8);
      at[0] = make_uint4(pair[0], pair[4], pair[1], pair[5]);
      at[1] = make_uint4(pair[2], pair[6], pair[3], pair[7]);
    }
  }
  static __device__ __forceinline__ void Accumulate(bool first, float* d, const uint4& a, uint32_t b0,
                                                    uint32_t b1) {
    if (first) {
      MmaF16FromZero(d, a, b0, b1);
    } else {
      MmaF16(d, a, b0, b1);
    }
  }

  const DecodeParams& p;
  uint8_t* shared_;
  uint32_t* coefficients_;
  uint32_t barrier_;
  int phase_ = 0;  // of the barrier
  uint32_t* at_ = nullptr;        // coefficients of this warp's next tile
  int left_ = 0;                  // tiles that have some
  uint2 phases_[kAhead][kPhases] = {};
};

}  // namespace blockgtq::cuda
