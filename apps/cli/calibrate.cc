// blockgtq calibrate: measures a model on text and writes a plan.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <optional>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/engine/drift.h"
#include "src/eval/joint_plan.h"
#include "src/formats/plan_file.h"

namespace blockgtq::cli {
namespace {

class CalibrateCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "float");
    CLI::Option* text = app.add_option("-f,--file", file_,
                                       "calibration text (default: the bundled start of WikiText-2 train)")
                            ->check(NotEmpty());
    CLI::Option* tokens = app.add_option("--tokens", options_.tokens, "tokens measured")
                              ->check(CLI::Range(64, 1 << 20))
                              ->capture_default_str();
    CLI::Option* k = app.add_option("-K", options_.bits.k_bits, "code bits a dimension of keys, on average")
                         ->capture_default_str();
    CLI::Option* v =
        app.add_option("-V", options_.bits.v_bits, "code bits a dimension of values")->capture_default_str();
    CLI::Option* recipe = app.add_option("--recipe", options_.recipe, "allocator")->capture_default_str();
    CLI::Option* seed = app.add_option("-s,--seed", options_.bits.seed, "seed of the random rotations")
                            ->capture_default_str();
    AddBudget(app, k, v);
    adapt_ = app.add_option("--adapt", moments_,
                            "make the plan of running moments instead of text: a file that 'serve' or "
                            "'generate' wrote with --moments")
                 ->check(NotEmpty());
    CLI::Option* old = app.add_option("--plan", old_plan_,
                                      "with --adapt: the plan in use, whose bits, recipe and seed are kept")
                           ->check(NotEmpty())
                           ->needs(adapt_);
    for (CLI::Option* other : {text, tokens, budget_, compression_, target_}) adapt_->excludes(other);
    for (CLI::Option* other : {k, v, recipe, seed}) old->excludes(other);
    app.add_option("-o,--output", output_,
                   "plan file (default: beside the model, where other commands find it)")
        ->check(NotEmpty());
    json_.Add(app);
  }

  Status Run() override {
    std::string text;
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(text, ReadFile(file_));
    }
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    if (!adapt_->empty() && output_.empty()) {
      return {ErrorCode::kInvalidArgument,
              "--adapt: name the new plan with -o; the one beside the model stays as it is"};
    }
    const std::string path = output_.empty() ? DefaultPath(model->path()) : output_;
    for (const std::string& input : {moments_, old_plan_})
      if (!input.empty()) NoteInput(input);
    BGTQ_RETURN_IF_ERROR(CheckOutput(path));
    const std::string_view corpus = file_.empty() ? BundledCalibrationText() : text;
    if (!adapt_->empty()) {
      BGTQ_RETURN_IF_ERROR(MakeAdapted(*model));
    } else {
      if (file_.empty()) Log("text: the bundled start of WikiText-2 train; -f names another");
      BGTQ_RETURN_IF_ERROR(budget_->empty() && compression_->empty() && target_->empty()
                               ? MakePlain(*model, corpus)
                               : MakeJoint(*model, corpus, path));
    }
    if (adapt_->empty() && plan_.calibration.tokens < options_.tokens) {
      Log(fmt::format("calibrated on {} of {} tokens: the text or the model's context ends there",
                      plan_.calibration.tokens, options_.tokens));
    }
    BGTQ_RETURN_IF_ERROR(SavePlan(plan_, path, joint_budget_, adapted_by_head_));
    if (joint_budget_.has_value()) {  // what a stopped run would have gone on from
      std::error_code ignored;
      std::filesystem::remove(ProbesPath(path), ignored);
    }
    const double bytes = plan_.bytes_per_token_per_head();
    const double compression = BytesPerTokenPerHead(*model, std::nullopt, CacheKind::kHalf) / bytes;
    fmt::print(
        "{}: {} {}, {:.1f} stored bytes a token a head (K + V), {:.2f}x below fp16; {} tokens, {:.1f} s\n",
        path, plan_.recipe, BitsName(plan_.k_bits, plan_.v_bits), bytes, compression,
        plan_.calibration.tokens, plan_.calibration.seconds);
    nlohmann::json json = {{"plan", path},
                           {"recipe", plan_.recipe},
                           {"k_bits", plan_.k_bits},
                           {"v_bits", plan_.v_bits},
                           {"seed", plan_.seed},
                           {"bytes_per_token_per_head", bytes},
                           {"compression", compression},
                           {"calibration_tokens", plan_.calibration.tokens},
                           {"seconds", plan_.calibration.seconds}};
    if (joint_budget_.has_value()) {
      const PlanBudget& b = *joint_budget_;
      fmt::print(
          "{} probes on {} tokens; divergence {:.4f} nats on {} further tokens ({} sinks, {} recent)\n",
          b.probes, b.probe_tokens, b.measured_kld, b.check_tokens, b.sinks, b.recent);
      if (const std::string missed = TargetMissed(b); !missed.empty()) fmt::print("{}\n", missed);
      json["budget"] = BudgetJson(b);
    }
    if (drift_.has_value()) {
      fmt::print("drift of {} on these moments: {}\n", old_plan_, DriftText(*drift_));
      json["drift"] = DriftJson(*drift_);
    }
    return json_.Write(json);
  }

 private:
  void AddBudget(CLI::App& app, CLI::Option* k, CLI::Option* v) {
    budget_ =
        app.add_option("--budget-bytes", joint_.bytes,
                       "average stored bytes a token a head (K + V), spent where this model needs them");
    compression_ = app.add_option("--compression", wanted_compression_, "the same as a factor below fp16");
    target_ = app.add_option("--target-kld", joint_.target_kld,
                             "as few bytes as keep the mean KL divergence from the fp16 cache so low");
    for (CLI::Option* option : {budget_, compression_, target_}) {
      option->check(CLI::PositiveNumber)->excludes(k)->excludes(v);
      for (CLI::Option* other : {budget_, compression_, target_})
        if (other != option) option->excludes(other);
    }
    const auto add = [&](const char* name, auto& value, const char* what, const CLI::Validator& check) {
      of_budget_.push_back(app.add_option(name, value, what)->check(check)->capture_default_str());
    };
    add("--probe-tokens", joint_.probe_tokens, "tokens that a budget's probes run", CLI::Range(64, 1 << 16));
    add("--probe-positions", joint_.probe_positions, "of these, predictions compared",
        CLI::Range(1, 1 << 16));
    add("--check-tokens", joint_.check_tokens,
        "further tokens, spread over the text, that plans are measured on", CLI::Range(64, 1 << 16));
    add("--probe-bits", joint_.probe_bits, "width of a probe's codes",
        CLI::IsMember({1., 2., 3., 4., 5., 8.}));
    add("--sinks", joint_.protection.sinks, "first tokens kept exact where the plan is used",
        CLI::Range(0, 64));
    add("--recent", joint_.protection.recent, "last tokens kept exact there", CLI::Range(0, 1 << 20));
    of_budget_.push_back(app.add_flag("--no-buffer", no_buffer_, "the same as --sinks 0 --recent 0"));
  }

  Status RefuseBudgetSettings() const {
    for (const CLI::Option* option : of_budget_) {
      if (option->empty()) continue;
      return {ErrorCode::kInvalidArgument,
              option->get_name() + ": belongs to --budget-bytes, --compression or --target-kld; name one"};
    }
    return Status::Ok();
  }

  Status MakeAdapted(const LoadedModel& model) {
    BGTQ_RETURN_IF_ERROR(RefuseBudgetSettings());
    const auto start = std::chrono::steady_clock::now();
    BGTQ_ASSIGN_OR_RETURN(const ModelMoments moments, LoadMoments(moments_));
    BGTQ_RETURN_IF_ERROR(
        moments.model.ExpectEqual(model.fingerprint()).WithContext(moments_ + ": moments of another model"));
    Plan old;
    if (old_plan_.empty()) {
      old.recipe = options_.recipe;
      old.k_bits = options_.bits.k_bits;
      old.v_bits = options_.bits.v_bits;
      old.seed = options_.bits.seed;
      old.model = moments.model;
    } else {
      BGTQ_ASSIGN_OR_RETURN(old, LoadPlan(old_plan_));
      BGTQ_ASSIGN_OR_RETURN(adapted_by_head_, LoadPlanBitsByHead(old_plan_));
      BGTQ_ASSIGN_OR_RETURN(drift_, MeasureDrift(old, moments, adapted_by_head_));
    }
    // Without the old plan's budget: what that says was measured on the old plan.
    BGTQ_ASSIGN_OR_RETURN(plan_, AdaptPlan(old, moments, adapted_by_head_));
    plan_.calibration.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return Status::Ok();
  }

  Status MakePlain(LoadedModel& model, std::string_view corpus) {
    BGTQ_RETURN_IF_ERROR(RefuseBudgetSettings());
    Progress progress("calibrating");
    options_.progress = [&](double done) { progress.Update(done); };
    BGTQ_ASSIGN_OR_RETURN(plan_, Calibrate(model, corpus, options_));
    return Status::Ok();
  }

  Status MakeJoint(LoadedModel& model, std::string_view corpus, const std::string& path) {
    if (options_.recipe != "aligned") {
      return {ErrorCode::kInvalidArgument,
              fmt::format("recipe {}: only aligned takes a budget over all heads; name -K and -V",
                          options_.recipe)};
    }
    if (!compression_->empty()) joint_.bytes = 4.0 * model.config().head_dim / wanted_compression_;
    if (no_buffer_) joint_.protection = {0, 0};
    joint_.seed = options_.bits.seed;
    joint_.tokens = options_.tokens;
    joint_.threads = model_.backend.threads;
    InstallStopHandler();
    joint_.stop = &StopRequested();
    BGTQ_ASSIGN_OR_RETURN(const nlohmann::json settings, JointSettings(model, corpus, joint_));
    BGTQ_ASSIGN_OR_RETURN(ResultsFile results, ResultsFile::Open(ProbesPath(path), settings));
    Progress progress("probing");
    joint_.progress = [&](double done, const std::string& note) { progress.Update(done, note); };
    BGTQ_ASSIGN_OR_RETURN(JointResult made, CalibrateJointly(model, corpus, joint_, results));
    if (made.probes_found > 0)
      Log(fmt::format("{} probes were found in {}", made.probes_found, ProbesPath(path)));
    if (made.short_text) {
      Log(fmt::format(
          "the text is too short for {} + {} tokens (--tokens, --probe-tokens) and some of the {} of "
          "--check-tokens: the divergence is measured on text that statistics saw too, and promises too much",
          joint_.tokens, joint_.probe_tokens, joint_.check_tokens));
    }
    plan_ = std::move(made.plan);
    joint_budget_ = made.budget;
    return Status::Ok();
  }

  static std::string ProbesPath(const std::string& plan_path) { return plan_path + ".probes.jsonl"; }

  std::string DefaultPath(const std::string& model_path) const {
    CacheChoice choice;
    choice.recipe = options_.recipe;
    choice.k_bits = options_.bits.k_bits;
    choice.v_bits = options_.bits.v_bits;
    choice.plan_seed = options_.bits.seed;
    std::string budget;
    if (!budget_->empty()) budget = fmt::format("B{:g}", joint_.bytes);
    if (!compression_->empty()) budget = fmt::format("X{:g}", wanted_compression_);
    if (!target_->empty()) budget = fmt::format("KLD{:g}", joint_.target_kld);
    return PlanPathFor(model_path, choice, budget);
  }

  CLI::Option* adapt_ = nullptr;
  std::string moments_, old_plan_;
  std::optional<Drift> drift_;
  bool adapted_by_head_ = false;

  ModelOptions model_;
  CalibrationOptions options_;
  std::string file_, output_;
  JsonOption json_;
  Plan plan_;

  CLI::Option *budget_ = nullptr, *compression_ = nullptr, *target_ = nullptr;
  std::vector<CLI::Option*> of_budget_;
  JointOptions joint_;
  double wanted_compression_ = 0;
  bool no_buffer_ = false;
  std::optional<PlanBudget> joint_budget_;
};

}  // namespace

std::unique_ptr<Command> MakeCalibrate() { return std::make_unique<CalibrateCommand>(); }

}  // namespace blockgtq::cli
