// The attention kernel: everything of a layer's decode attention in one launch. Instantiated by
// decode_kernels_*.cu.
//
// A worker is a cluster of blocks (often of one) and owns a contiguous range of tiles (schedule.h), which its
// warps take in turn, streaming whole records through private rings. Of each (sequence, head) that the range
// touches, every block prepares the queries for itself (that is cheaper than to wait for them), attends to
// its share of the exact tiles, then to its coded tiles. The cluster merges its blocks through distributed
// shared memory; block `rank` finishes query heads rank, rank + blocks, ... Where several workers share a
// (sequence, head), it is the last of the first worker's range and the first of the others': they send their
// parts to the first worker, which merges them in worker order.
//
// Which worker a cluster is, its range says: clusters that start last, where the kernel before still merges,
// are given less (schedule.cu).
#pragma once

#include "src/cuda/decode_layout.h"
#include "src/cuda/decode_merge.cuh"
#include "src/cuda/exact_tile.cuh"
#include "src/cuda/fused_rope.cuh"
#include "src/cuda/mean_bias.cuh"
#include "src/cuda/query_block.cuh"
#include "src/cuda/record_stream.cuh"
#include "src/cuda/tile_attention.cuh"

namespace blockgtq::cuda {

/// Copies the heads' constants, the tiles of earlier sequences and what products need (TileConstants) to
/// shared memory: the constructor asks for a thread's first part of each, Store brings them and the rest.
template <bool kFew, int kThreads>
struct HeadLoader {
  static constexpr int kQuads = sizeof(SharedHead<kFew>) / 16;
  static constexpr int kFixedQuads = (sizeof(HeadHeader) + sizeof(KeyGroup) * kMaxGroups) / 16;
  static constexpr int kTileQuads = kTileConstantsBytes / 16;
  static_assert(sizeof(TileConstantsOfLanes) == kTileConstantsBytes && kTileQuads <= kThreads);
  const DecodeParams& p;
  const int thread = threadIdx.x;
  uint4 first, tile_quad;
  int prefix;

  __device__ __forceinline__ explicit HeadLoader(const DecodeParams& params)
      : p(params), first(make_uint4(0, 0, 0, 0)), tile_quad(make_uint4(0, 0, 0, 0)), prefix(0) {
    if (thread < p.kv_heads * kQuads) first = Read(thread);
    if (thread <= p.batch) prefix = __ldg(p.tile_prefix + thread);
    if (thread < kTileQuads) tile_quad = __ldg(reinterpret_cast<const uint4*>(&tile_constants) + thread);
  }
  /// tile_constants_to: null where they are not wanted
  __device__ __forceinline__ void Store(SharedHead<kFew>* heads, int* tile_prefix,
                                        TileConstantsOfLanes* tile_constants_to) const {
    uint4* to = reinterpret_cast<uint4*>(heads);
    if (thread < p.kv_heads * kQuads) to[thread] = first;
    if (thread <= p.batch) tile_prefix[thread] = prefix;
    if (tile_constants_to && thread < kTileQuads) {
      reinterpret_cast<uint4*>(tile_constants_to)[thread] = tile_quad;
    }
#pragma unroll 1
    for (int i = thread + kThreads; i < p.kv_heads * kQuads; i += kThreads) to[i] = Read(i);
#pragma unroll 1
    for (int i = thread + kThreads; i <= p.batch; i += kThreads) tile_prefix[i] = __ldg(p.tile_prefix + i);
  }

