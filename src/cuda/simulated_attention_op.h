// Attention over a simulated cache: its round trips are host code, so the cache is in host memory and every
// layer's queries, keys and values go there and its output comes back. Weights, products and norms stay on
// the GPU.
#pragma once

#include <memory>

#include "src/backend/host_attention.h"
#include "src/cuda/device.h"
#include "src/cuda/layer_attention.h"

namespace blockgtq::cuda {

/// The host's cores, and pinned memory for the rows of a layer on their way: shared by all simulated caches
/// of a backend, whose layers run one after another.
class HostSide {
 public:
  explicit HostSide(std::unique_ptr<HostAttentionCores> cores) : cores_(std::move(cores)) {}
  HostAttentionCores& cores() { return *cores_; }
  /// At least so many floats; what they held is lost. No copy from or to them may be under way. Errors:
  /// kOutOfMemory.
  Result<float*> Rows(int64_t floats);

 private:
  std::unique_ptr<HostAttentionCores> cores_;
  PinnedBuffer rows_;
};

class SimulatedAttentionOp : public LayerAttention {
 public:
  /// device, host and cache outlive the op. Errors: kInvalidArgument (a cache that is not in host memory).
  static Result<std::unique_ptr<SimulatedAttentionOp>> Create(Device& device, HostSide& host, KvCache& cache,
                                                              const LayerRopes& ropes);

  Status BeginStep(const StepInput& input) override { return batch_.BuildTokens(input.tokens); }
  const StepBatch& batch() const override { return batch_; }
  StepShape shape() const override { return {batch_.rows(), 0, 0}; }
  bool full_output() const override { return true; }
  Status Run(const AttentionCall& call, const AttentionRows& rows) override;
  Status EndStep() override { return Status::Ok(); }
  Status TakeErrors() override { return Status::Ok(); }  // Run has reported them
  Status DropErrors() override { return Status::Ok(); }

 private:
  SimulatedAttentionOp(Device& device, HostSide& host, KvCache& cache)
      : device_(device), host_(host), cache_(cache), batch_(device, cache) {}

  Device& device_;
  HostSide& host_;
  KvCache& cache_;
  StepBatch batch_;
  std::unique_ptr<HostAttention> attention_;
};

}  // namespace blockgtq::cuda
