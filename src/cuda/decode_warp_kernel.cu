// Attention where every warp is its own worker, with a range of tiles, a query block and partials of its own:
// better for many short sequences, because nothing is block-wide. Head dim 128, 3-bit values, at most 4 query
// heads, no mean. query_prep.cu runs before it, combine.cu after it.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {
namespace {

constexpr int kWarps = kWarpWorkerWarps, kThreads = kWarps * 32, kHeadDim = 128, kValueWidth = 3;
constexpr bool kFew = true;

__global__ void __launch_bounds__(kThreads, 1) WarpWorkerKernel(const __grid_constant__ DecodeParams p) {
  LetNextKernelStart();
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  const int thread = threadIdx.x, lane = thread & 31, warp = WarpIndex();
  const int g = lane >> 2, tq = lane & 3, worker = blockIdx.x * kWarps + warp, stages = p.stages;
  const WarpSharedLayout layout =
      WarpSharedLayout::For(kWarps, p.kv_heads, p.batch, p.query_layout.bytes, stages, p.stage_bytes);
  const uint32_t query_barrier = SharedAddress(shared) + 16 * warp;
  const uint32_t ring_barrier = SharedAddress(shared) + 8 * (2 * kWarps + warp * stages);
  SharedHead<kFew>* heads = reinterpret_cast<SharedHead<kFew>*>(shared + layout.heads);
  int* tile_prefix = reinterpret_cast<int*>(shared + layout.prefix);
  uint8_t* queries = shared + layout.queries + warp * 2 * layout.query_bytes;
  const uint8_t* ring = shared + layout.ring + static_cast<size_t>(warp) * stages * p.stage_bytes;

  if (lane == 0) {
    BarrierInit(query_barrier, kCopyArrivals);
    BarrierInit(query_barrier + 8, kCopyArrivals);
    for (int i = 0; i < stages; ++i) BarrierInit(ring_barrier + 8 * i, kCopyArrivals);
  }
  BarrierInitFence();
  const int4 range0 = __ldg(reinterpret_cast<const int4*>(p.ranges + worker));
  const int4 range1 = __ldg(reinterpret_cast<const int4*>(p.ranges + worker) + 1);
  HeadLoader<kFew, kThreads>(p).Store(heads, tile_prefix, nullptr);
  // The combine kernel's matrices, which it would otherwise wait for: each block asks for a share of them.
  const int lines = p.kv_heads * kHeadDim * kHeadDim / 64;
  for (int i = blockIdx.x * kThreads + thread; i < lines; i += gridDim.x * kThreads) {
    PrefetchToL2(p.value_fragments + static_cast<size_t>(i) * 64);
  }
  __syncthreads();
  const int begin = range0.x, end = range0.y;
  if (begin >= end) return;
  const Segment start = {range0.z, range0.w, range1.x, range1.y};
  RecordStream<SharedHead<kFew>> stream(p, heads, tile_prefix, ring_barrier, SharedAddress(ring), begin,
                                        begin, 1, end, start,
                                        FirstPage(p, begin, begin, 1, end, start));

  Segment query_segment = start;
  int query_at = begin, queries_loaded = 0;
  const auto load_queries = [&]() {  // two segments ahead
    if (query_at < end) {
      WarpCopy(
          SharedAddress(queries + (queries_loaded & 1) * layout.query_bytes),
          p.query_blocks + static_cast<size_t>(query_segment.sequence * p.work_heads + query_segment.head) *
                               p.query_layout.bytes,
          p.query_layout.bytes, query_barrier + 8 * (queries_loaded & 1));
      query_at += query_segment.tiles - query_segment.tile;
      if (query_at < end) query_segment.Next(p, tile_prefix);
    }
    ++queries_loaded;
  };
  WaitForPreviousKernel();  // records do not depend on the kernel before; queries and partials do
  load_queries();
  load_queries();

  const TileConstants constants = TileConstants::Load(tile_constants);
  Segment current = start;
  int x = begin, k = 0, stage = 0, ring_phase = 0, segment = 0;
  const uint8_t* record = ring;  // of the stage
#pragma unroll 1
  while (x < end) {
    const CodeRange codes = CodesOf(p, current.sequence);
    const int tile0 = current.tile, segment_end = min(end, x + current.tiles - tile0);
    const SharedHead<kFew>& head = heads[p.KvHead(current.head)];
    const SharedValues values = {head.header.value_codes, head.header.value_norms, kValueWidth};
    BarrierWait(query_barrier + 8 * (segment & 1), (segment >> 1) & 1);
    const SharedQuery query = {queries + (segment & 1) * layout.query_bytes, p.query_layout.scale};
    WarpAttention<kHeadDim, kFew> state;
    state.Clear();
#pragma unroll 1
    for (; begin + k < segment_end; ++k) {
      const int tile = tile0 + begin + k - x;
      BarrierWait(ring_barrier + 8 * stage, ring_phase);
      if (k == 0) stream.FillAfterFirst();
      if (codes.any()) {
        float logit[8];
        AttendTile<kHeadDim, kFew, kValueWidth, 4, false>(
            state, logit, constants, record, values, reinterpret_cast<const int4*>(head.passes), query, 0,
            codes.begin - tile * kTileTokens, codes.end - tile * kTileTokens, [] {});
      }
      __syncwarp();
      stream.Refill(stage);
      record += p.stage_bytes;
      if (++stage == stages) {
        stage = 0;
        record = ring;
        ring_phase ^= 1;
      }
    }
    state.FinishSum();
    load_queries();
    if (tq < p.part_heads) {
      const size_t slot =
          (static_cast<size_t>(current.sequence * p.work_heads + current.head) + worker) * kMaxQueryHeads +
          tq;
      const float inverse = state.sum[0] > 0 ? 1.0f / state.sum[0] : 0.0f;
      float* out = p.partial + slot * kHeadDim + g;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; ++i) out[8 * i] = state.output[i] * inverse;
      if (g == 0) p.partial_log_sum[slot] = CodedLogSum(state.largest[0], state.sum[0]);
    }
    x = segment_end;
    ++segment;
    if (x < end) current.Next(p, tile_prefix);
  }
}

}  // namespace

DecodeKernelPointer WarpWorkerDecodeKernel() { return WarpWorkerKernel; }

}  // namespace blockgtq::cuda
