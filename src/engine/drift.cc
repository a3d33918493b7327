// See drift.h.
#include "src/engine/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/codec/head_builder.h"
#include "src/codec/logit_error.h"
#include "src/codec/record.h"
#include "src/core/haar.h"
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

/// The seed of a head's rotations, told by its value's, which depends on nothing else; the plan's, where it
/// is none of those that a budget chooses of.
uint64_t HeadSeed(const Plan& plan, const HeadPlan& head, int layer, int kv_head) {
  const size_t dim = static_cast<size_t>(head.head_dim);
  for (uint64_t c = 0; c < kRotationsOfAHead; ++c) {
    const uint64_t seed = plan.seed + c;
    const std::vector<float> rotation = HaarRotation(head.head_dim, RotationSeed(seed, layer, kv_head, 0));
    if (head.value_transform.size() >= dim &&
        std::equal(rotation.begin(), rotation.begin() + head.head_dim, head.value_transform.begin())) {
      return seed;
    }
  }
  return plan.seed;
}

/// keep_rotations: by_head, each head with its seed; without, with the plan's, which bits do not depend on.
Result<Plan> MakeAdapted(const Plan& plan, const ModelMoments& moments, bool by_head, bool keep_rotations) {
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
      const HeadPlan& head = plan.heads[h];
      const uint64_t seed = keep_rotations ? HeadSeed(plan, head, layer, kv_head) : plan.seed;
      BGTQ_ASSIGN_OR_RETURN(const RecipeOptions of_head,
                            BitsWithin(*recipe, head, moments.heads[h], seed, layer, kv_head));
      bits.push_back(of_head);
    }
  }
  BGTQ_ASSIGN_OR_RETURN(Plan adapted, MakePlanFor(plan.model, moments.heads, plan.recipe, bits));
  adapted.seed = plan.seed;
  adapted.calibration = {kMomentsSource, moments.tokens(), 0};
  return adapted;
}

}  // namespace

Result<Plan> AdaptPlan(const Plan& plan, const ModelMoments& moments, bool by_head) {
  return MakeAdapted(plan, moments, by_head, true);
}

Result<Drift> MeasureDrift(const Plan& plan, const ModelMoments& moments, bool by_head) {
  BGTQ_ASSIGN_OR_RETURN(const Plan best, MakeAdapted(plan, moments, by_head, false));
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
