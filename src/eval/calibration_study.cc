// See calibration_study.h.
#include "src/eval/calibration_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/engine/plan_source.h"
#include "src/eval/tasks/scores.h"

namespace blockgtq {
namespace {

// No text is longer, and sums of it and a length are far from overflow.
constexpr int64_t kMaxOffset = int64_t{1} << 40;
constexpr const char* kYardstick = "fp16";  // the sample of the fp16 cache's needle score

Status Invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

template <typename T>
Status CheckList(std::vector<T> values, const char* name) {
  if (values.empty()) return Invalid(fmt::format("{}: is empty; name one value at least", name));
  std::sort(values.begin(), values.end());
  const auto twice = std::adjacent_find(values.begin(), values.end());
  if (twice == values.end()) return Status::Ok();
  return Invalid(fmt::format("{}: {} stands there twice; name each once", name, *twice));
}

std::string SampleId(const CalibrationStudyOptions& options, const CalibrationCase& c) {
  return fmt::format("{}/offset {}/{} tokens/seed {}/{}", options.texts[c.text].name, c.offset, c.length,
                     c.bits.seed, BitsName(c.bits.k_bits, c.bits.v_bits));
}

/// The tokens of a text from `offset` on, `length` of them, after what the model's texts begin with.
Result<std::vector<Token>> Stretch(const LoadedModel& model, std::span<const Token> tokens,
                                   const CalibrationText& text, int64_t offset, int64_t length) {
  std::vector<Token> stretch = model.PromptStart(nullptr);
  const int64_t wanted = length - static_cast<int64_t>(stretch.size());
  if (static_cast<int64_t>(tokens.size()) < offset + wanted) {
    return Invalid(
        fmt::format("{}: has {} tokens, offset {} with length {} needs {}; use a longer text or "
                    "smaller --offsets and --lengths",
                    text.name, tokens.size(), offset, length, offset + wanted));
  }
  stretch.insert(stretch.end(), tokens.begin() + offset, tokens.begin() + offset + wanted);
  return stretch;
}

Status CheckOptions(const LoadedModel& model, const CalibrationStudyOptions& options) {
  std::vector<std::string> names;
  for (const CalibrationText& text : options.texts) names.push_back(text.name);
  BGTQ_RETURN_IF_ERROR(CheckList(names, "--texts"));
  BGTQ_RETURN_IF_ERROR(CheckList(options.lengths, "--lengths"));
  BGTQ_RETURN_IF_ERROR(CheckList(options.offsets, "--offsets"));
  BGTQ_RETURN_IF_ERROR(CheckList(options.seeds, "--seeds"));
  const int64_t limit = model.config().context_length;
  for (const int64_t length : options.lengths) {
    if (length < kMinCalibrationTokens || length > limit) {
      return Invalid(fmt::format("--lengths: {} must lie within {}..{}, the model's context", length,
                                 kMinCalibrationTokens, limit));
    }
  }
  for (const int64_t offset : options.offsets) {
    if (offset < 0 || offset > kMaxOffset)
      return Invalid(fmt::format("--offsets: {} must lie within 0..{}", offset, kMaxOffset));
  }
  BGTQ_ASSIGN_OR_RETURN(const Recipe* recipe, FindRecipe(options.recipe));
  BGTQ_ASSIGN_OR_RETURN(const std::vector<RecipeOptions> budgets,
                        BudgetsOf(options.recipe, options.k_bits, options.v_bits, options.seeds[0]));
  if (recipe->kind == CacheKind::kSimulated && recipe->twin_of.empty() && !recipe->calibrated) {
    return Invalid(fmt::format("recipe {}: is not calibrated, no text changes it", options.recipe));
  }
  for (const RecipeOptions& bits : budgets) BGTQ_RETURN_IF_ERROR(CheckRecipeBits(model, *recipe, bits));
  return Status::Ok();
}

double NumberOf(const nlohmann::json& sample, const char* name, bool& ok) {
  const auto found = sample.find(name);
  ok = ok && found != sample.end() && found->is_number();
  return ok ? found->get<double>() : 0;
}

nlohmann::json SampleOf(const std::string& id, const CalibrationScores& s, bool needle) {
  nlohmann::json sample = {{"id", id},
                           {"ppl", s.ppl},
                           {"ppl_fp16", s.ppl_fp16},
                           {"kld_mean", s.kld},
                           {"top1", s.top1},
                           {"kld_p99", s.kld_p99},
                           {"bytes_per_token_per_head", s.bytes}};
  if (needle) sample["needle"] = s.needle;
  return sample;
}

Result<CalibrationScores> ScoresOf(const nlohmann::json& sample, bool needle) {
  bool ok = true;
  CalibrationScores s;
  s.ppl = NumberOf(sample, "ppl", ok);
  s.ppl_fp16 = NumberOf(sample, "ppl_fp16", ok);
  s.kld = NumberOf(sample, "kld_mean", ok);
  s.kld_p99 = NumberOf(sample, "kld_p99", ok);
  s.top1 = NumberOf(sample, "top1", ok);
  s.bytes = NumberOf(sample, "bytes_per_token_per_head", ok);
  if (needle) s.needle = NumberOf(sample, "needle", ok);
  if (ok) return s;
  return Status(ErrorCode::kCorruptFile,
                fmt::format("results file: sample '{}' lacks a score; remove its line to have it run again",
                            sample["id"].get<std::string>()));
}

class StudyRunner {
 public:
  StudyRunner(LoadedModel& model, std::span<const Token> scored, const CalibrationStudyOptions& options,
              ResultsFile& results)
      : model_(model), scored_(scored), options_(options), results_(results) {}

