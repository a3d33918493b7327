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
#include "src/cuda/mean_factors.cuh"
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

/// The mean's bias of one segment, as one warp sees it. The segment calls Start, LoadFactors, StoreFactors,
/// Begin and, for each of the warp's tiles, NextBatch, Set and AddMore. A head without a mean has one of
/// zero.
template <int kHeadDim, int kWarps, bool kFew, int kBlocks>
class MeanBias {
 public:
  static constexpr int kHeads = kFew ? 1 : 2, kGroups = kFew ? 1 : 2;
  static constexpr int kTeams = kBlocks == 4 ? kWarps : kWarps / 4;  // warps with tiles of their own
  static constexpr int kTiles = MeanTiles(kWarps, kFew);
  static_assert(kTiles * kTeams % kBatchTiles == 0, "shared batches end where the tiles do");
  using Factors = MeanFactors<kHeadDim, kWarps, kFew>;
  /// Registers are lacking.
  static constexpr bool kSparing = kWarps > 8 || kHeadDim > 128;
  static constexpr bool kStartsEarly = kHeadDim <= 128 && kWarps <= 8;
  /// Slots whose phases are there when a batch is begun.
  static constexpr int kHeld = std::min(SeriesSlots(kHeadDim, 0), 2);
  /// The same for a warp's first batch, whose phases are on their way while the queries are prepared.
  static constexpr int kHeldAtStart = !kStartsEarly          ? kHeld
                                      : kFew || kBlocks == 1 ? SeriesSlots(kHeadDim, 0)
                                                             : std::min(SeriesSlots(kHeadDim, 0), 3);
  /// Groups of 4 query heads that one pass over a batch's phases serves: all, where there are registers and a
  /// warp takes whole batches.
  static constexpr int kGroupsAPass = kBlocks == 4 && kWarps <= 8 && kHeadDim <= 128 ? kGroups : 1;
  static constexpr int kPasses = kGroups / kGroupsAPass;
  /// Parts (ComputeSeriesPart) of a pass over a batch that warps share, for warps of their own.
  static constexpr int kParts = kWarps <= 8 && kHeadDim <= 128 ? 2 : 1;
  static constexpr int kSharedTasks = kPasses * kParts;  // of a batch
  /// Slots whose phases may be on their way: all, where there are registers, as before the first tile.
  static constexpr int kMostHeld = kFew || (kBlocks == 4 && kWarps <= 8) ? SeriesSlots(kHeadDim, 0)
                                   : kWarps <= 8                         ? 2
                                                                         : 1;
  static constexpr int kMostHeldAtStart = kHeadDim <= 128 ? SeriesSlots(kHeadDim, 0) : kMostHeld;
  template <int kSlots>
  using PhasesOf = BatchPhases<kHeadDim, kSlots, kSparing>;
  using Phases = PhasesOf<kHeldAtStart>;
  using Logits = float[2 * kBlocks * kHeads];

  /// Shared memory (SharedLayout): constants of the head, factors, tiles
  /// [kWarps][kTiles][MeanTileWords].
  __device__ __forceinline__ MeanBias(const DecodeParams& params, uint8_t* constants, uint8_t* factors,
                                      uint8_t* tiles, uint32_t barrier)
      : p(params),
        constants_(constants),
        factors_(factors),
        tiles_(reinterpret_cast<uint32_t*>(tiles)),
        barrier_(barrier) {}

  /// A warp sends for the constants of a segment's head; nobody may still read those of the one before.
  static __device__ __forceinline__ void SendForConstants(const DecodeParams& p, int kv_head,
                                                          uint8_t* constants, uint32_t barrier) {
    if (WarpIndex() != 0) return;
    const int bytes = MeanConstants::Bytes(kHeadDim, p.max_direct_units);
    WarpCopy(SharedAddress(constants), p.mean_constants + static_cast<size_t>(kv_head) * bytes, bytes,
             barrier);
  }

