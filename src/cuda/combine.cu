// One block a (sequence, work head): its exact tiles, the merge of its partials, the un-rotation of V.
#include "src/cuda/combine.h"
#include "src/cuda/decode_merge.cuh"
#include "src/cuda/exact_tile.cuh"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kHeadDim = 128, kSlots = kMaxQueryHeads;

// Merges the partials of head `column` in dims [32 chunk, 32 chunk + 32), and exact tiles.
// exact: AttendExactTiles' row of the head
__device__ void MergePartials(const DecodeParams& p, size_t first, int count, int column, int chunk,
                              float value_scale, const float* exact, MergedOutput<kHeadDim>& merged) {
  const int lane = threadIdx.x & 31, d = 32 * chunk + lane;
  const float* log_sums = p.partial_log_sum + first * kMaxQueryHeads + column;
  const float* partial = p.partial + (first * kMaxQueryHeads + column) * kHeadDim + d;
  const SoftmaxState e = p.exact_tiles > 0 ? *reinterpret_cast<const SoftmaxState*>(exact + kHeadDim)
                                           : SoftmaxState{kNoLogit, 0.0f};
  float top = kNoLogit;
  for (int i = 0; i < count; ++i) top = fmaxf(top, __ldcg(log_sums + i * kMaxQueryHeads));
  float sum = 0, total = 0;
  for (int i = 0; i < count; ++i) {
    const float log_sum = __ldcg(log_sums + i * kMaxQueryHeads);
    const float weight = log_sum > kNoLogit ? Exp2(log_sum - top) : 0.0f;
    total += weight;
    sum = fmaf(__ldcg(partial + static_cast<size_t>(i) * kMaxQueryHeads * kHeadDim), weight, sum);
  }
  merged.rotated[column][d] = __float2half(total > 0 ? sum / total * value_scale : 0.0f);
  merged.exact[column][d] = e.sum > 0 ? exact[d] / e.sum : 0.0f;
  if (d == 0) {
    merged.log_sum[0][column] = total > 0 ? top + Log2(total) : kNoLogit;
    merged.log_sum[1][column] = e.sum > 0 ? e.largest + Log2(e.sum) : kNoLogit;
  }
}

__global__ void __launch_bounds__(kThreads) CombineKernel(const __grid_constant__ DecodeParams p) {
  __shared__ __align__(16) ExactScratch<kHeadDim, kSlots> scratch;
  __shared__ __align__(16) float exact[kSlots * MergeRow(kHeadDim)];
  __shared__ SoftmaxState exact_states[kSlots];
  __shared__ __align__(16) MergedOutput<kHeadDim> merged;
  const int pair = blockIdx.x, sequence = pair / p.work_heads, work_head = pair % p.work_heads;
  const int kv_head = p.KvHead(work_head);
  const WorkerSpan span = p.spans[pair];
  const QueryRows rows = RowsOf(p, work_head);
  ValueTransform<kHeadDim, kWarps> transform;
  if (kSm90) transform.Load(p, kv_head, true);  // on sm_80, registers for it are lacking here
  const float value_scale = p.heads[kv_head].header.value_scale;
  WaitForPreviousKernel();
  LetNextKernelStart();
  if (p.exact_tiles > 0) {
    const int coded_end = p.coded_end[sequence], length = p.length[sequence];
    ExactLoads<kHeadDim, kWarps> loads;
    loads.Find(p, sequence, kv_head, coded_end, length, 0);
    loads.LoadKeys();
    loads.LoadValues();
    AttendExactTiles<kHeadDim, kWarps, kSlots>(
        p, sequence, work_head, coded_end, length, 0, 1, {QueriesOf(p, sequence, rows), kHeadDim / 2}, loads,
        scratch, exact, exact_states, [] {}, [] {});
  }
  if (!kSm90) transform.Load(p, kv_head, true);
  constexpr int kChunks = kHeadDim / 32;
  for (int task = WarpIndex(); task < rows.count * kChunks; task += kWarps) {
    MergePartials(p, static_cast<size_t>(pair) + span.first, span.count, task / kChunks, task % kChunks,
                  value_scale, exact + task / kChunks * MergeRow(kHeadDim), merged);
  }
  __syncthreads();
  __half* out = reinterpret_cast<__half*>(p.out) +
                (static_cast<size_t>(sequence) * p.kv_heads * p.query_heads + rows.first) * kHeadDim;
  Unrotate<kHeadDim, kWarps>(p, kv_head, rows.count, p.exact_tiles > 0, transform, merged,
                             [&](int column, int d, float value) {
                               out[static_cast<size_t>(column) * kHeadDim + d] = __float2half(value);
                             });
}

}  // namespace

Status LaunchCombine(const DecodeParams& params, CUstream_st* stream) {
  return Launch("combine", CombineKernel, static_cast<int64_t>(params.batch) * params.work_heads, kThreads, 0,
                true, stream, params);
}

}  // namespace blockgtq::cuda
