// See joint_measurement.h.
#include "src/eval/joint_measurement.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "src/core/thread_pool.h"
#include "src/eval/kld_probe.h"
#include "src/eval/partial_heads.h"

namespace blockgtq {
namespace {

constexpr double kStatisticsShare = 0.05;  // of the progress bar; kMeasurementShare with the probes
constexpr int64_t kFirstKeyWindow = 64, kFirstKeyTokens = 768;

std::string ProbeId(int layer, int head, StoredSide side) {
  return fmt::format("layer {} head {} {}", layer, head, side == StoredSide::kKeys ? "keys" : "values");
}

double DistortionAt(const std::vector<SideChoice>& choices, double bits) {
  for (const SideChoice& choice : choices) {
    if (choice.bits >= bits) return choice.distortion;
  }
  return choices.back().distortion;
}

class Measurer {
 public:
  Measurer(LoadedModel& model, const Recipe& recipe, const JointText& text, const JointOptions& options,
           ResultsFile& results)
      : model_(model),
        recipe_(recipe),
        text_(text),
        options_(options),
        results_(results),
        threads_(ThreadsOrCores(options.threads)),
        made_(std::make_unique<JointMeasurement>()) {}

  Result<std::unique_ptr<JointMeasurement>> Run() {
    BGTQ_RETURN_IF_ERROR(MeasureHeads());
    BGTQ_RETURN_IF_ERROR(FindChoices());
    const auto start = std::chrono::steady_clock::now();
    BGTQ_RETURN_IF_ERROR(ProbeAll());
    made_->probe_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(made_);
  }

 private:
  int layers() const { return model_.config().layers; }
  int kv_heads() const { return model_.config().kv_heads; }
  size_t heads() const { return static_cast<size_t>(layers()) * static_cast<size_t>(kv_heads()); }
  void Report(double done, const std::string& note) const {
    if (options_.progress) options_.progress(done, note);
  }

  Status MeasureHeads() {
    std::vector<Token> tokens = text_.measured;
    BGTQ_ASSIGN_OR_RETURN(made_->calibrations, Measure(model_, tokens, [&](double done) {
                            Report(kStatisticsShare * done, "measuring");
                          }));
    const LayerRopes ropes = model_.config().ropes();
    std::vector<std::shared_ptr<const RopeTable>> tables;
    for (const RopeConfig& rope : ropes.configs) tables.push_back(std::make_shared<RopeTable>(rope));
    for (int l = 0; l < layers(); ++l) made_->ropes.push_back(tables[static_cast<size_t>(ropes.index(l))]);
    std::vector<FirstKeys> first_keys;
    if (options_.protection.sinks == 0) {
      tokens.resize(std::min(tokens.size(), static_cast<size_t>(kFirstKeyTokens)));
      BGTQ_ASSIGN_OR_RETURN(first_keys, MeasureFirstKeys(model_, tokens, kFirstKeyWindow, threads_));
    }
    made_->rotations = std::make_unique<JointRotations>(recipe_, made_->calibrations, made_->ropes,
                                                        kv_heads(), std::move(first_keys), threads_);
    return Status::Ok();
  }

  Status FindChoices() {
    made_->choices.resize(heads());
    std::vector<Status> outcomes(heads());
    ThreadPool pool(threads_);
    pool.Run(static_cast<int64_t>(heads()), [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i);
      const int layer = static_cast<int>(i) / kv_heads(), head = static_cast<int>(i) % kv_heads();
      Result<HeadChoices> choices = MakeHeadChoices(made_->calibrations[at], recipe_, options_.seed,
                                                    made_->ropes[static_cast<size_t>(layer)], layer, head);
      outcomes[at] = choices.status();
      if (choices.ok()) made_->choices[at] = std::move(choices).value();
    });
    for (const Status& status : outcomes) BGTQ_RETURN_IF_ERROR(status);
    return Status::Ok();
  }

