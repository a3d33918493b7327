// See joint_search.h.
#include "src/eval/joint_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/thread_pool.h"
#include "src/eval/error_model_search.h"

namespace blockgtq {
namespace {

constexpr int kTargetRounds = 4;
constexpr size_t kEqualBitsTried = 3;
constexpr double kWindowsExpected = 20;  // about, in a search: how fast its progress moves

Status Invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

class Search {
 public:
  Search(LoadedModel& model, const JointOptions& options, const JointMeasurement& measured, PlanCheck& check)
      : model_(model),
        options_(options),
        measured_(measured),
        check_(check),
        threads_(ThreadsOrCores(options.threads)),
        some_((check.windows() + 1) / 2) {
    for (const HeadChoices& c : measured.choices) {
      smallest_ += c.keys.front().bytes + c.values.front().bytes;
      largest_ += c.keys.back().bytes + c.values.back().bytes;
    }
  }

  /// Plans of error models and of equal bits on half of the check text; the likeliest of each on all of it.
  Result<JointCandidate> ForBytes() {
    const double wanted = options_.bytes * kPageTokens * static_cast<double>(heads());
    const int64_t capacity = static_cast<int64_t>(std::min(wanted + 1e-6, 1e15));
    double correction = 1;
    BGTQ_ASSIGN_OR_RETURN(const ErrorModel model, BestModel(capacity, correction));
    std::optional<JointCandidate> equal;
    for (const RecipeOptions& bits : EqualBits(capacity)) {
      BGTQ_RETURN_IF_ERROR(CheckJointStop(options_.stop));
      JointCandidate next{{1, 0}, 0, 0, {}};
      BGTQ_ASSIGN_OR_RETURN(next.plan, MakePlan(model_, measured_.calibrations, "aligned", bits, threads_));
      if (next.plan.bytes_per_token_per_head() > options_.bytes) continue;
      BGTQ_ASSIGN_OR_RETURN(next.measured, KldOf(next.plan, some_));
      if (!equal.has_value() || next.measured < equal->measured) equal = std::move(next);
    }
    BGTQ_ASSIGN_OR_RETURN(JointCandidate best, Try(model, capacity, check_.windows()));
    if (equal.has_value()) {
      BGTQ_RETURN_IF_ERROR(CheckJointStop(options_.stop));
      BGTQ_ASSIGN_OR_RETURN(equal->measured, KldOf(equal->plan, check_.windows()));
      equal->predicted = equal->measured;  // the error model has no part in it
      if (equal->measured < best.measured) best = std::move(*equal);
    }
    return best;
  }

  /// The error model is found near the capacity that the target takes, on half of the check text; then the
  /// capacity is corrected until the plan's divergence on all of it is the target.
  Result<JointCandidate> ForTarget() {
    BGTQ_ASSIGN_OR_RETURN(int64_t capacity, CapacityFor({}, 1));
    BGTQ_ASSIGN_OR_RETURN(const JointCandidate plain, Try({}, capacity, some_));
    BGTQ_ASSIGN_OR_RETURN(capacity, CapacityFor({}, Correction(plain)));
    double correction = 1;
    BGTQ_ASSIGN_OR_RETURN(const ErrorModel model, BestModel(capacity, correction));
    std::optional<JointCandidate> best;
    const auto distance = [&](const JointCandidate& c) {
      return std::abs(std::log(c.measured / options_.target_kld));
    };
    for (int round = 0; round < kTargetRounds; ++round) {
      BGTQ_ASSIGN_OR_RETURN(capacity, CapacityFor(model, correction));
      BGTQ_ASSIGN_OR_RETURN(JointCandidate next, Try(model, capacity, check_.windows()));
      correction = Correction(next);
      if (!best.has_value() || distance(next) < distance(*best)) best = std::move(next);
      if (distance(*best) < std::log1p(kTargetTolerance)) break;
    }
    return std::move(*best);
  }

 private:
  /// What a predicted divergence near this plan's has to be multiplied by.
  static double Correction(const JointCandidate& c) {
    return c.predicted > 0 && c.measured > 0 ? c.measured / c.predicted : 1;
  }
  size_t heads() const { return measured_.choices.size(); }
  double BytesOf(int64_t capacity) const {
    return static_cast<double>(capacity) / kPageTokens / static_cast<double>(heads());
  }
  /// note: of what runs next.
  void Report(const std::string& note) const {
    const double done = static_cast<double>(windows_run_) / (windows_run_ + kWindowsExpected);
    if (options_.progress) options_.progress(kMeasurementShare + (1 - kMeasurementShare) * done, note);
  }

  Result<double> KldOf(const Plan& plan, int64_t windows) {
    Report(windows < check_.windows() ? "trying plans" : "checking plans");
    windows_run_ += windows;
    return check_.Kld(std::make_shared<const SimulatedHeads>(SimulatePlan(model_.config(), plan, "aligned")),
                      windows);
  }

