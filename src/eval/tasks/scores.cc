// See scores.h.
#include "src/eval/tasks/scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/random.h"

namespace blockgtq {
namespace {

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// A uniform index below `count`.
size_t DrawIndex(Xoshiro256& generator, size_t count) {
  return static_cast<size_t>(generator.Next() % count);  // the bias of 2^64 mod count is below 1e-9
}

Estimate InPercent(const Estimate& e) { return {100 * e.mean, 100 * e.low, 100 * e.high}; }

Estimate AverageOf(std::span<const TaskScores> tasks, uint64_t seed) {
  std::vector<std::vector<double>> groups;
  groups.reserve(tasks.size());
  for (const TaskScores& task : tasks) groups.push_back(task.scores);
  return InPercent(BootstrapMeanOfMeans(groups, seed));
}

}  // namespace

Estimate BootstrapMeanOfMeans(std::span<const std::vector<double>> groups, uint64_t seed) {
  double sum = 0;
  size_t counted = 0;
  for (const std::vector<double>& group : groups) {
    if (group.empty()) continue;
    sum += Mean(group);
    ++counted;
  }
  if (counted == 0) return {};
  Xoshiro256 generator(seed);
  std::vector<double> means(kBootstrapResamples);
  for (double& mean : means) {
    double total = 0;
    for (const std::vector<double>& group : groups) {
      if (group.empty()) continue;
      double drawn = 0;
      for (size_t i = 0; i < group.size(); ++i) drawn += group[DrawIndex(generator, group.size())];
      total += drawn / static_cast<double>(group.size());
    }
    mean = total / static_cast<double>(counted);
  }
  std::sort(means.begin(), means.end());
  const auto quantile = [&](double q) {
    return means[static_cast<size_t>(std::lround(q * static_cast<double>(means.size() - 1)))];
  };
  return {sum / static_cast<double>(counted), quantile(0.025), quantile(0.975)};
}

Estimate BootstrapMean(std::span<const double> values, uint64_t seed) {
  const std::vector<double> group(values.begin(), values.end());
  return BootstrapMeanOfMeans({&group, 1}, seed);
}

std::string ScoreTable(std::span<const TaskScores> tasks, uint64_t seed, const std::string& what) {
  std::string table = fmt::format("| {} | score | 95% interval | samples |\n|---|---|---|---|\n", what);
  size_t samples = 0;
  for (const TaskScores& task : tasks) {
    const Estimate e = InPercent(BootstrapMean(task.scores, seed));
    samples += task.scores.size();
    if (task.scores.empty()) {
      table += fmt::format("| {} | - | - | 0 |\n", task.task);
    } else {
      table += fmt::format("| {} | {:.2f} | {:.2f} to {:.2f} | {} |\n", task.task, e.mean, e.low, e.high,
                           task.scores.size());
    }
  }
  const Estimate average = AverageOf(tasks, seed);
  return table + fmt::format("| average | {:.2f} | {:.2f} to {:.2f} | {} |\n", average.mean, average.low,
                             average.high, samples);
}

nlohmann::json ScoreJson(std::span<const TaskScores> tasks, uint64_t seed) {
  nlohmann::json by_task = nlohmann::json::object();
  for (const TaskScores& task : tasks) {
    if (task.scores.empty()) continue;
    const Estimate e = InPercent(BootstrapMean(task.scores, seed));
    by_task[task.task] = {
        {"score", e.mean}, {"ci_low", e.low}, {"ci_high", e.high}, {"samples", task.scores.size()}};
  }
  const Estimate average = AverageOf(tasks, seed);
  return {{"tasks", by_task},
          {"average", average.mean},
          {"average_ci_low", average.low},
          {"average_ci_high", average.high}};
}

}  // namespace blockgtq
