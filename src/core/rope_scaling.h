// The published ways of stretching RoPE to longer contexts, as what they do to a RopeConfig: a divisor of
// each block's frequency and a factor on cos and sin. Sources: the definitions that transformers'
// configurations name (rope_type), YaRN (Peng et al. 2023), LongRoPE (Ding et al. 2024).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/rope.h"

namespace blockgtq {

enum class RopeScalingType { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

/// What a model's configuration says; fields that a type does not use keep their defaults.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;           // of the context length, > 0
  int64_t original_context = 0;  // tokens that the model was trained on; all but linear need it
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn: turns within the original context
  bool truncate = true;                                  // yarn: the ramp's ends are rounded to whole blocks
  double mscale = 0.0, mscale_all_dim = 0.0;             // yarn, deepseek: 0 = not given
  std::optional<double> attention_factor{};              // yarn, longrope: given instead of computed
  std::vector<double> short_factors{}, long_factors{};   // longrope: [rotary_dims / 2]
};

/// Puts `scaling` into config.freq_divisors and config.attention_factor; config's other fields are set and
/// plain. positions: the longest sequence that will be run. Returns the number of positions up to which the
/// result is what the model defines: dynamic and longrope change their frequencies with the sequence's
/// length, and keys that are already cached cannot follow (int64 max for the others). Errors: kCorruptFile,
/// one line naming the value that makes no sense.
Result<int64_t> ApplyRopeScaling(const RopeScaling& scaling, int64_t positions, RopeConfig& config);

/// YaRN's 0.1 m ln(factor) + 1 (1 for factors up to 1): its factor on cos and sin at m = 1; deepseek
/// multiplies the softmax scale by its square at m = mscale_all_dim.
double YarnMscale(double factor, double m);

}  // namespace blockgtq
