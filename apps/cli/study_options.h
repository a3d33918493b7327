// What the studies (calibrate-study, depth-study) share: options, the run into a results file, the report.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/cli/options.h"
#include "src/eval/tasks/results_file.h"

namespace blockgtq::cli {

struct StudyFlags {
  ModelOptions model;
  std::vector<double> k_bits = {3, 2}, v_bits = {3, 2};  // in pairs
  std::string results, plots;                            // of -o and --plot; empty: none
  JsonOption json;

  /// All but --json and the seed.
  void Add(CLI::App& app);
  /// Opens or continues the results file of -o, or one in memory. settings: those of the command; the model's
  /// are added. `samples`: in all, for the log.
  Result<ResultsFile> OpenResults(const LoadedModel& opened, nlohmann::json settings, size_t samples) const;
  /// Writes SVG files (name, content) into the folder of --plot.
  Status WritePlots(const std::vector<std::pair<std::string, std::string>>& files) const;
};

}  // namespace blockgtq::cli
