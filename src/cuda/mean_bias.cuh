// The key mean's part of the logits, which the codes leave out: q . R_t mu for every token t.
//
// Half tiles of 32 tokens, around their centre c (mean_layout.h has the kinds of units):
//   series  sum_n T_n(x) Re(i^n a_n conj(q) mu e^{i theta c}), blocks summed. The query's factors i^n a_n
//           conj(q) mu are made once a segment; a product of 16 rows of phases (8 tiles) with them gives the
//           coefficients, another one with the constant polynomials the logits. Degrees 0 and 1, which carry
//           large means, have 22 bits throughout.
//   direct  (R_{-c} q) . (R_{r - 15.5} mu) in fp16.
// Columns of a product are query heads; with few heads a half tile each, (head, half) = (column / 2, column %
// 2).
#pragma once

#include <algorithm>

#include "src/cuda/async_copy.cuh"
#include "src/cuda/decode_layout.h"
#include "src/cuda/mean_series.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_block.cuh"

namespace blockgtq::cuda {

/// Where a block's tiles of a segment are: round k has tiles base + step k + team, of those in [0, tiles)
/// that belong to the segment.
struct SegmentTiles {
  int base, step, tiles;  // `tiles` of the (sequence, head)
  int first_round, end_round;
};

/// The mean's bias, as one warp sees it. A segment calls Start, PrepareQueries, Begin and, for each of the
/// warp's tiles, Add.
template <int kHeadDim, int kWarps, bool kFew, int kBlocks>
class MeanBias {
 public:
  static constexpr int kHeads = kFew ? 1 : 2, kGroups = kFew ? 1 : 2;
  static constexpr int kTeams = kBlocks == 4 ? kWarps : kWarps / 4;  // warps with tiles of their own
  using Factors = MeanFactors<kHeadDim, kWarps, kFew>;
  // Blocks of 12 warps have fewer registers, blocks with 8 heads and head dim 256 use more.
  static constexpr int kSlots = SeriesSlots(kHeadDim, 0), kMostHeld = kWarps > 8 && !kFew ? 4 : 7;
  using Phases = BatchPhases<kHeadDim, std::min(kSlots, kMostHeld)>;
  /// Whether the first batch's phases are asked for before the queries are prepared.
  static constexpr bool kEarlyPhases = kWarps <= 8 && kHeadDim <= 128;

  /// shared: MeanShared. tiles: [kWarps][kBatchTiles][MeanTileWords]
  __device__ __forceinline__ MeanBias(const DecodeParams& params, uint8_t* shared, uint32_t* tiles,
                                      uint32_t barrier)
      : p(params), shared_(shared), tiles_(tiles), barrier_(barrier) {}

  /// A warp sends for the constants of a segment's head; nobody may still read those of the one before.
  __device__ __forceinline__ void SendForConstants(int kv_head) const {
    if (WarpIndex() != 0) return;
    const int bytes = MeanConstants::Bytes(kHeadDim, p.max_direct_units);
    WarpCopy(SharedAddress(shared_), p.mean_constants + static_cast<size_t>(kv_head) * bytes, bytes, barrier_);
  }

  /// Asks for what the segment needs first: queries, and the phases of the warp's first batch. `round`: of
  /// this team's first tile.
  __device__ __forceinline__ void Start(const HeadHeader& header, int sequence, int work_head,
                                        const SegmentTiles& tiles, int team, int round) {
    header_ = &header;
    segment_ = tiles;
    series_ = header.series_units;
    direct_ = header.direct_units;
    if (series_ + direct_ == 0) return;
    factors_.Load(p, header, sequence, work_head);
    const int warp = WarpIndex(), lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3;
    const int head = kFew ? g >> 1 : g, half = kFew ? g & 1 : 0;
    coefficient_ = half * (CoefficientWords(kFew) / 2) + (head ^ 2 * half) * 8 + 2 * tq;
    direct_phase_ = CoefficientWords(kFew) + 4 + half * 8 + 2 * tq;
    if (!Shared()) {
      first_tile_ = tiles.base + tiles.step * round + team;
      at_ = Slot(warp);
      stride_ = TileWords();
      // Batches of different warps should not coincide, which costs some warps one batch more.
      constexpr int kManyRounds = 3 * kBatchTiles;
      left_ = kBatchTiles - (Rounds() > kManyRounds ? team % kBatchTiles : 0);
    } else {
      at_ = tiles_ + ((round - tiles.first_round) * kTeams + team) * TileWords();
      stride_ = kTeams * TileWords();
      left_ = 1 << 30;  // no other batch
    }
    if (kEarlyPhases) LoadFirst(warp);
  }

