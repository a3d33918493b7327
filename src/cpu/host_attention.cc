// See host_attention.h.
#include "src/cpu/host_attention.h"

#include <utility>

#include "src/core/thread_pool.h"
#include "src/cpu/attention_op.h"
#include "src/cpu/cpu_backend.h"

namespace blockgtq::cpu {
namespace {

class CpuHostAttention : public HostAttention {
 public:
  CpuHostAttention(ThreadPool& pool, KvCache& cache, const LayerRopes& ropes)
      : op_(pool, cache, ropes), geometry_(cache.geometry()) {}

  Status Run(const AttentionCall& call, const HostRows& rows) override {
    const int64_t dim = geometry_.head_dim, query_columns = call.heads * dim,
                  columns = geometry_.kv_heads * dim;
    const CpuActivations queries(rows.queries, rows.rows, query_columns);
    const CpuActivations keys(rows.keys, rows.rows, columns), values(rows.values, rows.rows, columns);
    CpuActivations out(rows.out, rows.rows, query_columns);
    return op_.Run(call, queries, keys, rows.values != nullptr ? &values : nullptr, out);
  }

 private:
  AttentionOp op_;
  CacheGeometry geometry_;
};

class CpuAttentionCores : public HostAttentionCores {
 public:
  explicit CpuAttentionCores(int threads) : pool_(threads) {}
  std::unique_ptr<HostAttention> Bind(KvCache& cache, const LayerRopes& ropes) override {
    return std::make_unique<CpuHostAttention>(pool_, cache, ropes);
  }

 private:
  ThreadPool pool_;
};

}  // namespace

Result<std::unique_ptr<HostAttentionCores>> CreateHostAttention(int threads) {
  BGTQ_ASSIGN_OR_RETURN(const int count, ThreadCount(threads));
  return std::unique_ptr<HostAttentionCores>(new CpuAttentionCores(count));
}

}  // namespace blockgtq::cpu