 private:
  __device__ __forceinline__ uint4 Read(int i) const {
    const int h = i / kQuads, quad = i % kQuads;
    const uint4* fixed = reinterpret_cast<const uint4*>(&p.heads[h].header);
    const uint4* passes = reinterpret_cast<const uint4*>(kFew ? p.heads[h].few : p.heads[h].many);
    return __ldg(quad < kFixedQuads ? fixed + quad : passes + (quad - kFixedQuads));
  }
};

/// WorkerSpan of a segment.
__device__ __forceinline__ int2 SpanOf(const DecodeParams& p, const Segment& segment) {
  return __ldg(reinterpret_cast<const int2*>(p.spans) + segment.sequence * p.work_heads + segment.head);
}

/// kBlocks 4: a warp takes whole tiles. 1: four warps share a tile (attention_tile.cuh) and a ring.
/// kRope: rotates the newest token's rows and stores its key and value (FusedRope), instead of taking queries
/// in fp16. What each needs between the wait and the tiles is more than a condition: registers and waits of
/// one would be the other's too.
template <int kWarps, int kHeadDim, bool kFew, int kValueWidth, bool kMean, int kBlocks, bool kRope>
__global__ void __launch_bounds__(kWarps * 32, 1) DecodeKernel(const __grid_constant__ DecodeParams p) {
  LetNextKernelStart();
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  constexpr int kThreads = kWarps * 32, kTeam = 4 / kBlocks, kTeams = kWarps / kTeam;
  constexpr int kSlots = kFew ? kFewQueryHeads : kMaxQueryHeads, kHeads = kFew ? 1 : 2;
  constexpr int kRow = MergeRow(kHeadDim);
  static_assert(sizeof(ExactScratch<kHeadDim, kSlots>) == ExactScratchBytes(kHeadDim, kSlots));
  static_assert(sizeof(ExactScratch<kHeadDim, kSlots>) <= kWarps * kSlots * kHeadDim * 4);
  static_assert(sizeof(MergedOutput<kHeadDim>) <= kWarps * kSlots * kHeadDim * 4);
  using Rows = NewRows<kHeadDim, kSlots>;
  static_assert(sizeof(Rows) <= kSlots * kRow * 4);
  const int thread = threadIdx.x, lane = thread & 31, warp = WarpIndex();
  const int team = warp / kTeam, block16 = warp % kTeam;
  const int blocks = p.cluster_blocks, blocks_shift = 31 - __clz(blocks);  // a power of two
  const int rank = blockIdx.x & (blocks - 1);
  const int stages = p.stages;

  const int4* range = reinterpret_cast<const int4*>(p.ranges + (blockIdx.x >> blocks_shift));
  const int4 range0 = __ldg(range), range1 = __ldg(range + 1);
  const HeadLoader<kFew, kThreads> head_loader(p);
  const SharedLayout layout =
      SharedLayout::For(kWarps, kTeam, kHeadDim, kFew, kMean, kMean ? p.max_direct_units : 0, p.kv_heads,
                        p.batch, p.query_layout.bytes, stages, p.stage_bytes, p.part_heads, blocks);
  const uint32_t mean_barrier = SharedAddress(shared);
  const uint32_t full_barrier = mean_barrier + 16 + 8 * team * stages;
  int2* coded_tokens = reinterpret_cast<int2*>(shared + layout.coded_tokens);  // [begin, end) of the segment
  // These are here because registers are lacking in the tile loop.
  int* inbox_phase = reinterpret_cast<int*>(coded_tokens + 1);
  int* own_worker = inbox_phase + 1;
  const uint32_t empty_barrier = full_barrier + 8 * kTeams * stages;  // only with teams
  SharedHead<kFew>* heads = reinterpret_cast<SharedHead<kFew>*>(shared + layout.heads);
  int* tile_prefix = reinterpret_cast<int*>(shared + layout.prefix);
  auto& lane_constants = *reinterpret_cast<TileConstantsOfLanes*>(shared + layout.tile_constants);
  uint8_t* query = shared + layout.query;
  uint8_t* scratch = shared + layout.scratch;
  const uint8_t* ring = shared + layout.ring + static_cast<size_t>(team) * stages * p.stage_bytes;
  MergeShared merge;
  merge.inbox = reinterpret_cast<float*>(shared + layout.inbox);
  merge.inbox_barrier = mean_barrier + 8;
  merge.warp_output = reinterpret_cast<float*>(scratch);
  merge.warp_states = reinterpret_cast<SoftmaxState*>(shared + layout.states);
  merge.weights = reinterpret_cast<float*>(shared + layout.weights);
  merge.part = reinterpret_cast<float*>(shared + layout.part);
  Rows& token_rows = *reinterpret_cast<Rows*>(shared + layout.rows);
  auto& merged = *reinterpret_cast<MergedOutput<kHeadDim>*>(scratch);

  if (thread == 0) {
    BarrierInit(mean_barrier, kCopyArrivals);
    BarrierInit(merge.inbox_barrier, 1);
    *inbox_phase = 0;
    *own_worker = range1.z;
  }
  if (lane == 0 && block16 == 0) {
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      BarrierInit(full_barrier + 8 * i, kCopyArrivals);
      if (kTeam > 1) BarrierInit(empty_barrier + 8 * i, kTeam * 32);
    }
  }
  BarrierInitFence();
  const int begin = range0.x, end = range0.y;
  if (begin >= end) return;  // the whole cluster
  const Segment start = {range0.z, range0.w, range1.x, range1.y};
  // Of the current segment, asked for ahead of it.
  CodeRange codes = CodesOf(p, start.sequence);
  int2 span = SpanOf(p, start);
  using Mean = MeanBias<kHeadDim, kWarps, kFew, kBlocks>;
  uint8_t* mean_constants = shared + layout.mean;
  QueryTransform<kHeadDim, kWarps> query_transform;
  query_transform.Load(p, p.KvHead(start.head));
  // Records, schedule and constants do not depend on the kernel before this one; queries do, and exact tiles
  // where another kernel stores the newest token. So the wait comes when all that needs neither is on its way,
  // or, where this kernel did not start early and the wait is over, before: queries come sooner.
  QueryFragments<kHeadDim> queries;
  RowLoads<kHeadDim, kWarps> new_rows;  // with kRope
  const auto load_rows = [&](const Segment& segment) {
    if constexpr (kRope) {
      new_rows.Load(p, segment.sequence, segment.head);
    } else {
      const QueryRows rows = RowsOf(p, segment.head);
      queries.Load(QueriesOf(p, segment.sequence, rows), kHeadDim / 2, rows.count);
    }
  };
  if (!kSm90 || !p.early) {
    WaitForPreviousKernel();
    load_rows(start);
  }
  if (rank < p.part_heads) {  // the matrix of the end
    const uint16_t* matrix =
        p.value_fragments + static_cast<size_t>(p.KvHead(start.head)) * kHeadDim * kHeadDim;
#pragma unroll 1
    for (int i = thread; i < kHeadDim * kHeadDim / 64; i += kThreads) PrefetchToL2(matrix + 64 * i);
  }

