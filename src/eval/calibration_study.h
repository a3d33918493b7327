// `calibrate-study`: what the choice of calibration text does to a cache. Plans are made from every
// combination of text, prefix offset, length and seed, and each is scored: perplexity, divergence from the
// fp16 cache, needles found.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/eval/moments.h"
#include "src/eval/perplexity.h"
#include "src/eval/tasks/task_runner.h"
#include "src/eval/tested_cache.h"

namespace blockgtq {

struct CalibrationText {
  std::string name;  // no two of a study are equal
  std::string text;
};

struct CalibrationStudyOptions {
  std::vector<CalibrationText> texts;
  std::vector<int64_t> lengths = {128, 256, 512, 1024, 2048};  // tokens that are measured
  std::vector<int64_t> offsets = {0, 10000, 20000};            // tokens of the text left out before them
  std::vector<uint64_t> seeds = {RecipeOptions().seed};        // of the rotations
  std::string recipe = "aligned";
  std::vector<double> k_bits = {3, 2}, v_bits = {3, 2};  // in pairs
  Protection protection{4, 64};
  PerplexityOptions scoring;                                           // its progress is not called
  const TaskSuite* needle = nullptr;                                   // null: no needle scores
  TaskRunOptions needle_run;                                           // its progress is not called
  std::function<void(double done, const std::string& note)> progress;  // done 0..1; may be empty
  const std::atomic<bool>* stop = nullptr;
};

/// One plan of a study.
struct CalibrationCase {
  size_t text = 0;  // in CalibrationStudyOptions::texts
  int64_t length = 0, offset = 0;
  RecipeOptions bits;
};

struct CalibrationScores {
  double ppl = 0, kld = 0, kld_p99 = 0, top1 = 0;
  double needle = 0;    // percent, the mean over tasks; 0 where no needles are asked for
  double bytes = 0;     // stored a token a head
  double ppl_fp16 = 0;  // of the same windows
};

struct CalibrationStudy {
  std::vector<CalibrationCase> cases;                    // in the order in which they run
  std::vector<std::optional<CalibrationScores>> scores;  // of each; nullopt where a stop came first
  std::optional<double> needle_fp16;                     // percent
  bool stopped = false;
};

/// Runs what `results` lacks. scored: the text that perplexity is taken of, as tokens.
/// Errors: kInvalidArgument (a list that is empty or names something twice, a length below 64 or past the
/// model's context, a text that ends before an offset and length, bits that the recipe has not), kCorruptFile
/// (a sample of the file that is not of this study), those of Measure, MakeTestedCache, Perplexity and
/// RunTasks.
Result<CalibrationStudy> RunCalibrationStudy(LoadedModel& model, std::span<const Token> scored,
                                             const CalibrationStudyOptions& options, ResultsFile& results);

/// Every combination, measurements that are used for several plans one after the other.
Result<std::vector<CalibrationCase>> CalibrationCases(const CalibrationStudyOptions& options);

/// Plans of one budget that agree in one factor, or all of a budget (factor "all").
struct CalibrationGroup {
  double k_bits = 0, v_bits = 0, bytes = 0;  // bytes: the mean
  std::string factor, value;                 // "tokens", "128"
  Moments ppl, kld, top1, needle;            // over the plans; top1 a share, needle percent
};
/// Factors of a single value make no group of their own.
std::vector<CalibrationGroup> CalibrationGroups(const CalibrationStudyOptions& options,
                                                const CalibrationStudy& study);

std::string CalibrationTables(const CalibrationStudyOptions& options, const CalibrationStudy& study);
/// "plans", "groups", "fp16".
nlohmann::json CalibrationJson(const CalibrationStudyOptions& options, const CalibrationStudy& study);
/// SVG files by name: KLD, perplexity and needle score against calibration tokens, a line a budget and text.
std::vector<std::pair<std::string, std::string>> CalibrationPlots(const std::string& model,
                                                                  const CalibrationStudyOptions& options,
                                                                  const CalibrationStudy& study);

}  // namespace blockgtq
