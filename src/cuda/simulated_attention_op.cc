// See simulated_attention_op.h.
#include "src/cuda/simulated_attention_op.h"

#include <cuda_runtime.h>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

Result<float*> HostSide::Rows(int64_t floats) {
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (rows_.bytes() < bytes) {
    rows_ = PinnedBuffer();
    BGTQ_ASSIGN_OR_RETURN(rows_, PinnedBuffer::Allocate(bytes, "rows of a simulated cache's attention"));
  }
  return rows_.As<float>();
}

Result<std::unique_ptr<SimulatedAttentionOp>> SimulatedAttentionOp::Create(Device& device, HostSide& host,
                                                                           KvCache& cache,
                                                                           const LayerRopes& ropes) {
  const CacheMemory* memory = cache.options().memory;
  if (memory != nullptr && memory != &HostMemory()) {
    return Status(ErrorCode::kInvalidArgument,
                  "a simulated cache is in host memory, whatever the device: this one is elsewhere");
  }
  std::unique_ptr<SimulatedAttentionOp> op(new SimulatedAttentionOp(device, host, cache));
  op->attention_ = host.cores().Bind(cache, ropes);
  return op;
}

Status SimulatedAttentionOp::Run(const AttentionCall& call, const AttentionRows& rows) {
  const CacheGeometry& g = cache_.geometry();
  const int64_t of_queries = batch_.rows() * call.heads * g.head_dim,
                of_keys = batch_.rows() * g.kv_heads * g.head_dim;
  // The output of the layer before may still be on its way from these rows.
  BGTQ_RETURN_IF_ERROR(device_.Synchronize());
  BGTQ_ASSIGN_OR_RETURN(float* const memory, host_.Rows(2 * of_queries + 2 * of_keys));
  HostRows host;
  host.rows = batch_.rows();
  host.queries = memory;
  host.out = host.queries + of_queries;
  host.keys = host.out + of_queries;
  host.values = rows.values != nullptr ? host.keys + of_keys : nullptr;
  const auto copy = [&](float* to, const float* from, int64_t count, cudaMemcpyKind kind) {
    return CudaStatus(
        cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float), kind, device_.stream()),
        "copying a simulated cache's rows");
  };
  BGTQ_RETURN_IF_ERROR(copy(host.queries, rows.queries, of_queries, cudaMemcpyDeviceToHost));
  BGTQ_RETURN_IF_ERROR(copy(host.keys, rows.keys, of_keys, cudaMemcpyDeviceToHost));
  if (host.values != nullptr)
    BGTQ_RETURN_IF_ERROR(copy(host.values, rows.values, of_keys, cudaMemcpyDeviceToHost));
  BGTQ_RETURN_IF_ERROR(device_.Synchronize());
  BGTQ_RETURN_IF_ERROR(attention_->Run(call, host));
  return copy(rows.full_out, host.out, of_queries, cudaMemcpyHostToDevice);
}

}  // namespace blockgtq::cuda
