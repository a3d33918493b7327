// See joint_plan.h.
#include "src/eval/joint_plan.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "src/core/thread_pool.h"
#include "src/engine/drift.h"
#include "src/eval/first_keys.h"
#include "src/eval/kld_probe.h"
#include "src/eval/partial_heads.h"

namespace blockgtq {
namespace {

constexpr double kMeasuringShare = 0.05, kProbingShare = 0.85;  // of the progress bar
constexpr int kTargetRounds = 4;
constexpr double kTargetTolerance = 0.03;
// Error models that a measured plan is tried with, each beside the best so far.
constexpr std::array<double, 1> kTrustSteps = {0.6};
constexpr std::array<double, 2> kExponentSteps = {0.8, 1.25}, kKeySteps = {1.6, 0.625};
constexpr double kLeastStep = 0.2, kMostStep = 4;  // that a parameter goes to
constexpr int64_t kProbeWindow = 256;
constexpr int64_t kFirstKeyWindow = 64, kFirstKeyTokens = 768;
constexpr size_t kEqualBitsTried = 3;

Status Invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

std::string ProbeId(int layer, int head, StoredSide side) {
  return fmt::format("layer {} head {} {}", layer, head, side == StoredSide::kKeys ? "keys" : "values");
}

double DistortionAt(const std::vector<SideChoice>& choices, double bits) {
  for (const SideChoice& choice : choices) {
    if (choice.bits >= bits) return choice.distortion;
  }
  return choices.back().distortion;
}

/// A plan that was made, and what it measured on the probes' text.
struct Candidate {
  ErrorModel model;
  int64_t capacity = 0;
  double predicted = 0, measured = 0;
  Plan plan;
};

/// A head and its key bits, for its rotation.
using RotationKey = std::tuple<size_t, double>;

class Planner {
 public:
  Planner(LoadedModel& model, const JointOptions& options, ResultsFile& results)
      : model_(model),
        options_(options),
        results_(results),
        threads_(ThreadsOrCores(options.threads)),
        pool_(threads_) {}

  Result<JointResult> Run(std::string_view text) {
    const auto start = std::chrono::steady_clock::now();
    BGTQ_RETURN_IF_ERROR(Check());
    BGTQ_ASSIGN_OR_RETURN(recipe_, FindRecipe("aligned"));
    BGTQ_RETURN_IF_ERROR(MeasureHeads(text));
    BGTQ_RETURN_IF_ERROR(FindChoices());
    const auto probing = std::chrono::steady_clock::now();
    BGTQ_RETURN_IF_ERROR(ProbeAll());
    BGTQ_RETURN_IF_ERROR(Open(check_tokens_, static_cast<int64_t>(check_tokens_.size())));
    BGTQ_ASSIGN_OR_RETURN(Candidate best, options_.bytes > 0 ? ForBytes() : ForTarget());
    const auto end = std::chrono::steady_clock::now();

    JointResult result;
    result.plan = std::move(best.plan);
    result.probes_found = found_;
    CalibrationInfo& info = result.plan.calibration;
    const std::string_view head = CalibrationTextHead(text, options_.tokens + 2 * options_.probe_tokens);
    info.corpus_hash = fmt::format("{:016x}", XXH3_64bits(head.data(), head.size()));
    info.tokens = measured_tokens_;
    info.seconds = std::chrono::duration<double>(end - start).count();
    PlanBudget& budget = result.budget;
    budget.bytes = options_.bytes;
    budget.target_kld = options_.target_kld;
    budget.sinks = options_.protection.sinks;
    budget.recent = options_.protection.recent;
    budget.probe_bits = options_.probe_bits;
    budget.probe_tokens = static_cast<int64_t>(probe_tokens_.size());
    budget.probes = static_cast<int64_t>(2 * heads());
    budget.probe_seconds = std::chrono::duration<double>(end - probing).count();
    budget.key_factor = best.model.key_factor;
    budget.exponent = best.model.exponent;
    budget.trust = best.model.trust;
    budget.predicted_kld = best.predicted;
    budget.measured_kld = best.measured;
    return result;
  }

 private:
  int layers() const { return model_.config().layers; }
  int kv_heads() const { return model_.config().kv_heads; }
  size_t heads() const { return static_cast<size_t>(layers()) * static_cast<size_t>(kv_heads()); }
  int LayerOf(size_t head) const { return static_cast<int>(head) / kv_heads(); }
  int HeadOf(size_t head) const { return static_cast<int>(head) % kv_heads(); }

