// See plan_source.h.
#include "src/engine/plan_source.h"

#include <fmt/format.h>

#include <filesystem>

#include "src/formats/plan_file.h"

namespace blockgtq {

std::string BitsName(double k_bits, double v_bits) { return fmt::format("K{:g}V{:g}", k_bits, v_bits); }

std::string PlanPathFor(const std::string& model_path, const CacheChoice& choice, const std::string& budget) {
  std::string name = model_path;
  const std::filesystem::path last = std::filesystem::path(model_path).filename();
  if (last.empty() || last == "." || last == "..") {  // a folder that is not called by its name
    std::error_code failed;
    const std::filesystem::path full = std::filesystem::canonical(model_path, failed);
    if (!failed) name = full.string();
  }
  name += ".";
  if (choice.recipe != "aligned") name += choice.recipe + ".";
  if (choice.plan_seed != RecipeOptions().seed) name += fmt::format("seed{}.", choice.plan_seed);
  return name + (budget.empty() ? BitsName(choice.k_bits, choice.v_bits) : budget) + ".bgtq.safetensors";
}

Result<std::optional<Plan>> ObtainPlan(LoadedModel& model, const CacheChoice& choice,
                                       std::string_view bundled_text,
                                       const std::function<void(const std::string&)>& log,
                                       const std::function<void(double)>& progress) {
  const auto matching = [&](const std::string& path) -> Result<Plan> {
    BGTQ_ASSIGN_OR_RETURN(Plan plan, LoadPlan(path));
    BGTQ_RETURN_IF_ERROR(
        plan.model.ExpectEqual(model.fingerprint())
            .WithContext(fmt::format("{}: this plan was made for another model (calibrate again, or "
                                     "remove the file)",
                                     path)));
    const Result<const Recipe*> made_with = FindRecipe(plan.recipe);
    if (!made_with.ok() || (*made_with)->kind != CacheKind::kPacked) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("{}: recipe '{}' makes no plan; calibrate again", path, plan.recipe));
    }
    return plan;
  };
  if (!choice.plan_file.empty()) {
    BGTQ_ASSIGN_OR_RETURN(Plan named, matching(choice.plan_file));
    return std::optional<Plan>(std::move(named));
  }

  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(choice.recipe));
  if (recipe->kind != CacheKind::kPacked) return std::optional<Plan>();
  const std::string path = PlanPathFor(model.path(), choice);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    BGTQ_ASSIGN_OR_RETURN(Plan plan, matching(path));
    if (plan.recipe != choice.recipe || plan.k_bits != choice.k_bits || plan.v_bits != choice.v_bits ||
        plan.seed != choice.plan_seed) {
      return Status(
          ErrorCode::kMismatch,
          fmt::format(
              "{}: holds a plan of recipe {}, {}, seed {}, not what its name says; remove the file or "
              "name a plan with --plan",
              path, plan.recipe, BitsName(plan.k_bits, plan.v_bits), plan.seed));
    }
    log(fmt::format("plan: {}", path));
    return std::optional<Plan>(std::move(plan));
  }
  CalibrationOptions options;
  options.recipe = choice.recipe;
  options.bits = {choice.k_bits, choice.v_bits, choice.plan_seed};
  options.progress = progress;
  BGTQ_ASSIGN_OR_RETURN(Plan plan, Calibrate(model, bundled_text, options));
  const Status saved = SavePlan(plan, path);
  log(saved.ok() ? fmt::format("plan: made from the bundled text in {:.1f} s, saved as {}",
                               plan.calibration.seconds, path)
                 : fmt::format("plan: made from the bundled text in {:.1f} s; not saved: {}",
                               plan.calibration.seconds, saved.message()));
  return std::optional<Plan>(std::move(plan));
}

Result<std::shared_ptr<const SimulatedHeads>> ObtainSimulated(
    LoadedModel& model, const CacheChoice& choice, std::string_view bundled_text,
    const std::function<void(const std::string&)>& log, const std::function<void(double)>& progress) {
  std::shared_ptr<const SimulatedHeads> none;
  if (!choice.plan_file.empty()) return none;
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(choice.recipe));
  if (recipe->kind != CacheKind::kSimulated) return none;
  auto simulated = std::make_shared<SimulatedHeads>();
  if (!recipe->twin_of.empty()) {
    CacheChoice packed = choice;
    packed.recipe = recipe->twin_of;
    BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan,
                          ObtainPlan(model, packed, bundled_text, log, progress));
    *simulated = SimulatePlan(model.config(), *plan, choice.recipe);
  } else {
    const RecipeOptions bits{choice.k_bits, choice.v_bits, choice.plan_seed, choice.memory_tokens};
    BGTQ_RETURN_IF_ERROR(CheckRecipeBits(model, *recipe, bits));
    std::vector<HeadCalibration> measured;
    if (recipe->calibrated) {
      BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                            CalibrationTokens(model, bundled_text, CalibrationOptions().tokens));
      BGTQ_ASSIGN_OR_RETURN(measured, Measure(model, tokens, progress));
    }
    BGTQ_ASSIGN_OR_RETURN(*simulated, MakeSimulated(model, measured, choice.recipe, bits));
  }
  log(
      fmt::format("recipe {}: simulated: no packed kernel, its speed and memory mean nothing; {:.2f} bytes a "
                  "token a head would be stored",
                  choice.recipe, simulated->bytes_per_token_per_head()));
  if (choice.memory_tokens > 0) {
    std::string steps;
    for (const auto& [coded, bytes] : simulated->BytesByLength())
      steps += fmt::format("{}{:.2f} from {}", steps.empty() ? "" : ", ", bytes, coded);
    log(fmt::format("recipe {}: bytes a token a head by coded tokens: {}", choice.recipe, steps));
  }
  return std::shared_ptr<const SimulatedHeads>(std::move(simulated));
}

Result<CacheOptions> CacheOptionsFor(const CacheChoice& choice, int64_t tokens) {
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(choice.recipe));
  CacheOptions options;
  options.kind = recipe->kind;
  options.sinks = choice.sinks;
  options.recent = choice.recent;
  options.max_tokens = tokens;
  options.simulated = choice.simulated;
  return options;
}

}  // namespace blockgtq
