// Where a run's plan comes from: a file the user names, the file kept beside the model, or a calibration that
// is then kept there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "src/engine/calibration.h"

namespace blockgtq {

/// What the cache of a run should be.
struct CacheChoice {
  std::string recipe = "aligned";
  double k_bits = 3, v_bits = 3;
  std::string plan_file;                      // empty: beside the model, or made
  uint64_t plan_seed = RecipeOptions().seed;  // of a plan that is made
  int64_t memory_tokens = 0;                  // RecipeOptions::memory_tokens
  int sinks = 4, recent = 64;
  std::shared_ptr<const SimulatedHeads> simulated;  // what ObtainSimulated gave
};

/// "K3V3", "K2.5V3": how bits are written in file names and tables.
std::string BitsName(double k_bits, double v_bits);
/// MODEL.K3V3.bgtq.safetensors; other recipes and seeds are part of the name:
/// MODEL.paper.K3V3.bgtq.safetensors. Beside a folder, for a model that is one. budget: stands in place of
/// the bits where it is not empty.
std::string PlanPathFor(const std::string& model_path, const CacheChoice& choice,
                        const std::string& budget = "");

/// The plan of a packed recipe; nullopt for others. Lines for the user (what was found, made, saved,
/// or could not be saved) go to `log`. Errors: those of LoadPlan and Calibrate; kMismatch when the plan found
/// was made for another model.
Result<std::optional<Plan>> ObtainPlan(LoadedModel& model, const CacheChoice& choice,
                                       std::string_view bundled_text,
                                       const std::function<void(const std::string&)>& log,
                                       const std::function<void(double)>& progress);

/// The heads of a simulated recipe, null for others: a packed recipe's twin uses that recipe's plan, which is
/// found or made as above; others are measured where they need it. log and progress as above.
/// Errors: those of ObtainPlan, Measure and Simulate.
Result<std::shared_ptr<const SimulatedHeads>> ObtainSimulated(
    LoadedModel& model, const CacheChoice& choice, std::string_view bundled_text,
    const std::function<void(const std::string&)>& log, const std::function<void(double)>& progress);

/// Cache options for a choice with room for `tokens` tokens.
Result<CacheOptions> CacheOptionsFor(const CacheChoice& choice, int64_t tokens);

}  // namespace blockgtq