  Status Check() const {
    if ((options_.bytes > 0) == (options_.target_kld > 0))
      return Invalid("one of a budget in bytes and a target divergence must be positive");
    if (!model_.backend().has_simulated_caches()) {  // said before minutes are spent on measuring
      return {ErrorCode::kUnsupported,
              fmt::format("{} has no simulated caches, which probes of a budget run: use --device cpu",
                          model_.backend().name())};
    }
    for (const double bits : {1., 2., 3., 4., 5., 8.})
      if (options_.probe_bits == bits) return Status::Ok();
    return Invalid(fmt::format("probe bits {} must be one of 1, 2, 3, 4, 5, 8", options_.probe_bits));
  }

  Status CheckStop() const {
    if (options_.stop == nullptr || !options_.stop->load()) return Status::Ok();
    return {ErrorCode::kCancelled, "stopped; the probes so far are kept, the same command takes up there"};
  }

  void Report(double done, const std::string& note) const {
    if (options_.progress) options_.progress(done, note);
  }

  Status MeasureHeads(std::string_view text) {
    BGTQ_ASSIGN_OR_RETURN(std::vector<Token> tokens,
                          CalibrationTokens(model_, text, options_.tokens + 2 * options_.probe_tokens));
    const std::ptrdiff_t probed =
        static_cast<std::ptrdiff_t>(std::min(static_cast<size_t>(options_.probe_tokens), tokens.size() / 2));
    probe_tokens_.assign(tokens.end() - 2 * probed, tokens.end() - probed);
    check_tokens_.assign(tokens.end() - probed, tokens.end());
    const std::vector<Token> start = model_.PromptStart(nullptr);  // a sequence begins as those in use do
    for (std::vector<Token>* of : {&probe_tokens_, &check_tokens_})
      std::copy_n(start.begin(), std::min(start.size(), of->size()), of->begin());
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(options_.tokens)));
    measured_tokens_ = static_cast<int64_t>(tokens.size());
    BGTQ_ASSIGN_OR_RETURN(measured_, Measure(model_, tokens, [&](double done) {
                            Report(kMeasuringShare * done, "measuring");
                          }));
    const LayerRopes ropes = model_.config().ropes();
    std::vector<std::shared_ptr<const RopeTable>> tables;
    for (const RopeConfig& rope : ropes.configs) tables.push_back(std::make_shared<RopeTable>(rope));
    for (int l = 0; l < layers(); ++l) ropes_.push_back(tables[static_cast<size_t>(ropes.index(l))]);
    if (options_.protection.sinks == 0) {
      tokens.resize(std::min(tokens.size(), static_cast<size_t>(kFirstKeyTokens)));
      BGTQ_ASSIGN_OR_RETURN(first_keys_, MeasureFirstKeys(model_, tokens, kFirstKeyWindow, threads_));
    }
    return Status::Ok();
  }

