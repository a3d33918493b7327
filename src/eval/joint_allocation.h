// How one byte budget is split over the keys and values of all heads, once it is known what each choice
// costs: the error model of probes, and the exact split under it (docs/method.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/codec/recipe.h"
#include "src/eval/head_choices.h"

namespace blockgtq {

/// What probes found of one head: the divergence with its keys, or its values, stored at probe_bits and all
/// else exact, nats; and the distortion of that choice (SideChoice::distortion).
struct HeadProbe {
  double key_kld = 0, value_kld = 0;
  double key_distortion = 0, value_distortion = 0;
};

/// The divergence that a choice is taken to cause: kld^trust * mean^(1 - trust) * (distortion / probed
/// distortion)^exponent; mean: over the probes. trust < 1 allows for what is chance in a probe of few tokens.
/// Divergences of all heads add up.
/// In a result, trust 0 says that equal bits for every head measured best.
struct ErrorModel {
  double exponent = 1, trust = 1;
  bool operator==(const ErrorModel&) const = default;
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

}  // namespace blockgtq
