// See drift.h.
#include "src/engine/drift.h"

#include <fmt/format.h>

#include <cmath>

#include "src/codec/logit_error.h"
#include "src/codec/record.h"
#include "src/engine/calibration.h"

namespace blockgtq {
namespace {

constexpr int kBitSteps = 4;  // of a bit, that a head's bits are searched in

/// The most key bits whose record is no larger than the old one; the least, where none is.
Result<RecipeOptions> BitsWithin(const Recipe& recipe, const HeadPlan& old, const HeadCalibration& measured,
                                 uint64_t seed, int layer, int kv_head) {
  const auto bits = [&](int steps) {
    return RecipeOptions{static_cast<double>(steps) / kBitSteps, static_cast<double>(old.value.code_width),
                         seed};
  };
  int low = kBitSteps, high = 8 * kBitSteps;  // 1 and 8 bits
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    BGTQ_ASSIGN_OR_RETURN(const HeadPlan head, PlanHead(recipe, measured, bits(middle), layer, kv_head));
    if (RecordLayout::For(head).bytes <= RecordLayout::For(old).bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return bits(low);
}

}  // namespace

Result<Plan> AdaptPlan(const Plan& plan, const ModelMoments& moments, bool by_head) {
  BGTQ_RETURN_IF_ERROR(moments.model.ExpectEqual(plan.model).WithContext("the plan and the moments"));
  if (moments.tokens() < kMinCalibrationTokens) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("moments of {} tokens are too few, at least {} are needed", moments.tokens(),
                              kMinCalibrationTokens));
  }
  std::vector<RecipeOptions> bits = {{plan.k_bits, plan.v_bits, plan.seed}};
  if (by_head) {
    BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(plan.recipe));
    bits.clear();
    for (size_t h = 0; h < plan.heads.size(); ++h) {
      const int layer = static_cast<int>(h) / plan.model.kv_heads,
                kv_head = static_cast<int>(h) % plan.model.kv_heads;
      BGTQ_ASSIGN_OR_RETURN(const RecipeOptions of_head,
                            BitsWithin(*recipe, plan.heads[h], moments.heads[h], plan.seed, layer, kv_head));
      bits.push_back(of_head);
    }
  }
  BGTQ_ASSIGN_OR_RETURN(Plan adapted, MakePlanFor(plan.model, moments.heads, plan.recipe, bits));
  adapted.calibration = {kMomentsSource, moments.tokens(), 0};
  return adapted;
}

Result<Drift> MeasureDrift(const Plan& plan, const ModelMoments& moments, bool by_head) {
  BGTQ_ASSIGN_OR_RETURN(const Plan best, AdaptPlan(plan, moments, by_head));
  Drift drift;
  double logs = 0;
  for (size_t h = 0; h < plan.heads.size(); ++h) {
    const HeadStatistics& statistics = moments.heads[h].statistics;
    const double now = PredictedLogitError(plan.heads[h], statistics),
                 could = PredictedLogitError(best.heads[h], statistics);
    const double ratio = now > 0 && could > 0 ? now / could : 1;  // 1: a head without energy
    drift.heads.push_back(ratio);
    logs += std::log(ratio);
    if (h > 0 && ratio <= drift.worst) continue;
    drift.worst = ratio;
    drift.worst_layer = static_cast<int>(h) / plan.model.kv_heads;
    drift.worst_kv_head = static_cast<int>(h) % plan.model.kv_heads;
  }
  drift.mean = std::exp(logs / static_cast<double>(plan.heads.size()));
  return drift;
}

}  // namespace blockgtq
