// Attention over a cache on the CPU: rotates, stores and encodes new tokens, splits the work over threads,
// and merges what codes, window, sinks and a chunk's own tokens contribute.
#pragma once

#include <memory>

#include "src/backend/backend.h"
#include "src/core/thread_pool.h"
#include "src/cpu/cpu_backend.h"

namespace blockgtq::cpu {

class AttentionOp {
 public:
  /// pool and cache must outlive the op; the cache's plan (if any) matches its geometry.
  AttentionOp(ThreadPool& pool, KvCache& cache, const LayerRopes& ropes);
  ~AttentionOp();

  /// The operation of Backend::Attention. queries [rows, heads * D], keys and values [rows, kv_heads * D]
  /// (values null in a cache of latents), out [rows, heads * D]; D = head_dim.
  Status Run(const AttentionCall& call, const CpuActivations& queries, const CpuActivations& keys,
             const CpuActivations* values, CpuActivations& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockgtq::cpu