  /// The query's side. Every thread calls it; ready after the next __syncthreads.
  __device__ __forceinline__ void PrepareQueries() {
    BarrierWait(barrier_, phase_);
    phase_ ^= 1;
    if (series_ + direct_ > 0) factors_.Store(p, series_ > 0, direct_, shared_);
  }

  /// Before the first tile. Every thread of the block calls it.
  __device__ __forceinline__ void Begin() {
    // A short segment: the warps share its batches, each for 4 heads. Tile i of the block is i-th in shared
    // memory. Otherwise a warp starts with its own first batch.
    const bool shared = Shared();
    const int warp = WarpIndex(), step = shared ? kWarps : 1, end = shared ? Tasks() : kGroups;
#pragma unroll 1
    for (int task = shared ? warp : 0; task < end; task += step) {
      const int batch = task / kGroups, group = task % kGroups;
      if (task == (shared ? warp : 0)) {
        if (!kEarlyPhases) LoadFirst(warp);
      } else if (shared) {
        phases_.Load(p, *header_, segment_.tiles - 1, SharedTile(batch));
      }
      Compute(Slot(shared ? batch : warp), group);
    }
    if (shared) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }

  /// logit: becomes the bias of one tile, as AttendTile has its logits.
  __device__ __forceinline__ void Add(float (&logit)[2 * kBlocks * kHeads], int tile, int block) {
    if (__builtin_expect(left_ == 0, 0)) {
      at_ = Slot(WarpIndex());
      left_ = kBatchTiles;
      phases_.Load(p, *header_, segment_.tiles - 1, [&](int i) { return tile + segment_.step * i; });
      __syncwarp();
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) Compute(at_, group);
      __syncwarp();
    }
    float c[kProducts][kRows][4];
    if (__builtin_expect(series_ > 0 && direct_ == 1,
                         1)) {  // the whole mean, mostly: everything is on its way at once
      DirectUnit unit = LoadDirect(0, block);
      AddSeries(c, block);
      AddDirect(c, unit);
    } else {
      if (series_ > 0) {
        AddSeries(c, block);
      } else {
#pragma unroll
        for (int h = 0; h < kProducts; ++h) {
#pragma unroll
          for (int m = 0; m < kRows; ++m) c[h][m][0] = c[h][m][1] = c[h][m][2] = c[h][m][3] = 0;
        }
      }
#pragma unroll 1
      for (int u = 0; u < direct_; ++u) AddDirect(c, LoadDirect(u, block));
    }
    at_ += stride_;
    --left_;
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
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
  // A tile is kRows 16-token rows of kProducts products: with many heads a half tile each.
  static constexpr int kRows = kBlocks == 4 ? 2 : 1, kProducts = kFew || kBlocks == 1 ? 1 : 2;
  struct DirectUnit {
    uint4 query, a[kRows];
    uint2 phase[kProducts];
  };

