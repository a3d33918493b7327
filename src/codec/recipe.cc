// The recipe registry: one file recipe_<name>.cc and one row here a recipe.
#include "src/codec/recipe.h"

#include <fmt/format.h>

#include <string>

#include "src/codec/head_builder.h"

namespace blockgtq {

Result<HeadPlan> PlanAligned(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                             int kv_head);
Result<HeadPlan> PlanPaper(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                           int kv_head);
Result<HeadPlan> PlanUniform(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                             int kv_head);

using Simulated = Result<std::vector<std::unique_ptr<const SimulatedHead>>>;
Simulated SimulateKivi(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateKiviScaleOnly(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulatePmKvq(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateQ8(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateQ4(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateFp8(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateTurboQuantK8V4(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateTurboQuant4Bit(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateTurboQuantK3V4(const SimulationInput& input, const RecipeOptions& options);
Simulated SimulateTurboQuant3Bit(const SimulationInput& input, const RecipeOptions& options);

std::span<const Recipe> Recipes() {
  static constexpr Recipe kRecipes[] = {
      {"aligned", "mean removed, blocks equalised, exact allocation in whole units, 8-bit norms (default)",
       CacheKind::kPacked, PlanAligned},
      {"paper", "Block-GTQ as published: greedy widths 1..8 by block energy, fp16 norms", CacheKind::kPacked,
       PlanPaper},
      {"uniform", "TQ-MSE: one width and one rotation for the whole head, fp16 norms", CacheKind::kPacked,
       PlanUniform},
      {"fp16", "uncompressed half precision", CacheKind::kHalf},
      {"fp32", "uncompressed single precision", CacheKind::kFloat},
      {.name = "sim:aligned",
       .summary = "aligned, simulated",
       .kind = CacheKind::kSimulated,
       .twin_of = "aligned",
       .calibrated = true},
      {.name = "sim:paper",
       .summary = "paper, simulated",
       .kind = CacheKind::kSimulated,
       .twin_of = "paper",
       .calibrated = true},
      {.name = "sim:uniform",
       .summary = "uniform, simulated",
       .kind = CacheKind::kSimulated,
       .twin_of = "uniform",
       .calibrated = true},
      {.name = "kivi",
       .summary = "KIVI: K by channel over 32 tokens, V by token over 32 dims, its 128 exact tokens as "
                  "window; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateKivi,
       .sinks = 0,
       .recent = 128},
      {.name = "kivi-scale-only",
       .summary = "KIVI without exact tokens, K ranges lag by 32 tokens; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateKiviScaleOnly,
       .calibrated = true},
      {.name = "pmkvq",
       .summary =
           "PM-KVQ: a width a layer from an integer programme, codes halved as memory fills; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulatePmKvq,
       .calibrated = true,
       .sinks = 1,
       .recent = 128,
       .narrows = true},
      {.name = "q8_0",
       .summary = "llama.cpp's q8_0 blocks after a Hadamard rotation; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateQ8,
       .k_bits = 8,
       .v_bits = 8},
      {.name = "q4_0",
       .summary = "llama.cpp's q4_0 blocks after a Hadamard rotation; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateQ4,
       .k_bits = 4,
       .v_bits = 4},
      {.name = "fp8",
       .summary = "FP8 E4M3 with a calibrated scale a head; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateFp8,
       .calibrated = true,
       .k_bits = 8,
       .v_bits = 8},
      {.name = "turboquant-k8v4",
       .summary = "vLLM's preset turboquant_k8v4; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateTurboQuantK8V4,
       .k_bits = 8,
       .v_bits = 4},
      {.name = "turboquant-4bit",
       .summary = "vLLM's preset turboquant_4bit_nc; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateTurboQuant4Bit,
       .k_bits = 4,
       .v_bits = 4},
      {.name = "turboquant-k3v4",
       .summary = "vLLM's preset turboquant_k3v4_nc; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateTurboQuantK3V4,
       .k_bits = 3,
       .v_bits = 4},
      {.name = "turboquant-3bit",
       .summary = "vLLM's preset turboquant_3bit_nc; simulated",
       .kind = CacheKind::kSimulated,
       .simulate = SimulateTurboQuant3Bit,
       .k_bits = 3,
       .v_bits = 3},
  };
  return kRecipes;
}

Result<const Recipe*> FindRecipe(std::string_view name) {
  std::string known;
  for (const Recipe& recipe : Recipes()) {
    if (recipe.name == name) return &recipe;
    known += known.empty() ? "" : ", ";
    known += recipe.name;
  }
  return Status(ErrorCode::kNotFound, fmt::format("no recipe is named '{}'; known: {}", name, known));
}

Status CheckMemoryTokens(const Recipe& recipe, int64_t memory_tokens) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (memory_tokens < 0 || memory_tokens > kMost || (memory_tokens > 0 && !recipe.narrows)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("recipe {}: memory for {} tokens asked for: {}", recipe.name, memory_tokens,
                              recipe.narrows ? fmt::format("give 0 to {}", kMost)
                                             : "its codes keep their width; only pmkvq narrows them"));
  }
  return Status::Ok();
}

namespace {

Status CheckInput(const Recipe& recipe, bool calibrated, const SimulationInput& input) {
  const size_t heads = static_cast<size_t>(input.layers) * static_cast<size_t>(input.kv_heads);
  if (input.rope == nullptr || input.layers < 1 || input.kv_heads < 1) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("recipe {}: simulation of {} layers and {} KV heads{}: give a model", recipe.name,
                    input.layers, input.kv_heads, input.rope == nullptr ? " without a RoPE" : ""));
  }
  if (input.calibration.size() != heads && (calibrated || !input.calibration.empty())) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("recipe {}: {} heads were calibrated, the model has {}", recipe.name,
                              input.calibration.size(), heads));
  }
  for (const HeadCalibration& calibration : input.calibration) {
    if (calibration.latent_dims > 0 && recipe.simulate != nullptr) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("recipe {}: keeps keys and values apart, and this model's cache has latents that "
                      "are both (MLA); use one of aligned, paper, uniform",
                      recipe.name));
    }
    BGTQ_RETURN_IF_ERROR(CheckCalibration(calibration));
    const int dim = static_cast<int>(calibration.statistics.key_mean.size());
    if (dim != input.rope->config().head_dim) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("recipe {}: a head was calibrated at head dim {}, the model has {}",
                                recipe.name, dim, input.rope->config().head_dim));
    }
  }
  return Status::Ok();
}

