// See expert_mix_op.h.
#include "src/cuda/expert_mix_op.h"

#include "src/cuda/matmul_item.h"

namespace blockgtq::cuda {

Status ExpertMixOp::Run(const ExpertMixCall& call) {
  const int64_t experts = static_cast<int64_t>(call.gates.size()), choices = call.rows * call.chosen;
  constexpr int64_t kWord = sizeof(int32_t);
  BGTQ_RETURN_IF_ERROR(device_.Reserve(
      routes_, 3 * choices * kWord + experts * static_cast<int64_t>(sizeof(ExpertGroup)) + kWord,
      "choices of experts"));
  const int64_t halves = choices * call.inner * static_cast<int64_t>(sizeof(uint16_t));
  const bool low = call.x.lo != nullptr;
  BGTQ_RETURN_IF_ERROR(device_.Reserve(hi_, halves, "activations of experts"));
  if (low) BGTQ_RETURN_IF_ERROR(device_.Reserve(lo_, halves, "activations of experts"));
  BGTQ_RETURN_IF_ERROR(
      device_.Reserve(out_, choices * call.in * static_cast<int64_t>(sizeof(float)), "outputs of experts"));

  ExpertRoutes routes;
  routes.rows = call.rows;
  routes.experts = static_cast<int32_t>(experts);
  routes.chosen = call.chosen;
  routes.expert = routes_.As<int32_t>();
  routes.weight = routes_.As<float>() + choices;
  routes.grouped = routes_.As<int32_t>() + 2 * choices;
  routes.groups = reinterpret_cast<ExpertGroup*>(routes.grouped + choices);
  routes.group_count = reinterpret_cast<int32_t*>(routes.groups + experts);

  CUstream_st* stream = device_.stream();
  uint16_t* lo = low ? lo_.As<uint16_t>() : nullptr;
  BGTQ_RETURN_IF_ERROR(LaunchRouteExperts(call.logits, call.renormalise, call.scale, routes, true, stream));
  BGTQ_RETURN_IF_ERROR(LaunchExpertGate(call.gates, call.ups, call.function, call.x, routes, call.in,
                                        call.inner, hi_.As<uint16_t>(), lo, true, stream));
  const ExpertInput inner = {hi_.As<uint16_t>(), lo, kInnerScale};
  BGTQ_RETURN_IF_ERROR(
      LaunchExpertDown(call.downs, inner, routes, call.inner, call.in, out_.As<float>(), true, stream));
  return LaunchCombineExperts(out_.As<float>(), routes, call.in, call.y, true, stream);
}

}  // namespace blockgtq::cuda
