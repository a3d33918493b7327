// blockgtq depth-study: how far caches move a model at increasing depth; tables, JSON and plots.
#include "src/eval/depth_study.h"

#include <fmt/format.h>

#include <filesystem>

#include "apps/cli/command.h"
#include "apps/cli/study_options.h"
#include "apps/cli/task_options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"

namespace blockgtq::cli {
namespace {

class DepthStudyCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    flags_.Add(app);
    app.add_option("-f,--file", file_, "text to score (default: the bundled start of WikiText-2 test)")
        ->check(NotEmpty());
    app.add_option("--recipes", recipes_,
                   "recipes to judge, with commas (default: aligned, where no plan is named)")
        ->delimiter(',');
    app.add_option("--plan", plans_, "plan files to judge too, with commas")
        ->delimiter(',')
        ->check(NotEmpty());
    app.add_option("--protection", protections_,
                   "what stays exact, with commas: none, sinks (the first 4), window (4 and the last 64), or "
                   "SINKS+RECENT")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--depths", options_.depths, "positions, ascending, with commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 28))
        ->capture_default_str();
    app.add_option("--span", options_.span, "positions scored before each depth")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_option("--texts", options_.texts, "stretches of the text, each as long as the largest depth")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    app.add_flag("--attention,!--no-attention", options_.attention,
                 "errors of attention's outputs too (the default)");
    app.add_option(
           "--memory-tokens", memory_tokens_,
           "coded tokens that fill the memory of recipes that narrow codes (pmkvq; default: it is full from "
           "the start)")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
    app.add_option("-s,--seed", seed_, "seed of the rotations of plans that are made")->capture_default_str();
    flags_.json.Add(app);
  }

  Status Run() override {
    if (recipes_.empty() && plans_.empty()) recipes_ = {"aligned"};
    std::string text(BundledScoringText());
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(text, ReadFile(file_));
    }
    for (const std::string& plan : plans_) NoteInput(plan);
    std::vector<Protection> protections;
    for (const std::string& name : protections_) {
      BGTQ_ASSIGN_OR_RETURN(protections.emplace_back(), ParseProtection(name));
    }
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, flags_.model.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::vector<TestedCache> tested, MakeCaches(*model));
    std::vector<StudiedCache> caches;
    for (const TestedCache& cache : tested)
      for (const Protection& protection : protections) caches.push_back({&cache, protection});

    const Tokenizer& tokenizer = model->tokenizer();
    if (tokenizer.add_bos()) options_.bos = tokenizer.bos();
    options_.threads = flags_.model.backend.threads;
    const nlohmann::json settings = Settings(tested, text);
    BGTQ_ASSIGN_OR_RETURN(
        ResultsFile results,
        flags_.OpenResults(*model, settings, caches.size() * static_cast<size_t>(options_.texts)));
    InstallStopHandler();
    options_.stop = &StopRequested();
    Progress progress("scoring");
    options_.progress = [&](double done, const std::string& note) { progress.Update(done, note); };
    BGTQ_ASSIGN_OR_RETURN(const DepthStudy study,
                          RunDepthStudy(*model, caches, tokenizer.Encode(text, false), options_, results));
    if (study.samples == 0) return {ErrorCode::kCancelled, "stopped before the first cache was done"};
    if (study.stopped) {
      Log(fmt::format("stopped after {} of {} samples{}", study.samples, study.samples_total,
                      flags_.results.empty() ? "" : "; run the same command to continue"));
    }
    const std::string name = std::filesystem::path(model->path()).filename().string();
    fmt::print(
        "{}: {} text{} of {} tokens, the {} positions before each depth; strict, against the fp16 "
        "cache\n\n{}",
        name, options_.texts, options_.texts == 1 ? "" : "s", options_.depths.back(), options_.span,
        DepthTables(caches, options_, study));
    BGTQ_RETURN_IF_ERROR(flags_.WritePlots(DepthPlots(name, caches, study)));
    nlohmann::json json = DepthJson(caches, study);
    json.update(settings);
    json["activations"] = flags_.model.activations;
    json["device"] = model->backend().name();
    return flags_.json.Write(json);
  }

 private:
  Result<std::vector<TestedCache>> MakeCaches(LoadedModel& model) const {
    std::vector<TestedCache> caches;
    for (const std::string& path : plans_) {
      BGTQ_ASSIGN_OR_RETURN(TestedCache cache, TestedCacheFromPlan(model, path));
      caches.push_back(std::move(cache));
    }
    std::vector<std::pair<std::string, RecipeOptions>> wanted;
    bool narrows = false;
    for (const std::string& recipe : recipes_) {
      BGTQ_ASSIGN_OR_RETURN(const std::vector<RecipeOptions> budgets,
                            BudgetsOf(recipe, flags_.k_bits, flags_.v_bits, seed_));
      BGTQ_ASSIGN_OR_RETURN(const Recipe* found, FindRecipe(recipe));
      narrows = narrows || found->narrows;
      for (RecipeOptions bits : budgets) {
        if (found->narrows) bits.memory_tokens = memory_tokens_;
        BGTQ_RETURN_IF_ERROR(CheckRecipeBits(model, *found, bits));
        wanted.emplace_back(recipe, bits);
      }
    }
    if (memory_tokens_ > 0 && !narrows) {
      return Status(ErrorCode::kInvalidArgument,
                    "--memory-tokens: none of --recipes narrows its codes as memory fills; pmkvq does");
    }
    if (wanted.empty()) return caches;
    BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                          CalibrationTokens(model, BundledCalibrationText(), CalibrationOptions().tokens));
    Progress progress("calibrating");
    BGTQ_ASSIGN_OR_RETURN(const std::vector<HeadCalibration> measured,
                          Measure(model, tokens, [&](double done) { progress.Update(done); }));
    for (const auto& [recipe, bits] : wanted) {
      BGTQ_ASSIGN_OR_RETURN(TestedCache cache, MakeTestedCache(model, measured, recipe, bits));
      caches.push_back(std::move(cache));
    }
    return caches;
  }

  nlohmann::json Settings(const std::vector<TestedCache>& tested, const std::string& text) const {
    nlohmann::json caches = nlohmann::json::array();
    for (const TestedCache& cache : tested) {
      caches.push_back({{"cache", cache.Name()}, {"seed", cache.seed}});
      if (cache.plan.has_value()) caches.back()["plan"] = cache.plan->Hash();
    }
    return {{"command", "depth-study"},        {"caches", caches},       {"protections", protections_},
            {"depths", options_.depths},       {"span", options_.span},  {"texts", options_.texts},
            {"attention", options_.attention}, {"text", TextHash(text)}, {"mode", "strict"}};
  }

  StudyFlags flags_;
  DepthStudyOptions options_;
  std::vector<std::string> recipes_, plans_, protections_ = {"none", "sinks", "window"};
  std::string file_;
  uint64_t seed_ = RecipeOptions().seed;
  int64_t memory_tokens_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeDepthStudy() { return std::make_unique<DepthStudyCommand>(); }

}  // namespace blockgtq::cli