  /// Asks for the phases of the warp's first batch: with kStartsEarly before the queries are prepared.
  /// round: of this team's first tile; block: 16-token block of a tile, where warps share tiles
  __device__ __forceinline__ void Start(const HeadHeader& header, const SegmentTiles& tiles, int team,
                                        int round, int block, Phases& phases) {
    header_ = &header;
    segment_ = tiles;
    const int warp = Fresh(WarpIndex()), lane = Fresh(threadIdx.x & 31), g = lane >> 2, tq = lane & 3;
    const int head = kFew ? g >> 1 : g, half = kFew ? g & 1 : kBlocks == 4 ? 0 : block >> 1;
    const uint32_t* own = TileAt(Shared() ? team : warp, 0);
    coefficients_ = own + half * (CoefficientWords(kFew) / 2) + (head ^ 2 * half) * 8 + 2 * tq;
    direct_phases_ = own + CoefficientWords(kFew) + 4 + half * 8 + 2 * tq;
    more_ = header.direct_units > 1;
    first_tile_ = tiles.base + tiles.step * round + team;
    first_round_ = round;
    // Batches of different warps should not coincide: where they are many, that may cost some warps one more. A
    // few are as short as costs none at first, since then every warp of the device waits for its phases.
    constexpr int kManyRounds = 3 * kTiles;
    const int least = InRing(Rounds() - 1) + 1;
    const int length = Rounds() > kManyRounds ? kTiles - InRing(team) : min(least + team % 3, kTiles);
    batch_end_ = Shared() ? 1 << 30 : round + length;
    LoadBatch(phases, warp);
  }

  /// Waits for the constants and reads what the query's side needs of them. Every thread calls it and then,
  /// when the queries are there, StoreFactors; those are there after the next __syncthreads.
  __device__ __forceinline__ Factors LoadFactors(int barrier_phase, const HeadHeader& header) const {
    BarrierWait(barrier_, barrier_phase);
    Factors factors;
    factors.Load(p, header, constants_);
    return factors;
  }
  __device__ __forceinline__ void StoreFactors(const Factors& factors, const HeadHeader& header,
                                               const QueryWords& queries, int count) const {
    factors.Store(p, header, queries, count, constants_, factors_);
  }

  /// Before the first tile. Every thread of the block calls it.
  __device__ __forceinline__ void Begin(Phases& phases) {
    // A short segment: the warps share the tasks of its batches. Otherwise a warp starts with its own first
    // batch.
    const int warp = WarpIndex();
    if (kParts > 1 && Shared()) {
      const int tasks = Tasks();
#pragma unroll 1
      for (int task = warp; task < tasks; task += kWarps) {
        if (task != warp) LoadBatch(phases, task);
        const int of_batch = task % kSharedTasks;
        ComputePart(phases, SharedTile(task), of_batch / kParts, of_batch % kParts);
      }
      __syncthreads();
      return;
    }
    const bool shared = kParts == 1 && Shared();
    const int step = shared ? kWarps : 1, end = shared ? Tasks() : kPasses;
#pragma unroll 1
    for (int task = shared ? warp : 0; task < end; task += step) {
      if (shared && task != warp) LoadBatch(phases, task);
      Compute<kMostHeldAtStart>(phases, shared ? SharedTile(task) : TileAt(warp, first_round_ + Row()),
                                task % kPasses);
    }
    if (shared) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }

