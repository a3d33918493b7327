// What the backend asks of attention over a cache: of heads with keys and values (attention_op.h), of latents
// (latent_attention_op.h), of either where codes are simulated (simulated_attention_op.h).
#pragma once

#include <array>
#include <cstdint>

#include "src/backend/backend.h"
#include "src/cuda/step_batch.h"

namespace blockgtq::cuda {

/// Device pointers of one layer's attention: fp32 as the products leave them, out in fp16 or fp32
/// (LayerAttention::full_output).
struct AttentionRows {
  const float *queries = nullptr, *keys = nullptr,
              *values = nullptr;  // [rows, heads * D], [rows, kv_heads * D]; values: null for latents
  uint16_t* out = nullptr;        // [rows, heads * D]
  float* full_out = nullptr;      // the same
};

/// Tokens rounded up to few values, 64 times a power of two: what configurations and plans are made for.
constexpr int64_t TokenBound(int64_t tokens) {
  int64_t bound = kPageTokens;
  while (bound < tokens) bound *= 2;
  return bound;
}

/// What no cache on the GPU can be. Errors: kUnsupported naming it.
Status CheckCache(const KvCache& cache);

/// Attention over one cache, a layer at a time: BeginStep, Run for every layer, EndStep, TakeErrors.
class LayerAttention {
 public:
  virtual ~LayerAttention() = default;

  /// Plans a step and uploads its numbers.
  virtual Status BeginStep(const StepInput& input) = 0;
  virtual const StepBatch& batch() const = 0;
  /// What the launches of a decode step depend on: equal shapes, equal launches.
  using StepShape = std::array<int64_t, 3>;  // rows, block-table stride, tokens rounded up
  virtual StepShape shape() const = 0;

  /// Whether Run writes AttentionRows::full_out in place of out.
  virtual bool full_output() const { return false; }
  /// The operation of Backend::Attention for one layer. Only launches, in a decode step.
  virtual Status Run(const AttentionCall& call, const AttentionRows& rows) = 0;

  /// After the last layer: encodes pages that leave the window in a decode step, and sends for the error
  /// words.
  virtual Status EndStep() = 0;
  /// What the error words said at the last EndStep whose work is done (Device::Synchronize). Errors:
  /// kNonFinite naming layer and position, once.
  virtual Status TakeErrors() = 0;
  /// After a pass that failed, whose work is done: what its kernels left in the error words is no later
  /// pass's. Errors: a CUDA error.
  virtual Status DropErrors() = 0;
};

}  // namespace blockgtq::cuda
