// The buffers and launches of one mixture of experts after its router (expert_mix.h).
#pragma once

#include <cstdint>
#include <span>

#include "src/cuda/device.h"
#include "src/cuda/expert_mix.h"

namespace blockgtq::cuda {

struct ExpertMixCall {
  const float* logits = nullptr;                      // fp32 [rows, experts]
  std::span<const uint16_t*const> gates, ups, downs;  // of every expert, device addresses
  int chosen = 0;
  bool renormalise = false;
  float scale = 1;
  GateFunction function = GateFunction::kSilu;
  ExpertInput x;
  int64_t rows = 0, in = 0, inner = 0;
  float* y = nullptr;  // fp32 [rows, in], added to
};

class ExpertMixOp {
 public:
  explicit ExpertMixOp(Device& device) : device_(device) {}
  /// Errors: kOutOfMemory; kUnsupported as LaunchRouteExperts, and for sizes that the kernels do not take.
  Status Run(const ExpertMixCall& call);

 private:
  Device& device_;
  DeviceBuffer routes_;         // what ExpertRoutes points to
  DeviceBuffer hi_, lo_, out_;  // of every choice: gated, fp16 [inner]; out, fp32 [in]
};

}  // namespace blockgtq::cuda
