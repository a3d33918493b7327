// Scores of a task suite: means with bootstrap confidence intervals, their markdown table and JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace blockgtq {

/// A mean and its 95% interval, in the unit of the values.
struct Estimate {
  double mean = 0, low = 0, high = 0;
  bool operator==(const Estimate&) const = default;
};

inline constexpr int kBootstrapResamples = 2000;

/// The mean of `values` with the percentile bootstrap's 95% interval (Efron 1979): resamples of the same size
/// drawn with replacement. The same seed gives the same interval. Empty: zeros. Equal values give an interval
/// of no width, whatever their number.
Estimate BootstrapMean(std::span<const double> values, uint64_t seed);

/// The mean of the groups' means; each resample draws within every group. Empty groups do not count.
Estimate BootstrapMeanOfMeans(std::span<const std::vector<double>> groups, uint64_t seed);

/// One task's finished samples, scores in 0..1.
struct TaskScores {
  std::string task;
  std::vector<double> scores;
};

/// "| task | score | 95% | samples |" with a last row for the average over tasks, in percent. what: heads the
/// first column.
std::string ScoreTable(std::span<const TaskScores> tasks, uint64_t seed, const std::string& what = "task");

/// {"tasks": {name: {score, ci_low, ci_high, samples}}, "average", "average_ci_low", "average_ci_high"}, in
/// percent.
nlohmann::json ScoreJson(std::span<const TaskScores> tasks, uint64_t seed);

}  // namespace blockgtq
