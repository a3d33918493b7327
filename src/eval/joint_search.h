// The plan of a budget: which error model splits the bytes best is measured on half of the check text, and
// the few plans that come into question, or the one that meets a target, on all of it.
#pragma once

#include <cstdint>
#include <memory>

#include "src/codec/plan.h"
#include "src/eval/joint_measurement.h"
#include "src/eval/plan_check.h"

namespace blockgtq {

/// A plan that was made, and what it measured.
struct JointCandidate {
  ErrorModel model;      // trust 0: equal bits for every head
  double predicted = 0;  // nats
  double measured = 0;   // nats, on the text that it was tried on
  Plan plan;
};

/// The plan for options.bytes or options.target_kld, measured on all check tokens. Errors: kInvalidArgument
/// (bytes below what the smallest choices take; a divergence that 8 bits do not reach), kCancelled; those of
/// MakePlan and PlanCheck.
Result<JointCandidate> SearchPlan(LoadedModel& model, const JointOptions& options,
                                  const JointMeasurement& measured, PlanCheck& check);

}  // namespace blockgtq
