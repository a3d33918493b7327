// One byte budget over keys, values, layers and heads: how much each head's keys and values matter is
// measured on calibration text, and the bytes go where they lower the model's divergence most
// (docs/method.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/codec/plan.h"
#include "src/eval/joint_options.h"
#include "src/eval/tasks/results_file.h"
#include "src/formats/plan_budget.h"

namespace blockgtq {

struct JointResult {
  Plan plan;
  PlanBudget budget;         // to be saved with it
  int64_t probes_found = 0;  // in the results file, by an earlier run
  bool short_text = false;   // probes and checks ran on text that statistics were measured on as well
};

/// Of the recipe aligned. results: probes are taken from it and added to it; its settings must name all that
/// decides them (JointSettings).
/// Errors: kInvalidArgument (neither or both of bytes and target_kld; bytes below what the smallest choices
/// take; a divergence that 8 bits do not reach), kUnsupported (a backend without simulated caches),
/// kCancelled; those of TakeJointText, MeasureJointly, PlanCheck and SearchPlan.
Result<JointResult> CalibrateJointly(LoadedModel& model, std::string_view text, const JointOptions& options,
                                     ResultsFile& results);
/// A sentence where the plan for a divergence was measured further from it than kTargetTolerance; else empty.
std::string TargetMissed(const PlanBudget& budget);
/// All that decides what probes measure, the tokens that they run included. Errors: those of TakeJointText.
Result<nlohmann::json> JointSettings(LoadedModel& model, std::string_view text, const JointOptions& options);

}  // namespace blockgtq