  // This team's tiles: positions first + step k.
  const int first = begin + rank * kTeams + team, step = blocks * kTeams;
  const int stream_end = block16 == 0 ? end : begin;
  const int first_page = FirstPage(p, begin, first, step, stream_end, start);
  __syncwarp();  // the barriers are there
  if (kMean) Mean::SendForConstants(p, p.KvHead(start.head), mean_constants, mean_barrier);
  head_loader.Store(heads, tile_prefix, &lane_constants);
  __syncthreads();
  if (kSm90 && blocks > 1) ClusterArriveRelaxed();  // the inbox is there
  RecordStream<SharedHead<kFew>> stream(p, heads, tile_prefix, full_barrier, SharedAddress(ring), begin,
                                        first, step, stream_end, start, first_page);
  TileConstants constants;
  if (!kMean) constants = TileConstants::Load(lane_constants);

  // Where registers are lacking the two phases share one (bit 0 the ring's, bit 1 the mean's), and on
  // sm_80 a record's address is computed.
  constexpr bool kSparing = kMean && kWarps > 8 && !kFew;
  Segment current = start;
  int x = begin, k = 0, stage = 0, ring_phase = 0, mean_phase = 0;
  const uint8_t* record = ring;  // of the stage
#pragma unroll 1
  for (;;) {
    const int coded_end = codes.end, tile0 = current.tile, segment_end = min(end, x + current.tiles - tile0);
    const int pair = current.sequence * p.work_heads + current.head, kv_head = p.KvHead(current.head);
    const HeadHeader& header = heads[kv_head].header;
    const int4* passes = reinterpret_cast<const int4*>(heads[kv_head].passes);
    const bool coded = codes.any();
    if (thread == 0) *coded_tokens = int2{codes.begin, codes.end};
    Mean mean(p, mean_constants, shared + layout.factors, scratch, mean_barrier);
    typename Mean::Phases first_phases;
    const auto start_mean = [&] {
      // Rounds in which the first of the block's teams is past x, and the last one before the segment's end.
      const int base = begin + rank * kTeams, ahead = x - base - (kTeams - 1);
      const int first_round = ahead > 0 ? ((ahead - 1) >> blocks_shift) / kTeams + 1 : 0;
      const int end_round = segment_end > base ? ((segment_end - base - 1) >> blocks_shift) / kTeams + 1 : 0;
      mean.Start(header, {tile0 + base - x, step, current.tiles, first_round, end_round}, team, k, block16,
                 first_phases);
    };
    if (kMean && Mean::kStartsEarly) start_mean();
    const QueryHead query_head = {header.key_units, heads[kv_head].group, heads[kv_head].passes};
    const QueryPlaces<kHeadDim, kWarps, kFew> query_places(p, query_head, query);

    const int sharers = span.y * blocks, first_exact = sharers - 1 - ((*own_worker - span.x) * blocks + rank);
    ExactLoads<kHeadDim, kWarps> exact;
    // Otherwise registers are lacking.
    constexpr bool kEarlyKeys = kHeadDim <= 128 && (kWarps <= 8 || (kSm90 && !kMean));
    constexpr bool kEarlyValues = kEarlyKeys && (kBlocks == 4 || kFew || !kMean);
    int length;
    const auto load_exact = [&] {
      length = p.exact_tiles > 0 ? p.length[current.sequence] : 0;
      if (!kEarlyKeys || (!kRope && p.exact_tiles == 0)) return;
      exact.Find(p, current.sequence, kv_head, coded_end, length, first_exact);
      exact.LoadKeys();
      if (kEarlyValues) exact.LoadValues();
    };
    // The first segment (and others before the warp's first tile: once more does no harm). The condition is
    // uniform, but not kept in a register; nor is `begin`.
    const auto waits = [&] {
      return kSm90 && k == 0 && __shfl_sync(~0u, Fresh(static_cast<int>(p.early)), 0);
    };
    if constexpr (kRope) {
      load_exact();
      new_rows.Turn(p, current.sequence);
      if (waits()) new_rows.WaitAndLoad(p, current.sequence, current.head);
    } else {
      if (waits()) {
        WaitForPreviousKernel();
        load_rows(current);
      }
      load_exact();
    }
    const auto query_words = [&] {
      if constexpr (kRope) return QueryWords{token_rows.query[0], Rows::kWords};
      return QueryWords{QueriesOf(p, current.sequence, RowsOf(p, current.head)), kHeadDim / 2};
    };
    typename Mean::Factors factors;
    if (kMean) factors = mean.LoadFactors(kSparing ? ring_phase >> 1 : mean_phase, header);
    if constexpr (kRope) {
      new_rows.Store(p, current.sequence, current.head, token_rows);
      __syncthreads();
      queries.Load(token_rows.query[0], Rows::kWords, RowsOf(p, current.head).count);
    } else if (kMean && warp == kWarps - 1) {
      queries.Store(token_rows.query[0], Rows::kWords, kSlots);
    }
    PrepareQueries<kHeadDim, kWarps, kFew, kMean || (kRope && kSm90)>(
        p, current.head, query_head, query_transform, query_places, queries,
        *reinterpret_cast<QueryScratch<kHeadDim>*>(shared + layout.query_scratch), query, [&] {
          if (kMean) {
            mean.StoreFactors(factors, header, {token_rows.query[0], Rows::kWords},
                              RowsOf(p, current.head).count);
          }
        });
    if (kMean) (kSparing ? ring_phase : mean_phase) ^= kSparing ? 2 : 1;
    __syncthreads();
    if (span.x == *own_worker && rank == 0) {  // for whoever checks the rounding
      uint4* to = reinterpret_cast<uint4*>(p.query_blocks + static_cast<size_t>(pair) * p.query_layout.bytes);
#pragma unroll 1
      for (int i = thread; i < p.query_layout.bytes / 16; i += kThreads) {
        to[i] = reinterpret_cast<const uint4*>(query)[i];
      }
    }
    if (p.exact_tiles > 0) {
      if (!kEarlyKeys) {
        exact.Find(p, current.sequence, kv_head, coded_end, length, first_exact);
        exact.LoadKeys();
      }
      if (!kEarlyValues) exact.LoadValues();
      AttendExactTiles<kHeadDim, kWarps, kSlots>(
          p, current.sequence, current.head, coded_end, length, first_exact, sharers, query_words(), exact,
          *reinterpret_cast<ExactScratch<kHeadDim, kSlots>*>(scratch), merge.part + kSlots * kRow,
          reinterpret_cast<SoftmaxState*>(shared + layout.exact_states),
          [&] {
            if constexpr (kRope) exact.Replace(exact.tile.end - 1, token_rows.key, token_rows.value);
          },
          [&] {
            if constexpr (kRope) token_rows.template StoreToken<kWarps>(p, current.sequence, kv_head);
          });
    }
    if (kMean && !Mean::kStartsEarly) start_mean();
    constexpr bool kLastConstants = !kSm90 && kWarps > 8 && !kFew;
    if (kMean && !kLastConstants) constants = TileConstants::Load(lane_constants);  // not earlier: registers
    if (kMean && coded) mean.Begin(first_phases);
    if (kMean && kLastConstants) constants = TileConstants::Load(lane_constants);

    WarpAttention<kHeadDim, kFew> state;
    state.Clear();
    const SharedQuery shared_query = {query, p.query_layout.scale};
    const SharedValues values = {header.value_codes, header.value_norms, header.value_width};
    float logit[2 * kBlocks * kHeads] = {};
    // The bias of the next tile while values are multiplied: with few heads there are registers for it.
    constexpr bool kAhead = kFew && kHeadDim <= 128;
    if (kMean && kAhead && coded) mean.Set(logit, k, block16);
#pragma unroll 1
    for (;;) {
      const int at = first + step * k;
      if (at >= segment_end) break;
      const int tile = tile0 + at - x;
      if (kMean && coded) {
        if (!kAhead) {
          mean.NextBatch(k, tile);
          mean.Set(logit, k, block16);
        }
        mean.AddMore(logit, k, block16);
      }
      BarrierWait(full_barrier + 8 * stage, kSparing ? ring_phase & 1 : ring_phase);
      if (k == 0) stream.FillAfterFirst();
      if (coded) {
        AttendTile<kHeadDim, kFew, kValueWidth, kBlocks, kMean>(
            state, logit, constants, kSparing && !kSm90 ? ring + stage * p.stage_bytes : record, values,
            passes, shared_query, block16, coded_tokens->x - tile * kTileTokens,
            coded_tokens->y - tile * kTileTokens, [&] {
              if (kAhead) {
                if (at + step < segment_end) mean.NextBatch(k + 1, tile + step);
                mean.Set(logit, k + 1, block16);
              }
            });
      }
      __syncwarp();
      if (kTeam == 1) {
        stream.Refill(stage);
      } else if (first + step * (k + stages) < end) {  // refilled when the team's warps have read it
        BarrierArrive(empty_barrier + 8 * stage);
        if (block16 == 0) {
          BarrierWait(empty_barrier + 8 * stage, ring_phase);
          stream.Refill(stage);
        }
      }
      ++k;
      record += p.stage_bytes;
      if (++stage == stages) {
        stage = 0;
        record = ring;
        ring_phase ^= 1;
      }
    }

    // ---- the end of the segment
    // Heads rank, rank + blocks, ...
    const QueryRows rows = RowsOf(p, current.head);
    const int finished_heads = (rows.count - rank + blocks - 1) >> blocks_shift;
    ValueTransform<kHeadDim, kWarps> value_transform;
    constexpr bool kEarly = kWarps <= 8 && kHeadDim <= 128;  // otherwise registers are lacking
    if (kEarly) value_transform.Load(p, kv_head, finished_heads > 0);
    // Asked for here, where nothing waits for it; the condition costs kRope a register in the tile loop.
    const uint32_t schedule_step = kRope || span.y > 1 ? *p.step : 0;
    state.FinishSum();
    if (kMean) __syncthreads();  // coefficients lie where the warps put their outputs
    MergeWarps<kWarps>(state, merge);
    if (!kEarly) value_transform.Load(p, kv_head, finished_heads > 0);
    __syncthreads();
    const int columns = (p.part_heads + blocks - 1) >> blocks_shift, kinds = p.exact_tiles > 0 ? 2 : 1;
    if (kSm90 && blocks > 1) {
      if (x == begin) ClusterWait();  // for the others' inboxes
      if (thread == 0 && finished_heads > 0) {
        BarrierExpect(merge.inbox_barrier, (blocks - 1) * finished_heads * kinds * kRow * 4);
      }
      SendRows<kWarps, kHeadDim, kSlots>(merge, rank, blocks_shift, columns, rows.count, kinds);
      if (finished_heads > 0) BarrierWait(merge.inbox_barrier, *inbox_phase);
    }
    if (finished_heads > 0) {
      MergeCluster<kWarps, kHeadDim, kSlots>(merge, rank, blocks, columns, finished_heads, p.exact_tiles > 0,
                                             header.value_scale, merged);
    }
    __syncthreads();
    if (thread == 0 && finished_heads > 0) *inbox_phase ^= 1;
    if (blocks > 1) ClusterArriveRelaxed();  // what the others sent is read, and sent again only then
    if (finished_heads > 0) {
      __half* out =
          reinterpret_cast<__half*>(p.out) +
          (static_cast<size_t>(current.sequence) * p.kv_heads * p.query_heads + rows.first) * kHeadDim;
      const int worker = *own_worker;
      const size_t slot = static_cast<size_t>(pair) + worker;
      const bool whole = span.y == 1, merges = span.x == worker;
      const uint32_t flag = schedule_step * kMaxLaunchesAStep + p.launch;
      Unrotate<kHeadDim, kWarps>(p, kv_head, finished_heads, p.exact_tiles > 0, value_transform, merged,
                                 [&](int column, int d, float value) {
                                   const int head = rank + column * blocks;
                                   if (whole) {
                                     out[static_cast<size_t>(head) * kHeadDim + d] = __float2half(value);
                                   } else if (merges) {
                                     merged.exact[column][d] = value;
                                   } else {
                                     SendWord(p.sent + (slot * kMaxQueryHeads + head) * kHeadDim + d,
                                              FlaggedWord(value, flag));
                                   }
                                 });
      if (!whole && !merges && thread < finished_heads) {
        SendWord(p.sent_log_sum + slot * kMaxQueryHeads + rank + thread * blocks,
                 FlaggedWord(SharesOf(merged, thread, p.exact_tiles > 0).log_sum, flag));
      }
      if (!whole && merges) {
        __syncthreads();
        MergeWorkers<kWarps, kHeadDim>(p, flag, slot + 1, span.y - 1, rank, blocks, finished_heads, merged,
                                       out);
      }
    }
    if (blocks > 1) ClusterWait();
    x = segment_end;
    if (x >= end) return;
    current.Next(p, tile_prefix);
    codes = CodesOf(p, current.sequence);
    span = SpanOf(p, current);
    query_transform.Load(p, p.KvHead(current.head));
    load_rows(current);
    if (kMean) Mean::SendForConstants(p, p.KvHead(current.head), mean_constants, mean_barrier);
    __syncthreads();
  }
}

}  // namespace blockgtq::cuda
