// blockgtq calibrate-study: what the length, text, offset and seed of a calibration change; table, JSON,
// plots.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/cli/command.h"
#include "apps/cli/study_options.h"
#include "apps/cli/task_options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/eval/calibration_study.h"
#include "src/eval/tasks/needle.h"

namespace blockgtq::cli {
namespace {

class CalibrateStudyCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    flags_.Add(app);
    options_.scoring.strict = true;  // otherwise a window attends to itself in fp16 and no plan matters
    options_.scoring.chunks = 4;
    needle_.lengths = {1024};
    needle_.depths = {0, 50, 100};
    needle_.trials = 1;
    app.add_option("--texts", texts_,
                   "texts to calibrate on, with commas (default: the bundled start of WikiText-2 train)")
        ->delimiter(',')
        ->check(NotEmpty());
    app.add_option("--lengths", options_.lengths, "tokens to calibrate on, with commas")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--offsets", options_.offsets, "tokens of a text left out before them, with commas")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--seeds", options_.seeds, "seeds of the rotations, with commas")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--recipe", options_.recipe, "cache recipe")->capture_default_str();
    app.add_option("--protection", protection_,
                   "what stays exact: none, sinks (the first 4), window (4 and the last 64), or SINKS+RECENT")
        ->capture_default_str();
    app.add_option("-f,--file", file_, "text to score (default: the bundled start of WikiText-2 test)")
        ->check(NotEmpty());
    app.add_option("-c,--context", options_.scoring.window, "tokens a window of the scored text")
        ->check(CLI::Range(4, 1 << 30))
        ->capture_default_str();
    app.add_option("--chunks", options_.scoring.chunks, "windows scored")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    app.add_flag("--needle,!--no-needle", with_needle_, "score needles too (the default)");
    app.add_option("--needle-tasks", needle_.tasks, "which, with commas (default: all)")->delimiter(',');
    app.add_option("--needle-lengths", needle_.lengths, "tokens of the needle prompts, with commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 28))
        ->capture_default_str();
    app.add_option("--needle-depths", needle_.depths, "where needles are, percent, with commas")
        ->delimiter(',')
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    app.add_option("--trials", needle_.trials, "needle samples a task, length and depth")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    app.add_flag("--chat,!--no-chat", needle_.chat,
                 "needle prompts in the model's chat template (the default)");
    flags_.json.Add(app);
  }

  Status Run() override {
    std::string scored(BundledScoringText());
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(scored, ReadFile(file_));
    }
    BGTQ_RETURN_IF_ERROR(ReadTexts());
    BGTQ_ASSIGN_OR_RETURN(options_.protection, ParseProtection(protection_));
    options_.k_bits = flags_.k_bits;
    options_.v_bits = flags_.v_bits;
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, flags_.model.Open());
    std::unique_ptr<NeedleSuite> suite;
    if (with_needle_) {
      BGTQ_ASSIGN_OR_RETURN(suite, NeedleSuite::Create(*model, BundledHaystackText(), needle_));
      options_.needle = suite.get();
      options_.needle_run.sampler.temperature = 0;
      options_.needle_run.strict = true;
    }
    const Tokenizer& tokenizer = model->tokenizer();
    if (tokenizer.add_bos()) options_.scoring.bos = tokenizer.bos();
    options_.scoring.threads = flags_.model.backend.threads;
    InstallStopHandler();
    options_.stop = &StopRequested();
    Progress progress("plans");
    options_.progress = [&](double done, const std::string& note) { progress.Update(done, note); };
    BGTQ_ASSIGN_OR_RETURN(const std::vector<CalibrationCase> cases, CalibrationCases(options_));
    const nlohmann::json settings = Settings(suite.get(), scored);
    BGTQ_ASSIGN_OR_RETURN(ResultsFile results,
                          flags_.OpenResults(*model, settings, cases.size() + (with_needle_ ? 1 : 0)));
    BGTQ_ASSIGN_OR_RETURN(const CalibrationStudy study,
                          RunCalibrationStudy(*model, tokenizer.Encode(scored, false), options_, results));
    return Report(*model, study, settings);
  }

 private:
  Status ReadTexts() {
    if (texts_.empty()) options_.texts = {{"wikitext2_train", std::string(BundledCalibrationText())}};
    for (const std::string& path : texts_) {
      BGTQ_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
      options_.texts.push_back({std::filesystem::path(path).stem().string(), std::move(text)});
    }
    return Status::Ok();
  }

  nlohmann::json Settings(const NeedleSuite* suite, const std::string& scored) const {
    nlohmann::json texts = nlohmann::json::array();
    for (const CalibrationText& text : options_.texts)
      texts.push_back({{"name", text.name}, {"hash", TextHash(text.text)}});
    nlohmann::json settings = {{"command", "calibrate-study"},
                               {"texts", texts},
                               {"lengths", options_.lengths},
                               {"offsets", options_.offsets},
                               {"seeds", options_.seeds},
                               {"recipe", options_.recipe},
                               {"k_bits_list", options_.k_bits},
                               {"v_bits_list", options_.v_bits},
                               {"sinks", options_.protection.sinks},
                               {"recent", options_.protection.recent},
                               {"mode", "strict"},
                               {"scored", TextHash(scored)},
                               {"window", options_.scoring.window},
                               {"windows", options_.scoring.chunks}};
    if (suite != nullptr) {
      settings["needle"] = {{"tasks", suite->options().tasks},
                            {"lengths", needle_.lengths},
                            {"depths", needle_.depths},
                            {"trials", needle_.trials},
                            {"haystack", TextHash(BundledHaystackText())},
                            {"chat", needle_.chat}};
    }
    return settings;
  }

  Status Report(const LoadedModel& model, const CalibrationStudy& study,
                const nlohmann::json& settings) const {
    const size_t done = study.scores.size() - static_cast<size_t>(std::count(
                                                  study.scores.begin(), study.scores.end(), std::nullopt));
    if (done == 0) return {ErrorCode::kCancelled, "stopped before the first plan was done"};
    if (study.stopped) {
      Log(fmt::format("stopped after {} of {} plans{}", done, study.cases.size(),
                      flags_.results.empty() ? "" : "; run the same command to continue"));
    }
    const std::string name = std::filesystem::path(model.path()).filename().string();
    fmt::print("{}: {}, {}, strict; {} windows of {}\n\n{}", name, options_.recipe,
               options_.protection.Name(), options_.scoring.chunks, options_.scoring.window,
               CalibrationTables(options_, study));
    BGTQ_RETURN_IF_ERROR(flags_.WritePlots(CalibrationPlots(name, options_, study)));
    nlohmann::json json = CalibrationJson(options_, study);
    json.update(settings);
    json["activations"] = flags_.model.activations;
    json["device"] = model.backend().name();
    return flags_.json.Write(json);
  }

  StudyFlags flags_;
  CalibrationStudyOptions options_;
  NeedleOptions needle_;
  std::vector<std::string> texts_;
  std::string file_, protection_ = "window";
  bool with_needle_ = true;
};

}  // namespace

std::unique_ptr<Command> MakeCalibrateStudy() { return std::make_unique<CalibrateStudyCommand>(); }

}  // namespace blockgtq::cli
