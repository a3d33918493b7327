// What a head's keys and values can be stored as: for every distinct size, the bits to ask a recipe for and
// how large an error the stored codes then make, measured on calibration vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/codec/recipe.h"

namespace blockgtq {

struct SideChoice {
  double bits = 0;    // RecipeOptions::k_bits or v_bits
  int64_t bytes = 0;  // of a record: 64 tokens, norms included
  /// Keys: mean over tokens of sum_i Q_i |e(i)|^2, what the error adds to logits. Values: mean of |e|^2.
  double distortion = 0;
};

/// Ascending bytes, descending distortion; at least one of each.
struct HeadChoices {
  std::vector<SideChoice> keys, values;
};

/// Choices of the recipe aligned. A side without any error (calibration never moved it) has the distortions
/// 4^-bits. Errors: those of PlanAligned.
Result<HeadChoices> MakeHeadChoices(const HeadCalibration& calibration, const Recipe& recipe, uint64_t seed,
                                    const std::shared_ptr<const RopeTable>& rope, int layer, int kv_head);

}  // namespace blockgtq