  /// Before Set for a tile other than the segment's first: computes its batch, where that is another one.
  /// round, tile: of the warp's next tile, which the segment has
  __device__ __forceinline__ void NextBatch(int round, int tile) {
    if (__builtin_expect(round != batch_end_, 1)) return;
    batch_end_ += kTiles;
    PhasesOf<kHeld> phases;
    const int last_row = min(kTiles, segment_.end_round - round) - 1;
    phases.Load(p, *header_, segment_.tiles - 1,
                [&](int i) { return tile + segment_.step * min(InRing(i), last_row); });
    phases.Prefetch(p, segment_.tiles - 1,
                    [&](int i) { return tile + segment_.step * (InRing(i) + kTiles); });
    __syncwarp();
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      Compute<kMostHeld>(phases, TileAt(WarpIndex(), round + Row()), pass);
    }
    __syncwarp();
  }

  /// logit becomes the bias of a tile, as AttendTile has its logits, but for what AddMore adds.
  __device__ __forceinline__ void Set(Logits& logit, int round, int block) const {
    const int at = InRing(round) * TileWords();
    const DirectUnit unit = LoadDirect(0, at, block);
    const uint4* a = Constants(block);
    float c[kProducts][kRows][4];
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
      const uint32_t* from = coefficients_ + at;  // heads h and h ^ 2 change places between the halves
      if (h == 1) from += CoefficientWords(kFew) / 2 + SwappedHead();

      const uint2 b = *reinterpret_cast<const uint2*>(from);
#pragma unroll
      for (int m = 0; m < kRows; ++m) MmaF16FromZero(c[h][m], a[m * 32], b.x, b.y);
    }
    AddDirect(c, unit);
    Exchange<false>(logit, c, block);
  }

  /// Adds the direct units after the first one; most heads have none.
  __device__ __forceinline__ void AddMore(Logits& logit, int round, int block) const {
    if (__builtin_expect(more_, 0)) {
      float c[kProducts][kRows][4];
#pragma unroll
      for (int h = 0; h < kProducts; ++h) {
#pragma unroll
        for (int m = 0; m < kRows; ++m) c[h][m][0] = c[h][m][1] = c[h][m][2] = c[h][m][3] = 0;
      }
#pragma unroll 1
      for (int u = 1; u < header_->direct_units; ++u) {
        AddDirect(c, LoadDirect(u, InRing(round) * TileWords(), block));
      }
      Exchange<true>(logit, c, block);
    }
  }

 private:
  // A tile is kRows 16-token rows of kProducts products: with many heads a half tile each.
  static constexpr int kRows = kBlocks == 4 ? 2 : 1, kProducts = kFew || kBlocks == 1 ? 1 : 2;
  struct DirectUnit {
    uint4 query, a[kRows];
    uint2 phase[kProducts];
  };

  /// Words from head g's coefficients to head (g ^ 2)'s.
  static __device__ __forceinline__ int SwappedHead() { return threadIdx.x & 8 ? -16 : 16; }
  __device__ __forceinline__ const uint4* Constants(int block) const {
    return reinterpret_cast<const uint4*>(constants_) + (threadIdx.x & 31) +
           (kBlocks == 4 ? 0 : (block & 1) * 32);
  }
  __device__ __forceinline__ DirectUnit LoadDirect(int u, int at, int block) const {
    constexpr int kFirst = MeanConstants::Direct(kHeadDim) / 16, kStride = MeanConstants::kDirectBytes / 16;
    DirectUnit d;
    d.query = Constants(0)[kFirst + u * kStride + MeanConstants::kDirectQuery / 16];
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
      d.phase[h] = *reinterpret_cast<const uint2*>(direct_phases_ + at + 16 * u + 8 * h);
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) d.a[m] = Constants(block)[kFirst + u * kStride + m * 32];
    return d;
  }
  static __device__ __forceinline__ void AddDirect(float (&c)[kProducts][kRows][4], const DirectUnit& d) {
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
      const uint32_t b0 = TurnBack(d.query.x, d.query.z, d.phase[h].x);
      const uint32_t b1 = TurnBack(d.query.y, d.query.w, d.phase[h].y);
#pragma unroll
      for (int m = 0; m < kRows; ++m) MmaF16(c[h][m], d.a[m], b0, b1);
    }
  }
  /// (x, y) cos + (y, -x) sin: a block turned back.
  static __device__ __forceinline__ uint32_t TurnBack(uint32_t xy, uint32_t yx, uint32_t phase) {
    const __half2 z = WordHalves(phase);
    return HalfWord(__hfma2(WordHalves(xy), __low2half2(z), __hmul2(WordHalves(yx), __high2half2(z))));
  }
  /// logit = (kAdd: +=) the products' results, of token 32 half + 16 m + 8 r + g.
  template <bool kAdd>
  static __device__ __forceinline__ void Exchange(Logits& logit, const float (&c)[kProducts][kRows][4],
                                                  int block) {
    const auto put = [](float& l, float value) { l = kAdd ? l + value : value; };
#pragma unroll
    for (int h = 0; h < kProducts; ++h) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if constexpr (kFew && kBlocks == 4) {
            put(logit[2 * m + r], c[0][m][2 * r]);
            put(logit[4 + 2 * m + r], c[0][m][2 * r + 1]);
          } else if constexpr (kFew) {
            put(logit[r], block >> 1 ? c[0][0][2 * r + 1] : c[0][0][2 * r]);
          } else {
            put(logit[2 * (4 * h + 2 * m + r)], c[h][m][2 * r]);
            put(logit[2 * (4 * h + 2 * m + r) + 1], c[h][m][2 * r + 1]);
          }
        }
      }
    }
  }

  /// The place of a round, or of row i of a warp's own batch: with room for half of one its other rows are the
  /// same tiles again. Rows past the batch's end have its last tile's phases, whose coefficients nobody reads.
  static __device__ __forceinline__ int InRing(int round) { return round & (kTiles - 1); }
  __device__ __forceinline__ int TileWords() const { return MeanTileWords(kFew, p.max_direct_units); }
  /// What a tile of round `round` has; `owner`: a team, where the warps share batches, or a warp.
  __device__ __forceinline__ uint32_t* TileAt(int owner, int round) const {
    return tiles_ + (owner * kTiles + InRing(round)) * TileWords();
  }
  static __device__ __forceinline__ int Row() { return Fresh(threadIdx.x >> 2 & 7); }
  /// Of this lane, where the warps share batches.
  __device__ __forceinline__ uint32_t* SharedTile(int task) const {
    const int index = task / kSharedTasks * kBatchTiles + Row();
    return TileAt(index % kTeams, segment_.first_round + index / kTeams);
  }
  __device__ __forceinline__ int Rounds() const { return segment_.end_round - segment_.first_round; }
  /// Whether the block's batches are shared by its warps, because a warp has no more tiles than there is room
  /// for.
  __device__ __forceinline__ bool Shared() const { return Rounds() <= kTiles; }
  /// Of the batches together, where they are shared.
  __device__ __forceinline__ int Tasks() const {
    return (Rounds() * kTeams + kBatchTiles - 1) / kBatchTiles * kSharedTasks;
  }
  /// Phases of a batch: that of a shared task, or this warp's first own one.
  __device__ __forceinline__ void LoadBatch(Phases& phases, int task) const {
    const bool shared = Shared();
    const auto tile_of = [&](int i) {
      const int index = min(task / kSharedTasks * kBatchTiles + i, Rounds() * kTeams - 1);
      return shared ? segment_.base + segment_.step * (segment_.first_round + index / kTeams) + index % kTeams
                    : first_tile_ + segment_.step * min(InRing(i), batch_end_ - first_round_ - 1);
    };
    phases.Load(p, *header_, segment_.tiles - 1, tile_of, shared && task % kParts == 1);
  }
  /// What a batch's tiles have for the heads of a pass, from the phases loaded. to: of this lane's tile
  template <int kMost, int kSlots>
  __device__ __forceinline__ void Compute(const PhasesOf<kSlots>& phases, uint32_t* to, int pass) const {
    if (pass == 0) phases.StoreDirect(*header_, to + CoefficientWords(kFew) + 4);
    const int group = pass * kGroupsAPass;
    ComputeSeries<kHeadDim, kFew, kGroupsAPass, kMost>(
        phases, header_->series_units, factors_ + group * FactorBytesOfGroup(kHeadDim), group, to);
  }

  /// A part of it (ComputeSeriesPart).
  __device__ __forceinline__ void ComputePart(const Phases& phases, uint32_t* to, int pass, int part) const {
    if constexpr (kParts > 1) {
      if (pass == 0 && part == 1) phases.StoreDirect(*header_, to + CoefficientWords(kFew) + 4);
      const int group = pass * kGroupsAPass;
      ComputeSeriesPart<kHeadDim, kFew, kGroupsAPass>(
          part, phases, header_->series_units, factors_ + group * FactorBytesOfGroup(kHeadDim), group, to);
    }
  }

  const DecodeParams& p;
  uint8_t *constants_, *factors_;
  uint32_t* tiles_;
  uint32_t barrier_;
  // Of the segment.
  const HeadHeader* header_ = nullptr;
  SegmentTiles segment_ = {};
  int first_tile_ = 0, first_round_ = 0;                               // of this team
  bool more_ = false;                                                  // than one direct unit
  const uint32_t *coefficients_ = nullptr, *direct_phases_ = nullptr;  // this lane's, of round 0's place
  int batch_end_ = 0;                                                  // the round that needs another batch
};

}  // namespace blockgtq::cuda
