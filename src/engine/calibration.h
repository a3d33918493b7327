// Calibration: runs text through a model, measures every KV head, and makes a plan with a recipe.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/codec/recipe.h"
#include "src/engine/loaded_model.h"

namespace blockgtq {

/// A measurement of fewer tokens says little.
constexpr int64_t kMinCalibrationTokens = 64;

struct CalibrationOptions {
  std::string recipe = "aligned";
  RecipeOptions bits;
  int64_t tokens = 2048;                      // from the start of the text, at most what the model runs
  std::function<void(double done)> progress;  // 0..1; may be empty
};

/// Errors: kInvalidArgument (a text shorter than 64 tokens, a recipe without a plan, bits that cannot be
/// honoured).
Result<Plan> Calibrate(LoadedModel& model, std::string_view text, const CalibrationOptions& options);

/// The part of a text that is looked at for so many tokens, and hashed: sixteen bytes a token is more than
/// any text of these vocabularies takes on average.
std::string_view CalibrationTextHead(std::string_view text, int64_t tokens);

/// The tokens that calibration measures: the start of the text, at most `tokens` and the model's context.
/// Errors: kInvalidArgument when they are fewer than 64; kUnsupported without a tokenizer.
Result<std::vector<Token>> CalibrationTokens(LoadedModel& model, std::string_view text, int64_t tokens);

/// The two halves of Calibrate, for several plans from one measurement: every head, [layers * kv_heads],
/// whose plans `threads` (at least 1) make.
Result<std::vector<HeadCalibration>> Measure(LoadedModel& model, std::span<const Token> tokens,
                                             const std::function<void(double)>& progress);
Result<Plan> MakePlan(const LoadedModel& model, std::span<const HeadCalibration> measured,
                      const std::string& recipe_name, const RecipeOptions& bits, int threads = 1);
/// The same with bits of each head, [layers * kv_heads], and one seed; the plan's k_bits and v_bits are their
/// means, to two digits.
Result<Plan> MakePlanByHead(const LoadedModel& model, std::span<const HeadCalibration> measured,
                            const std::string& recipe_name, std::span<const RecipeOptions> bits,
                            int threads = 1);
/// Either for a model that is not open, by its fingerprint; bits: of each head, or one for all.
Result<Plan> MakePlanFor(const ModelFingerprint& model, std::span<const HeadCalibration> measured,
                         const std::string& recipe_name, std::span<const RecipeOptions> bits,
                         int threads = 1);
/// What a plan's codes would read as.
SimulatedHeads SimulatePlan(const ModelConfig& config, const Plan& plan, const std::string& recipe_name);
/// A simulated recipe (or a packed one's twin) from the same measurement, which may be empty where the recipe
/// needs none. Errors: those of Simulate.
Result<SimulatedHeads> MakeSimulated(const LoadedModel& model, std::span<const HeadCalibration> measured,
                                     const std::string& recipe_name, const RecipeOptions& bits);
/// What a recipe would say of the bits, before minutes are spent on measuring: it is asked with a made-up
/// head.
Status CheckRecipeBits(const LoadedModel& model, const Recipe& recipe, const RecipeOptions& bits);

}  // namespace blockgtq