Result<std::vector<std::unique_ptr<const SimulatedHead>>> SimulatePlans(const Recipe& packed,
                                                                        const SimulationInput& input,
                                                                        const RecipeOptions& options) {
  std::vector<std::unique_ptr<const SimulatedHead>> heads;
  for (int layer = 0; layer < input.layers; ++layer) {
    for (int kv_head = 0; kv_head < input.kv_heads; ++kv_head) {
      BGTQ_ASSIGN_OR_RETURN(
          const HeadPlan plan,
          PlanHead(packed, input.calibration[static_cast<size_t>(layer) * input.kv_heads + kv_head], options,
                   layer, kv_head));
      heads.push_back(SimulatePlannedHead(plan, input.rope));
    }
  }
  return heads;
}

}  // namespace

Result<SimulatedHeads> Simulate(const Recipe& recipe, const SimulationInput& input,
                                const RecipeOptions& options) {
  const Recipe* packed = &recipe;
  if (!recipe.twin_of.empty()) {
    BGTQ_ASSIGN_OR_RETURN(packed, FindRecipe(recipe.twin_of));
  }
  if (packed->plan_head == nullptr && recipe.simulate == nullptr) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("recipe {}: keeps an uncompressed cache, there is nothing to simulate", recipe.name));
  }
  BGTQ_RETURN_IF_ERROR(CheckMemoryTokens(recipe, options.memory_tokens));
  BGTQ_RETURN_IF_ERROR(CheckInput(recipe, packed->plan_head != nullptr || recipe.calibrated, input));
  SimulatedHeads simulated{
      std::string(recipe.name), input.layers, input.kv_heads, input.rope->config().head_dim, {}};
  if (recipe.simulate != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(simulated.heads, recipe.simulate(input, options));
  } else {
    BGTQ_ASSIGN_OR_RETURN(simulated.heads, SimulatePlans(*packed, input, options));
  }
  return simulated;
}

}  // namespace blockgtq
