// How far a plan has drifted from what a model is asked, and the plan that fits it (docs/method.md, "Drift").
#pragma once

#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/formats/moments_file.h"

namespace blockgtq {

/// Seeds, from a plan's on, that a budget without sinks chooses each head's rotation of (eval/first_keys.h).
inline constexpr int kRotationsOfAHead = 16;

/// How a plan fares under moments, against the plan that the same recipe makes of them at the same bytes.
struct Drift {
  /// Geometric mean over heads of the predicted square of a logit's error, the plan's over the new plan's: 1
  /// where nothing has changed.
  double mean = 1;
  double worst = 1;  // of a head
  int worst_layer = 0, worst_kv_head = 0;
  std::vector<double> heads;  // [layers * kv_heads]
};

/// The plan that `plan`'s recipe makes of the moments: its seed and its bits; where a budget was spent over
/// heads (by_head, formats/plan_file.h), each head keeps the bytes of its keys at most, the width of its
/// values, and the seed of its rotations where that is one of kRotationsOfAHead.
/// Errors: kMismatch naming what differs between the models; kInvalidArgument (too few tokens); those of
/// MakePlanFor.
Result<Plan> AdaptPlan(const Plan& plan, const ModelMoments& moments, bool by_head);
/// Errors: those of AdaptPlan.
Result<Drift> MeasureDrift(const Plan& plan, const ModelMoments& moments, bool by_head);

}  // namespace blockgtq
