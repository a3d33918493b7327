// The recipe registry: one file recipe_<name>.cc and one row here a recipe.
#include "src/codec/recipe.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace blockgtq {

Result<HeadPlan> PlanAligned(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                             int kv_head);
Result<HeadPlan> PlanPaper(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                           int kv_head);
Result<HeadPlan> PlanUniform(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                             int kv_head);

std::span<const Recipe> Recipes() {
  static constexpr std::array<Recipe, 5> kRecipes = {{
      {"aligned", "mean removed, blocks equalised, exact allocation in whole units, 8-bit norms (default)",
       CacheKind::kPacked, PlanAligned},
      {"paper", "Block-GTQ as published: greedy widths 1..8 by block energy, fp16 norms", CacheKind::kPacked,
       PlanPaper},
      {"uniform", "TQ-MSE: one width and one rotation for the whole head, fp16 norms", CacheKind::kPacked,
       PlanUniform},
      {"fp16", "uncompressed half precision", CacheKind::kHalf, nullptr},
      {"fp32", "uncompressed single precision", CacheKind::kFloat, nullptr},
  }};
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

}  // namespace blockgtq