  Result<CalibrationStudy> Run() {
    CalibrationStudy study;
    BGTQ_ASSIGN_OR_RETURN(study.cases, CalibrationCases(options_));
    study.scores.resize(study.cases.size());
    BGTQ_RETURN_IF_ERROR(ReadTexts());
    BGTQ_RETURN_IF_ERROR(TakeFinished(study));
    Status status = RunMissing(study);
    study.stopped = status.code() == ErrorCode::kCancelled;
    if (!study.stopped) BGTQ_RETURN_IF_ERROR(status);
    return study;
  }

 private:
  /// Every text as tokens, long enough for all that is asked of it.
  Status ReadTexts() {
    const int64_t last = *std::max_element(options_.offsets.begin(), options_.offsets.end()),
                  longest = *std::max_element(options_.lengths.begin(), options_.lengths.end());
    for (const CalibrationText& text : options_.texts) {
      const std::string_view head =  // sixteen bytes a token is more than any text takes on average
          std::string_view(text.text).substr(0, static_cast<size_t>(last + longest) * 16);
      texts_.push_back(model_.tokenizer().Encode(head, false));
      BGTQ_RETURN_IF_ERROR(Stretch(model_, texts_.back(), text, last, longest).status());
    }
    return Status::Ok();
  }

  Status TakeFinished(CalibrationStudy& study) {
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < study.cases.size(); ++i) places[SampleId(options_, study.cases[i])] = i;
    for (const nlohmann::json& sample : results_.samples()) {
      const std::string id = sample["id"].get<std::string>();
      if (options_.needle != nullptr && id == kYardstick && !study.needle_fp16.has_value()) {
        bool ok = true;
        study.needle_fp16 = NumberOf(sample, "needle", ok);
        if (ok) continue;
        return {ErrorCode::kCorruptFile, "results file: sample 'fp16' lacks a score; remove its line"};
      }
      const auto place = places.find(id);
      if (place == places.end() || study.scores[place->second].has_value()) {
        return {ErrorCode::kCorruptFile,
                fmt::format("results file: sample '{}' {}; remove that line", id,
                            place == places.end() ? "is not one of this study" : "stands there twice")};
      }
      BGTQ_ASSIGN_OR_RETURN(study.scores[place->second], ScoresOf(sample, options_.needle != nullptr));
    }
    return Status::Ok();
  }

