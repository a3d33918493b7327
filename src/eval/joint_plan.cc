// See joint_plan.h.
#include "src/eval/joint_plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <chrono>
#include <cmath>
#include <vector>

#include "src/eval/joint_measurement.h"
#include "src/eval/joint_search.h"
#include "src/eval/joint_text.h"
#include "src/eval/plan_check.h"

namespace blockgtq {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Status Check(const LoadedModel& model, const JointOptions& options) {
  if (model.config().latent.rank > 0) {
    return {
        ErrorCode::kUnsupported,
        fmt::format("{}: one budget over all heads is for keys and values; this model caches latents (MLA): "
                    "give -K and -V",
                    model.path())};
  }
  const auto invalid = [](std::string what) { return Status(ErrorCode::kInvalidArgument, std::move(what)); };
  if ((options.bytes > 0) == (options.target_kld > 0))
    return invalid("one of a budget in bytes and a target divergence must be positive");
  if (!model.backend().has_simulated_caches()) {  // said before minutes are spent on measuring
    return {ErrorCode::kUnsupported,
            fmt::format("{} has no simulated caches, which probes of a budget run: use --device cpu",
                        model.backend().name())};
  }
  for (const int64_t count :
       {options.tokens, options.probe_tokens, options.probe_positions, options.check_tokens}) {
    if (count < 1)
      return invalid("a budget's tokens, probe tokens and positions, and check tokens are 1 or more");
  }
  for (const double bits : {1., 2., 3., 4., 5., 8.})
    if (options.probe_bits == bits) return Status::Ok();
  return invalid(fmt::format("probe bits {} must be one of 1, 2, 3, 4, 5, 8", options.probe_bits));
}

std::string TextHash(std::string_view text, const JointOptions& options) {
  const std::string_view head = JointTextHead(text, options);
  return fmt::format("{:016x}", XXH3_64bits(head.data(), head.size()));
}

std::string TokensHash(const std::vector<Token>& tokens) {
  return fmt::format("{} {:016x}", tokens.size(), XXH3_64bits(tokens.data(), tokens.size() * sizeof(Token)));
}

}  // namespace

std::string TargetMissed(const PlanBudget& budget) {
  if (budget.target_kld <= 0 ||
      std::abs(std::log(budget.measured_kld / budget.target_kld)) <= std::log1p(kTargetTolerance)) {
    return "";
  }
  return fmt::format(
      "this is {:+.0f}% off the divergence asked for: of the plans tried none came nearer; codes have whole "
      "widths, so another target may be met, or give the bytes (--budget-bytes)",
      100 * (budget.measured_kld / budget.target_kld - 1));
}

Result<nlohmann::json> JointSettings(LoadedModel& model, std::string_view text, const JointOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(const JointText taken, TakeJointText(model, text, options));
  return nlohmann::json{{"command", "calibrate"},
                        {"model", model.fingerprint().Text()},
                        {"device", model.backend().name()},
                        {"activations", model.backend().precision() == Precision::kFloat ? "float" : "fast"},
                        {"probe", "one layer"},  // over codes, those behind it exact
                        {"measured", TokensHash(taken.measured)},
                        {"probed", TokensHash(taken.probed)},
                        {"probe_positions", options.probe_positions},
                        {"probe_bits", options.probe_bits},
                        {"sinks", options.protection.sinks},
                        {"recent", options.protection.recent},
                        {"seed", options.seed}};
}

Result<JointResult> CalibrateJointly(LoadedModel& model, std::string_view text, const JointOptions& options,
                                     ResultsFile& results) {
  const Clock::time_point start = Clock::now();
  BGTQ_RETURN_IF_ERROR(Check(model, options));
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe("aligned"));
  BGTQ_ASSIGN_OR_RETURN(const JointText taken, TakeJointText(model, text, options));
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<JointMeasurement> measured,
                        MeasureJointly(model, *recipe, taken, options, results));
  const Clock::time_point searching = Clock::now();
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<PlanCheck> check,
                        PlanCheck::Create(model, taken.checked,
                                          {.window = taken.check_window,
                                           .protection = options.protection,
                                           .threads = options.threads,
                                           .stop = options.stop}));
  BGTQ_ASSIGN_OR_RETURN(JointCandidate best, SearchPlan(model, options, *measured, *check));

  JointResult result;
  result.plan = std::move(best.plan);
  result.probes_found = measured->probes_found;
  result.short_text = taken.short_text;
  CalibrationInfo& info = result.plan.calibration;
  info.corpus_hash = TextHash(text, options);
  info.tokens = static_cast<int64_t>(taken.measured.size());
  info.seconds = SecondsSince(start);
  PlanBudget& budget = result.budget;
  budget.bytes = options.bytes;
  budget.target_kld = options.target_kld;
  budget.sinks = options.protection.sinks;
  budget.recent = options.protection.recent;
  budget.probe_bits = options.probe_bits;
  budget.probe_tokens = static_cast<int64_t>(taken.probed.size());
  budget.probes = static_cast<int64_t>(2 * measured->probes.size());
  budget.check_tokens = static_cast<int64_t>(taken.checked.size());
  budget.probe_seconds = measured->probe_seconds + SecondsSince(searching);
  budget.exponent = best.model.exponent;
  budget.trust = best.model.trust;
  budget.predicted_kld = best.predicted;
  budget.measured_kld = best.measured;
  return result;
}

}  // namespace blockgtq
