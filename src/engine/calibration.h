// Calibration: runs text through a model, measures every KV head, and makes a plan with a recipe.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/codec/recipe.h"
#include "src/engine/loaded_model.h"

namespace blockgtq {

struct CalibrationOptions {
  std::string recipe = "aligned";
  RecipeOptions bits;
  int64_t tokens = 2048;                      // from the start of the text, at most the model's context
  std::function<void(double done)> progress;  // 0..1; may be empty
};

/// Errors: kInvalidArgument (a text shorter than 64 tokens, a recipe without a plan, bits that cannot be
/// honoured).
Result<Plan> Calibrate(LoadedModel& model, std::string_view text, const CalibrationOptions& options);

/// The two halves of Calibrate, for several plans from one measurement: every head, [layers * kv_heads].
Result<std::vector<HeadCalibration>> Measure(LoadedModel& model, std::span<const Token> tokens,
                                             const std::function<void(double)>& progress);
Result<Plan> MakePlan(const LoadedModel& model, std::span<const HeadCalibration> measured,
                      const std::string& recipe_name, const RecipeOptions& bits);

}  // namespace blockgtq