  Status RunMissing(CalibrationStudy& study) {
    to_do_ = static_cast<size_t>(std::count(study.scores.begin(), study.scores.end(), std::nullopt));
    if (options_.needle != nullptr && !study.needle_fp16.has_value()) {
      ++to_do_;
      BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> half,
                            MakeHalfContext(model_, options_.needle->context_tokens()));
      BGTQ_ASSIGN_OR_RETURN(study.needle_fp16, NeedleScore(*half, kYardstick));
      BGTQ_RETURN_IF_ERROR(results_.Append({{"id", kYardstick}, {"needle", *study.needle_fp16}}));
      Done(kYardstick);
    }
    std::vector<HeadCalibration> measured;
    const CalibrationCase* measured_for = nullptr;
    for (size_t i = 0; i < study.cases.size(); ++i) {
      if (study.scores[i].has_value()) continue;
      const CalibrationCase& c = study.cases[i];
      const std::string id = SampleId(options_, c);
      BGTQ_RETURN_IF_ERROR(CheckStop());
      if (measured_for == nullptr || measured_for->text != c.text || measured_for->length != c.length ||
          measured_for->offset != c.offset) {
        BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                              Stretch(model_, texts_[c.text], options_.texts[c.text], c.offset, c.length));
        BGTQ_ASSIGN_OR_RETURN(measured, Measure(model_, tokens, {}));
        measured_for = &c;
      }
      Result<TestedCache> cache = MakeTestedCache(model_, measured, options_.recipe, c.bits);
      if (!cache.ok()) return cache.status().WithContext(id);
      BGTQ_ASSIGN_OR_RETURN(study.scores[i], Score(*cache, id));
      BGTQ_RETURN_IF_ERROR(results_.Append(SampleOf(id, *study.scores[i], options_.needle != nullptr)));
      Done(id);
    }
    return Status::Ok();
  }

  Result<CalibrationScores> Score(const TestedCache& cache, const std::string& id) {
    CalibrationScores s;
    s.bytes = cache.bytes_per_token_per_head();
    {
      const int64_t window = options_.scoring.window;
      BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> test,
                            MakeTestedContext(model_, cache, options_.protection, window));
      BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> base, MakeHalfContext(model_, window));
      PerplexityOptions scoring = options_.scoring;
      scoring.stop = options_.stop;
      scoring.progress = nullptr;
      const Result<PerplexityResult> r = Perplexity(*test, base.get(), scored_, scoring);
      if (!r.ok()) return r.status();
      if (r->stopped) return Status(ErrorCode::kCancelled, "stopped");
      s.ppl = r->ppl;
      s.ppl_fp16 = r->base_ppl;
      s.kld = r->kld_mean;
      s.kld_p99 = r->kld_p99;
      s.top1 = r->top1;
    }
    if (options_.needle != nullptr) {
      BGTQ_ASSIGN_OR_RETURN(
          const std::unique_ptr<Context> context,
          MakeTestedContext(model_, cache, options_.protection, options_.needle->context_tokens()));
      BGTQ_ASSIGN_OR_RETURN(s.needle, NeedleScore(*context, id));
    }
    return s;
  }

  /// Percent: the mean over tasks.
  Result<double> NeedleScore(Context& context, const std::string& note) {
    TaskRunOptions run_options = options_.needle_run;
    run_options.stop = options_.stop;
    run_options.progress = [&](double done, const std::string&) { Report(done, note); };
    ResultsFile memory = ResultsFile::InMemory();
    BGTQ_ASSIGN_OR_RETURN(const TaskRun run, RunTasks(context, *options_.needle, memory, run_options));
    if (run.stopped) return Status(ErrorCode::kCancelled, "stopped");
    std::vector<double> means;
    for (const TaskScores& task : run.ByTask(*options_.needle)) means.push_back(MomentsOf(task.scores).mean);
    return 100 * MomentsOf(means).mean;
  }

  Status CheckStop() const {
    if (options_.stop == nullptr || !options_.stop->load()) return Status::Ok();
    return {ErrorCode::kCancelled, "stopped"};
  }
  void Report(double share, const std::string& note) const {
    if (options_.progress)
      options_.progress((static_cast<double>(done_) + share) / static_cast<double>(to_do_), note);
  }
  void Done(const std::string& note) {
    ++done_;
    Report(0, note);
  }

  LoadedModel& model_;
  std::span<const Token> scored_;
  const CalibrationStudyOptions& options_;
  ResultsFile& results_;
  std::vector<std::vector<Token>> texts_;
  size_t to_do_ = 0, done_ = 0;
};

}  // namespace

Result<std::vector<CalibrationCase>> CalibrationCases(const CalibrationStudyOptions& options) {
  std::vector<CalibrationCase> cases;
  for (size_t text = 0; text < options.texts.size(); ++text) {
    for (const int64_t offset : options.offsets) {
      for (const int64_t length : options.lengths) {
        for (const uint64_t seed : options.seeds) {
          BGTQ_ASSIGN_OR_RETURN(const std::vector<RecipeOptions> budgets,
                                BudgetsOf(options.recipe, options.k_bits, options.v_bits, seed));
          for (const RecipeOptions& bits : budgets) cases.push_back({text, length, offset, bits});
        }
      }
    }
  }
  return cases;
}

Result<CalibrationStudy> RunCalibrationStudy(LoadedModel& model, std::span<const Token> scored,
                                             const CalibrationStudyOptions& options, ResultsFile& results) {
  BGTQ_RETURN_IF_ERROR(CheckOptions(model, options));
  return StudyRunner(model, scored, options, results).Run();
}

}  // namespace blockgtq
