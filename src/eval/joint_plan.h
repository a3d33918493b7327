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
#include "src/eval/head_choices.h"
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

/// What probes found of one head: the divergence with its keys, or its values, stored at probe_bits and all
/// else exact, nats; and the distortion of that choice (SideChoice::distortion).
struct HeadProbe {
  double key_kld = 0, value_kld = 0;
  double key_distortion = 0, value_distortion = 0;
};

/// The divergence that a choice is taken to cause: factor * kld^trust * mean^(1 - trust) * (distortion /
/// probed distortion)^exponent; factor 1 for values, mean: over the probes. trust < 1 allows for what is
/// chance in a probe of few tokens. Divergences of all heads add up.
/// In a result, trust 0 says that equal bits for every head measured best.
struct ErrorModel {
  double key_factor = 1, exponent = 1, trust = 1;
};

/// A side whose probe moved less than this share of the mean over all probes is taken to have moved so much:
/// the text may not have excited what another one does.
inline constexpr double kProbeFloor = 0.05;

struct JointAllocation {
  std::vector<RecipeOptions> bits;  // of each head; empty: the capacity is too small for any choice
  double predicted_kld = 0;         // by the model, unfloored probes floored
};
/// Exact for the model (core/knapsack.h). choices, probes: every head. capacity: bytes of all heads' records.
JointAllocation AllocateJointly(std::span<const HeadChoices> choices, std::span<const HeadProbe> probes,
                                const ErrorModel& model, int64_t capacity, uint64_t seed);

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