  Result<JointCandidate> Try(const ErrorModel& model, int64_t capacity, int64_t windows) {
    BGTQ_RETURN_IF_ERROR(CheckJointStop(options_.stop));
    JointCandidate candidate{model, 0, 0, {}};
    JointAllocation allocation =
        AllocateJointly(measured_.choices, measured_.probes, model, capacity, options_.seed);
    if (allocation.bits.empty()) {
      return Invalid(
          fmt::format("{:.2f} bytes a token a head are too few: this model's heads take at least {:.2f}",
                      BytesOf(capacity), BytesOf(smallest_)));
    }
    candidate.predicted = allocation.predicted_kld;
    BGTQ_RETURN_IF_ERROR(measured_.rotations->Choose(allocation.bits, options_.stop));
    BGTQ_ASSIGN_OR_RETURN(
        candidate.plan, MakePlanByHead(model_, measured_.calibrations, "aligned", allocation.bits, threads_));
    candidate.plan.seed = options_.seed;
    BGTQ_ASSIGN_OR_RETURN(candidate.measured, KldOf(candidate.plan, windows));
    return candidate;
  }

  /// The error model that does best on half of the check text. correction: its Correction there.
  Result<ErrorModel> BestModel(int64_t capacity, double& correction) {
    std::vector<std::pair<ErrorModel, double>> corrections;
    const auto measure = [&](const ErrorModel& model) -> Result<double> {
      BGTQ_ASSIGN_OR_RETURN(const JointCandidate tried, Try(model, capacity, some_));
      corrections.push_back({model, Correction(tried)});
      return tried.measured;
    };
    BGTQ_ASSIGN_OR_RETURN(const ErrorModel best, ChooseErrorModel(measure));
    const auto of_best = std::find_if(corrections.begin(), corrections.end(),
                                      [&](const auto& each) { return each.first == best; });
    correction = of_best->second;
    return best;
  }

  /// Equal bits for every head that about fit, the likeliest few first: for each width of the values the most
  /// bits of keys.
  std::vector<RecipeOptions> EqualBits(int64_t capacity) const {
    const auto at_most = [](const std::vector<SideChoice>& side, double bits) -> const SideChoice& {
      size_t i = 0;
      while (i + 1 < side.size() && side[i + 1].bits <= bits) ++i;
      return side[i];
    };
    const std::vector<HeadChoices>& choices = measured_.choices;
    std::vector<std::pair<double, RecipeOptions>> found;
    for (const SideChoice& value : choices.front().values) {
      for (size_t k = choices.front().keys.size(); k-- > 0;) {
        const double bits = choices.front().keys[k].bits;
        int64_t bytes = 0;
        double error = 0;
        for (const HeadChoices& head : choices) {
          const SideChoice &of_key = at_most(head.keys, bits), &of_value = at_most(head.values, value.bits);
          bytes += of_key.bytes + of_value.bytes;
          error += of_key.distortion / head.keys.front().distortion +
                   of_value.distortion / head.values.front().distortion;
        }
        if (bytes > capacity) continue;
        found.push_back({error, {bits, value.bits, options_.seed}});
        break;
      }
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<RecipeOptions> likeliest;
    for (size_t i = 0; i < std::min(found.size(), kEqualBitsTried); ++i) likeliest.push_back(found[i].second);
    return likeliest;
  }

  /// The smallest capacity whose predicted divergence, times `correction`, reaches the target.
  Result<int64_t> CapacityFor(const ErrorModel& model, double correction) const {
    int64_t low = smallest_, high = largest_;
    const auto reached = [&](int64_t capacity) {
      return correction * AllocateJointly(measured_.choices, measured_.probes, model, capacity, options_.seed)
                              .predicted_kld <=
             options_.target_kld;
    };
    if (!reached(high)) {
      return Invalid(
          fmt::format("a divergence of {} is below what this model's largest codes reach; use --recipe fp16",
                      options_.target_kld));
    }
    const int64_t step = static_cast<int64_t>(heads()) * kPageTokens / 8;  // an eighth of a byte a head
    while (high - low > std::max<int64_t>(step, 1)) {
      const int64_t middle = low + (high - low) / 2;
      (reached(middle) ? high : low) = middle;
    }
    return high;
  }

  LoadedModel& model_;
  const JointOptions& options_;
  const JointMeasurement& measured_;
  PlanCheck& check_;
  int threads_;
  int64_t windows_run_ = 0;             // of plans
  int64_t some_;                        // windows of the check text that error models are tried on
  int64_t smallest_ = 0, largest_ = 0;  // capacities
};

}  // namespace

Result<JointCandidate> SearchPlan(LoadedModel& model, const JointOptions& options,
                                  const JointMeasurement& measured, PlanCheck& check) {
  Search search(model, options, measured, check);
  return options.bytes > 0 ? search.ForBytes() : search.ForTarget();
}

}  // namespace blockgtq