  /// The half tile of the h-th product, where columns are heads alone.
  static __device__ __forceinline__ int HalfOf(int h, int block) {
    return kFew ? 0 : kBlocks == 4 ? h : block >> 1;
  }
  __device__ __forceinline__ const uint4* Constants(int block) const {
    return reinterpret_cast<const uint4*>(shared_) + (threadIdx.x & 31) +
           (kBlocks == 4 ? 0 : (block & 1) * 32);
  }
  __device__ __forceinline__ DirectUnit LoadDirect(int u, int block) const {
    DirectUnit d;
    d.query =
        reinterpret_cast<const uint4*>(shared_ + Factors::Layout(p).queries)[u * 32 + (threadIdx.x & 31)];
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
      d.phase[h] = *reinterpret_cast<const uint2*>(at_ + direct_phase_ + 16 * u + 8 * HalfOf(h, block));
    }
    const uint4* a = Constants(block) + MeanConstants::Direct(kHeadDim) / 16 + u * 64;
#pragma unroll
    for (int m = 0; m < kRows; ++m) d.a[m] = a[m * 32];
    return d;
  }
  __device__ __forceinline__ void AddDirect(float (&c)[kProducts][kRows][4], const DirectUnit& d) const {
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
      const uint32_t b0 = TurnBack(d.query.x, d.query.z, d.phase[h].x);
      const uint32_t b1 = TurnBack(d.query.y, d.query.w, d.phase[h].y);
#pragma unroll
      for (int m = 0; m < kRows; ++m) MmaF16(c[h][m], d.a[m], b0, b1);
    }
  }
  /// c becomes the series.
  __device__ __forceinline__ void AddSeries(float (&c)[kProducts][kRows][4], int block) const {
    const uint4* a = Constants(block);
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
      const int half = HalfOf(h, block);  // heads h and h ^ 2 change places between the halves
      const uint2 b = *reinterpret_cast<const uint2*>(at_ + (coefficient_ ^ 16 * half) +
                                                      half * (CoefficientWords(kFew) / 2));
#pragma unroll
      for (int m = 0; m < kRows; ++m) MmaF16FromZero(c[h][m], a[m * 32], b.x, b.y);
    }
  }

  __device__ __forceinline__ int TileWords() const { return MeanTileWords(kFew, p.max_direct_units); }
  __device__ __forceinline__ uint32_t* Slot(int batch) const {
    return tiles_ + batch * kBatchTiles * TileWords();
  }
  __device__ __forceinline__ int Rounds() const { return segment_.end_round - segment_.first_round; }
  /// Whether the block's batches are shared by its warps, because a warp has no more tiles than one batch.
  __device__ __forceinline__ bool Shared() const { return Rounds() <= kBatchTiles; }
  /// Batches times groups of 4 query heads, where they are shared.
  __device__ __forceinline__ int Tasks() const {
    return (Rounds() * kTeams + kBatchTiles - 1) / kBatchTiles * kGroups;
  }
  __device__ __forceinline__ auto SharedTile(int batch) const {
    return [this, batch](int i) {
      const int index = batch * kBatchTiles + i;
      return segment_.base + segment_.step * (segment_.first_round + index / kTeams) + index % kTeams;
    };
  }
  /// Phases of the batch that warp `warp` computes first.
  __device__ __forceinline__ void LoadFirst(int warp) {
    if (!Shared()) {
      phases_.Load(p, *header_, segment_.tiles - 1, [this](int i) { return first_tile_ + segment_.step * i; });
    } else if (warp < Tasks()) {
      phases_.Load(p, *header_, segment_.tiles - 1, SharedTile(warp / kGroups));
    }
  }
  /// (x, y) cos + (y, -x) sin: a block turned back.
  static __device__ __forceinline__ uint32_t TurnBack(uint32_t xy, uint32_t yx, uint32_t phase) {
    const __half2 z = WordHalves(phase);
    return HalfWord(__hfma2(WordHalves(xy), __low2half2(z), __hmul2(WordHalves(yx), __high2half2(z))));
  }
  /// What a batch's tiles have for 4 heads, from the phases loaded.
  __device__ __forceinline__ void Compute(uint32_t* to, int group) const {
    const int tile_words = TileWords();
    if (group == 0) phases_.StoreDirect(*header_, direct_, to + CoefficientWords(kFew) + 4, tile_words);
    if (series_ == 0) return;
    const MeanShared layout = Factors::Layout(p);
    ComputeSeries<kHeadDim, kFew>(phases_, series_, shared_ + layout.factors + group * layout.group_bytes,
                                  group, to, tile_words);
  }

  const DecodeParams& p;
  uint8_t* shared_;
  uint32_t* tiles_;
  uint32_t barrier_;
  int phase_ = 0;  // of the barrier
  // Of the segment.
  const HeadHeader* header_ = nullptr;
  SegmentTiles segment_ = {};
  int first_tile_ = 0;                      // of this team
  int series_ = 0, direct_ = 0;             // units
  int coefficient_ = 0, direct_phase_ = 0;  // words of a tile where this lane's are (of half tile 0)
  Factors factors_;
  Phases phases_;
  uint32_t* at_ = nullptr;  // what this warp's next tile has
  int stride_ = 0;          // to the one after it
  int left_ = 0;            // tiles until the next batch
};

}  // namespace blockgtq::cuda
