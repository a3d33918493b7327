// One block a (sequence, work head).
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_block.cuh"
#include "src/cuda/query_prep.h"

namespace blockgtq::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32, kHeadDim = 128;

__global__ void __launch_bounds__(kThreads) QueryPrepKernel(const __grid_constant__ DecodeParams p) {
  LetNextKernelStart();
  BGTQ_DYNAMIC_SHARED(uint8_t, 16, block);
  __shared__ QueryScratch<kHeadDim> scratch;
  __shared__ DeviceHead head;
  const int sequence = blockIdx.x / p.work_heads, work_head = blockIdx.x % p.work_heads;
  const int kv_head = p.KvHead(work_head);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(DeviceHead)) / 16; i += kThreads) {
    reinterpret_cast<uint4*>(&head)[i] = __ldg(reinterpret_cast<const uint4*>(p.heads + kv_head) + i);
  }
  QueryTransform<kHeadDim, kWarps> transform;
  transform.Load(p, kv_head);
  __syncthreads();
  const QueryHead query_head = {head.header.key_units, head.group, head.few};
  const QueryPlaces<kHeadDim, kWarps, true> places(p, query_head, block);
  WaitForPreviousKernel();
  QueryFragments<kHeadDim> queries;
  const QueryRows rows = RowsOf(p, work_head);
  queries.Load(QueriesOf(p, sequence, rows), kHeadDim / 2, rows.count);
  PrepareQueries<kHeadDim, kWarps, true>(p, work_head, query_head, transform, places, queries, scratch, block,
                                         [] {});
  __syncthreads();
  uint4* out =
      reinterpret_cast<uint4*>(p.query_blocks + static_cast<size_t>(blockIdx.x) * p.query_layout.bytes);
  for (int i = threadIdx.x; i < p.query_layout.bytes / 16; i += kThreads) {
    out[i] = reinterpret_cast<const uint4*>(block)[i];
  }
}

}  // namespace

Status LaunchQueryPrep(const DecodeParams& params, bool early, CUstream_st* stream) {
  return Launch("query preparation", QueryPrepKernel, static_cast<int64_t>(params.batch) * params.work_heads,
                kThreads, params.query_layout.bytes, early, stream, params);
}

}  // namespace blockgtq::cuda