  Result<std::map<std::string, double>> TakeFound() const {
    std::map<std::string, double> found;
    for (const nlohmann::json& sample : results_.samples()) {
      const auto kld = sample.find("kld");
      if (kld == sample.end() || !kld->is_number() || !(kld->get<double>() >= 0)) {
        return Status(ErrorCode::kCorruptFile,
                      fmt::format("probes file: '{}' has no divergence; remove the file to have all run "
                                  "again",
                                  sample["id"].get<std::string>()));
      }
      found[sample["id"].get<std::string>()] = kld->get<double>();
    }
    return found;
  }

  Status ProbeAll() {
    BGTQ_ASSIGN_OR_RETURN(const auto found, TakeFound());
    made_->probes.resize(heads());
    rotated_.assign(heads(), {options_.probe_bits, options_.probe_bits, options_.seed});
    const double all = layers() * (layers() + 1) / 2.0;  // layers that a side's probes run
    double run = 0;
    for (int l = 0; l < layers(); ++l) {
      for (int h = 0; h < kv_heads(); ++h) {
        const size_t at = static_cast<size_t>(l) * static_cast<size_t>(kv_heads()) + static_cast<size_t>(h);
        HeadProbe& probe = made_->probes[at];
        probe.key_distortion = DistortionAt(made_->choices[at].keys, options_.probe_bits);
        probe.value_distortion = DistortionAt(made_->choices[at].values, options_.probe_bits);
        for (const StoredSide side : {StoredSide::kKeys, StoredSide::kValues}) {
          double& kld = side == StoredSide::kKeys ? probe.key_kld : probe.value_kld;
          const std::string id = ProbeId(l, h, side);
          if (const auto known = found.find(id); known != found.end()) {
            kld = known->second;
            ++made_->probes_found;
            continue;
          }
          BGTQ_ASSIGN_OR_RETURN(kld, Probe(l, h, side));
          BGTQ_RETURN_IF_ERROR(results_.Append({{"id", id}, {"kld", kld}}));
        }
      }
      run += layers() - l;
      Report(kStatisticsShare + (kMeasurementShare - kStatisticsShare) * run / all,
             fmt::format("layer {} of {}", l + 1, layers()));
    }
    return Status::Ok();
  }

  Result<double> Probe(int layer, int head, StoredSide side) {
    BGTQ_RETURN_IF_ERROR(CheckJointStop(options_.stop));
    if (probe_ == nullptr) {
      BGTQ_RETURN_IF_ERROR(made_->rotations->Choose(rotated_, options_.stop));
      const KldProbeOptions options{.window = text_.probe_window,
                                    .positions = options_.probe_positions,
                                    .protection = options_.protection,
                                    .threads = threads_};
      BGTQ_ASSIGN_OR_RETURN(probe_, KldProbe::Create(model_, text_.probed, options));
    }
    BGTQ_RETURN_IF_ERROR(probe_->Enter(layer));
    const size_t at =
        static_cast<size_t>(layer) * static_cast<size_t>(kv_heads()) + static_cast<size_t>(head);
    BGTQ_ASSIGN_OR_RETURN(const HeadPlan plan,
                          recipe_.plan_head(made_->calibrations[at], rotated_[at], layer, head));
    return probe_->KldOfLayer(
        OneSideStored(model_.config(), plan, made_->ropes[static_cast<size_t>(layer)], layer, head, side));
  }

  LoadedModel& model_;
  const Recipe& recipe_;
  const JointText& text_;
  const JointOptions& options_;
  ResultsFile& results_;
  int threads_;
  std::unique_ptr<JointMeasurement> made_;
  std::unique_ptr<KldProbe> probe_;     // once a probe must run
  std::vector<RecipeOptions> rotated_;  // by head, what a probe stores
};

}  // namespace

Result<std::unique_ptr<JointMeasurement>> MeasureJointly(LoadedModel& model, const Recipe& recipe,
                                                         const JointText& text, const JointOptions& options,
                                                         ResultsFile& results) {
  return Measurer(model, recipe, text, options, results).Run();
}

}  // namespace blockgtq
