// Captured decode steps. A step's launches follow from its shape alone; its numbers are in device memory. The
// first step of a shape runs as it is (and allocates what it needs), the second is captured, later ones are
// replays.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "blockgtq/status.h"
#include "src/cuda/device.h"
#include "src/cuda/layer_attention.h"

struct CUgraphExec_st;

namespace blockgtq::cuda {

class StepGraphs {
 public:
  explicit StepGraphs(Device& device) : device_(device) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// What tells steps apart: the cache's binding and its step's shape.
  using Key = std::pair<const void*, LayerAttention::StepShape>;
  /// Runs launch(), or the graph captured of it. Errors: those of launch.
  Status Run(const Key& key, const std::function<Status()>& launch);
  /// A binding is going away: so are its graphs.
  void Forget(const void* binding);

 private:
  struct Graph {
    bool warm = false;                     // the shape has run in this generation
    uint64_t generation = 0;               // of the device (Device::generation)
    CUgraphExec_st* executable = nullptr;  // of this generation, or null
  };
  Result<CUgraphExec_st*> Capture(const std::function<Status()>& launch);

  Device& device_;
  std::map<Key, Graph> graphs_;
};

}  // namespace blockgtq::cuda