  Status FindChoices() {
    choices_.resize(heads());
    std::vector<Status> outcomes(heads());
    pool_.Run(static_cast<int64_t>(heads()), [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i);
      const int layer = LayerOf(at), head = HeadOf(at);
      Result<HeadChoices> made = MakeHeadChoices(measured_[at], *recipe_, options_.seed,
                                                 ropes_[static_cast<size_t>(layer)], layer, head);
      outcomes[at] = made.status();
      if (made.ok()) choices_[at] = std::move(made).value();
    });
    for (const Status& status : outcomes) BGTQ_RETURN_IF_ERROR(status);
    return Status::Ok();
  }

  Status TakeFound(std::map<std::string, double>& found) const {
    for (const nlohmann::json& sample : results_.samples()) {
      const auto kld = sample.find("kld");
      if (kld == sample.end() || !kld->is_number() || !(kld->get<double>() >= 0)) {
        return {ErrorCode::kCorruptFile,
                fmt::format("probes file: '{}' has no divergence; remove the file to have all run again",
                            sample["id"].get<std::string>())};
      }
      found[sample["id"].get<std::string>()] = kld->get<double>();
    }
    return Status::Ok();
  }

  Status ProbeAll() {
    BGTQ_RETURN_IF_ERROR(CheckProbesSeeCodes());
    std::map<std::string, double> found;
    BGTQ_RETURN_IF_ERROR(TakeFound(found));
    probes_.resize(heads());
    std::vector<RecipeOptions> rotated(heads(), {options_.probe_bits, options_.probe_bits, options_.seed});
    const double all = layers() * (layers() + 1) / 2.0;  // layers that a side's probes run
    double run = 0;
    for (int l = 0; l < layers(); ++l) {
      for (int h = 0; h < kv_heads(); ++h) {
        const size_t at = static_cast<size_t>(l) * static_cast<size_t>(kv_heads()) + static_cast<size_t>(h);
        HeadProbe& probe = probes_[at];
        probe.key_distortion = DistortionAt(choices_[at].keys, options_.probe_bits);
        probe.value_distortion = DistortionAt(choices_[at].values, options_.probe_bits);
        for (const StoredSide side : {StoredSide::kKeys, StoredSide::kValues}) {
          double& kld = side == StoredSide::kKeys ? probe.key_kld : probe.value_kld;
          const std::string id = ProbeId(l, h, side);
          if (const auto known = found.find(id); known != found.end()) {
            kld = known->second;
            ++found_;
            continue;
          }
          BGTQ_RETURN_IF_ERROR(CheckStop());
          if (probe_ == nullptr) {
            BGTQ_RETURN_IF_ERROR(Rotate(rotated));
            BGTQ_RETURN_IF_ERROR(Open(probe_tokens_, options_.probe_positions));
          }
          BGTQ_RETURN_IF_ERROR(probe_->Enter(l));
          BGTQ_ASSIGN_OR_RETURN(const HeadPlan plan, recipe_->plan_head(measured_[at], rotated[at], l, h));
          BGTQ_ASSIGN_OR_RETURN(kld, probe_->KldOfLayer(OneSideStored(
                                         model_.config(), plan, ropes_[static_cast<size_t>(l)], l, h, side)));
          BGTQ_RETURN_IF_ERROR(results_.Append({{"id", id}, {"kld", kld}}));
        }
      }
      run += layers() - l;
      Report(kMeasuringShare + kProbingShare * run / all, fmt::format("layer {} of {}", l + 1, layers()));
    }
    return Status::Ok();
  }

  /// Whether any token of a probe's window attends to codes.
  Status CheckProbesSeeCodes() const {
    const int64_t sinks = options_.protection.sinks, recent = options_.protection.recent;
    const int64_t last =
        std::min({kProbeWindow, model_.config().context_length, static_cast<int64_t>(probe_tokens_.size())}) -
        1;
    const int64_t coded = recent > 0 ? std::max<int64_t>(last - recent, 0) / kPageTokens * kPageTokens : last;
    if (coded > sinks) return Status::Ok();
    return Invalid(
        fmt::format("probes of {} tokens never leave the {} sinks and {} recent tokens that stay exact: give "
                    "more --probe-tokens (windows of {} are used) or a smaller --recent",
                    last + 1, sinks, recent, kProbeWindow));
  }

  Status Open(std::span<const Token> tokens, int64_t positions) {
    probe_.reset();  // the room of the one before
    const KldProbeOptions options{.window = std::min(kProbeWindow, model_.config().context_length),
                                  .positions = positions,
                                  .protection = options_.protection,
                                  .threads = threads_};
    BGTQ_ASSIGN_OR_RETURN(probe_, KldProbe::Create(model_, tokens, options));
    return Status::Ok();
  }

  /// Gives every head's bits, where no sinks are protected, the seed of the rotation that suits position 0.
  Status Rotate(std::vector<RecipeOptions>& bits) {
    if (first_keys_.empty()) return Status::Ok();
    std::vector<size_t> unknown;
    for (size_t head = 0; head < heads(); ++head) {
      if (!rotations_.contains(RotationKey(head, bits[head].k_bits))) unknown.push_back(head);
    }
    std::vector<Status> outcomes(unknown.size());
    std::vector<uint64_t> seeds(unknown.size());
    pool_.Run(static_cast<int64_t>(unknown.size()), [&](int64_t i, int) {
      if (!CheckStop().ok()) return;
      const size_t head = unknown[static_cast<size_t>(i)];
      const Result<uint64_t> seed = ChooseRotation(*recipe_, measured_[head], bits[head], first_keys_[head],
                                                   ropes_[static_cast<size_t>(LayerOf(head))], LayerOf(head),
                                                   HeadOf(head), kRotationsOfAHead);
      outcomes[static_cast<size_t>(i)] = seed.status();
      if (seed.ok()) seeds[static_cast<size_t>(i)] = *seed;
    });
    BGTQ_RETURN_IF_ERROR(CheckStop());
    for (size_t i = 0; i < unknown.size(); ++i) {
      BGTQ_RETURN_IF_ERROR(outcomes[i]);
      rotations_[RotationKey(unknown[i], bits[unknown[i]].k_bits)] = seeds[i];
    }
    for (size_t head = 0; head < heads(); ++head)
      bits[head].seed = rotations_[RotationKey(head, bits[head].k_bits)];
    return Status::Ok();
  }

  int64_t SmallestCapacity() const {
    int64_t bytes = 0;
    for (const HeadChoices& c : choices_) bytes += c.keys.front().bytes + c.values.front().bytes;
    return bytes;
  }
  int64_t LargestCapacity() const {
    int64_t bytes = 0;
    for (const HeadChoices& c : choices_) bytes += c.keys.back().bytes + c.values.back().bytes;
    return bytes;
  }
  double BytesOf(int64_t capacity) const {
    return static_cast<double>(capacity) / kPageTokens / static_cast<double>(heads());
  }

  Result<Candidate> Try(const ErrorModel& model, int64_t capacity) {
    BGTQ_RETURN_IF_ERROR(CheckStop());
    Candidate candidate{model, capacity, 0, 0, {}};
    JointAllocation allocation = AllocateJointly(choices_, probes_, model, capacity, options_.seed);
    if (allocation.bits.empty()) {
      return Invalid(
          fmt::format("{:.2f} bytes a token a head are too few: this model's heads take at least {:.2f}",
                      BytesOf(capacity), BytesOf(SmallestCapacity())));
    }
    candidate.predicted = allocation.predicted_kld;
    BGTQ_RETURN_IF_ERROR(Rotate(allocation.bits));
    BGTQ_ASSIGN_OR_RETURN(candidate.plan,
                          MakePlanByHead(model_, measured_, "aligned", allocation.bits, threads_));
    candidate.plan.seed = options_.seed;
    BGTQ_ASSIGN_OR_RETURN(candidate.measured, KldOf(candidate.plan));
    return candidate;
  }

  Result<Candidate> ForBytes() {
    const double wanted = options_.bytes * kPageTokens * static_cast<double>(heads());
    const int64_t capacity = static_cast<int64_t>(std::min(wanted + 1e-6, 1e15));
    BGTQ_ASSIGN_OR_RETURN(Candidate best, BestModel(capacity));
    for (const RecipeOptions& bits : EqualBits(capacity)) {
      BGTQ_RETURN_IF_ERROR(CheckStop());
      Candidate equal{{1, 1, 0}, capacity, 0, 0, {}};
      BGTQ_ASSIGN_OR_RETURN(equal.plan, MakePlan(model_, measured_, "aligned", bits, threads_));
      if (equal.plan.bytes_per_token_per_head() > options_.bytes) continue;
      BGTQ_ASSIGN_OR_RETURN(equal.measured, KldOf(equal.plan));
      equal.predicted = equal.measured;  // the model has no part in it
      if (equal.measured < best.measured) best = std::move(equal);
    }
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
    std::vector<std::pair<double, RecipeOptions>> found;
    for (const SideChoice& value : choices_.front().values) {
      for (size_t k = choices_.front().keys.size(); k-- > 0;) {
        const double bits = choices_.front().keys[k].bits;
        int64_t bytes = 0;
        double error = 0;
        for (size_t h = 0; h < heads(); ++h) {
          const SideChoice &of_key = at_most(choices_[h].keys, bits),
                           &of_value = at_most(choices_[h].values, value.bits);
          bytes += of_key.bytes + of_value.bytes;
          error += of_key.distortion / choices_[h].keys.front().distortion +
                   of_value.distortion / choices_[h].values.front().distortion;
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

  Result<double> KldOf(const Plan& plan) {
    return probe_->Kld(
        std::make_shared<const SimulatedHeads>(SimulatePlan(model_.config(), plan, "aligned")));
  }

  /// The error model whose plan measures best: from the plain one, a step at a time as long as steps help.
  Result<Candidate> BestModel(int64_t capacity) {
    Report(kMeasuringShare + kProbingShare, "plans");
    BGTQ_ASSIGN_OR_RETURN(Candidate best, Try({}, capacity));
    const auto improve = [&](std::span<const double> steps, double ErrorModel::*field) -> Status {
      for (const double step : steps) {
        bool better = false;
        for (bool more = true; more;) {
          ErrorModel model = best.model;
          model.*field *= step;
          if (model.*field > kMostStep || model.*field < kLeastStep) break;
          BGTQ_ASSIGN_OR_RETURN(Candidate next, Try(model, capacity));
          more = next.measured < best.measured;
          better = better || more;
          if (more) best = std::move(next);
        }
        if (better) break;  // the other way leads back
      }
      return Status::Ok();
    };
    BGTQ_RETURN_IF_ERROR(improve(kTrustSteps, &ErrorModel::trust));
    BGTQ_RETURN_IF_ERROR(improve(kExponentSteps, &ErrorModel::exponent));
    BGTQ_RETURN_IF_ERROR(improve(kKeySteps, &ErrorModel::key_factor));
    return best;
  }

  /// The smallest capacity whose predicted divergence, times `correction`, reaches the target; 0: none does.
  int64_t CapacityFor(const ErrorModel& model, double correction) const {
    int64_t low = SmallestCapacity(), high = LargestCapacity();
    const auto reached = [&](int64_t capacity) {
      return correction * AllocateJointly(choices_, probes_, model, capacity, options_.seed).predicted_kld <=
             options_.target_kld;
    };
    if (!reached(high)) return 0;
    const int64_t step = static_cast<int64_t>(heads()) * kPageTokens / 8;  // an eighth of a byte a head
    while (high - low > std::max<int64_t>(step, 1)) {
      const int64_t middle = low + (high - low) / 2;
      (reached(middle) ? high : low) = middle;
    }
    return high;
  }

  Result<Candidate> ForTarget() {
    double correction = 1;
    std::optional<Candidate> best;
    for (int round = 0; round < kTargetRounds; ++round) {
      const ErrorModel model = best.has_value() ? best->model : ErrorModel{};
      const int64_t capacity = CapacityFor(model, correction);
      if (capacity == 0) {
        return Invalid(
            fmt::format("a divergence of {} is below what this model's largest codes reach; use "
                        "--recipe fp16",
                        options_.target_kld));
      }
      BGTQ_ASSIGN_OR_RETURN(Candidate next, round == 1 ? BestModel(capacity) : Try(model, capacity));
      correction = next.predicted > 0 ? next.measured / next.predicted : correction;
      const bool close = std::abs(next.measured / options_.target_kld - 1) < kTargetTolerance;
      const auto distance = [&](const Candidate& c) {
        return std::abs(std::log(c.measured / options_.target_kld));
      };
      if (!best.has_value() || round == 1 || distance(next) < distance(*best)) best = std::move(next);
      if (close && round >= 1) break;
    }
    return std::move(*best);
  }

  LoadedModel& model_;
  const JointOptions& options_;
  ResultsFile& results_;
  const Recipe* recipe_ = nullptr;
  std::vector<Token> probe_tokens_, check_tokens_;
  int64_t measured_tokens_ = 0, found_ = 0;
  std::vector<HeadCalibration> measured_;
  std::vector<std::shared_ptr<const RopeTable>> ropes_;  // by layer
  std::vector<FirstKeys> first_keys_;                    // empty: sinks are protected
  std::map<RotationKey, uint64_t> rotations_;            // seeds, chosen so far
  std::vector<HeadChoices> choices_;
  std::vector<HeadProbe> probes_;
  std::unique_ptr<KldProbe> probe_;
  int threads_;
  ThreadPool pool_;
};

}  // namespace

nlohmann::json JointSettings(const LoadedModel& model, std::string_view text, const JointOptions& options) {
  const std::string_view head = CalibrationTextHead(text, options.tokens + 2 * options.probe_tokens);
  return {{"command", "calibrate"},
          {"model", model.fingerprint().Text()},
          {"device", model.backend().name()},
          {"activations", model.backend().precision() == Precision::kFloat ? "float" : "fast"},
          {"probe", "one layer"},  // over codes, those behind it exact
          {"text", fmt::format("{:016x}", XXH3_64bits(head.data(), head.size()))},
          {"tokens", options.tokens},
          {"probe_tokens", options.probe_tokens},
          {"probe_positions", options.probe_positions},
          {"probe_bits", options.probe_bits},
          {"sinks", options.protection.sinks},
          {"recent", options.protection.recent},
          {"seed", options.seed}};
}

Result<JointResult> CalibrateJointly(LoadedModel& model, std::string_view text, const JointOptions& options,
                                     ResultsFile& results) {
  if (model.config().latent.rank > 0) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("{}: one budget over all heads is for keys and values; this model caches "
                              "latents (MLA): give -K and -V",
                              model.path()));
  }
  return Planner(model, options, results).Run(text);
}

}  // namespace blockgtq
