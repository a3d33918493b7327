// One byte budget over keys, values, layers and heads: how much each head's keys and values matter is
// measured on calibration text, and the bytes go where they lower the model's divergence most
// (docs/method.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/calibration.h"
#include "src/eval/joint_allocation.h"
#include "src/eval/tasks/results_file.h"
#include "src/eval/tested_cache.h"
#include "src/formats/plan_budget.h"

namespace blockgtq {

struct JointOptions {
  // One of the two:
  double bytes = 0;       // average stored a token a head, K + V, at most
  double target_kld = 0;  // nats: mean divergence from the fp16 cache that is reached in as few bytes

  Protection protection{4, 64};          // that the plan is to be used with: what the probes run with
  uint64_t seed = RecipeOptions().seed;  // of the rotations; without sinks each head's is one of the 16 from
                                         // here on (first_keys.h)
  int64_t tokens = 2048;                 // of the text, that statistics are measured on
  // After them, that probes run, and then as many that plans are measured on; the text's last ones where it
  // ends before.
  int64_t probe_tokens = 256;
  int64_t probe_positions = 128;  // of the probes' tokens, whose predictions are compared
  int threads = 0;                // that compare and choose; 0: one a core
  double probe_bits = 2;          // 1, 2, 3, 4, 5 or 8: what a probe stores its one side of one head with
  std::function<void(double done, const std::string& note)> progress;  // done 0..1; may be empty
  const std::atomic<bool>* stop = nullptr;
};

struct JointResult {
  Plan plan;
  PlanBudget budget;         // to be saved with it
  int64_t probes_found = 0;  // in the results file, by an earlier run
};

/// Of the recipe aligned. results: probes are taken from it and added to it; its
/// settings must name all that decides them (JointSettings).
/// Errors: kInvalidArgument (neither or both of bytes and target_kld; bytes below what the smallest choices
/// take; a divergence that 8 bits do not reach), kUnsupported (a backend without simulated caches),
/// kCancelled; those of Measure, KldProbe and ResultsFile.
Result<JointResult> CalibrateJointly(LoadedModel& model, std::string_view text, const JointOptions& options,
                                     ResultsFile& results);
nlohmann::json JointSettings(const LoadedModel& model, std::string_view text, const JointOptions& options);

}  // namespace blockgtq
