// Attention on the host's cores, for backends whose activations live elsewhere: over caches that they have no
// kernels for and that keep their bytes in host memory (CacheKind::kSimulated).
#pragma once

#include <memory>

#include "src/backend/backend.h"

namespace blockgtq {

/// What enters and leaves one layer's attention, fp32 in host memory, row-major. It may be 64 bytes aligned
/// or not.
struct HostRows {
  int64_t rows = 0;
  float* queries = nullptr;                  // [rows, heads * head_dim], before RoPE, the model's pairing
  float *keys = nullptr, *values = nullptr;  // [rows, kv_heads * head_dim]; values: null for latents
  float* out = nullptr;                      // [rows, heads * head_dim]
};

/// Attention over one cache.
class HostAttention {
 public:
  virtual ~HostAttention() = default;
  /// The operation of Backend::Attention on `rows` in place of the call's activations and cache, which are
  /// not looked at. Errors: those of Backend::Attention.
  virtual Status Run(const AttentionCall& call, const HostRows& rows) = 0;
};

/// The cores, shared by every cache. One layer of one cache runs at a time.
class HostAttentionCores {
 public:
  virtual ~HostAttentionCores() = default;
  /// Attention over `cache`, which is in host memory and outlives it, as this does.
  virtual std::unique_ptr<HostAttention> Bind(KvCache& cache, const LayerRopes& ropes) = 0;
};

}  // namespace blockgtq
