// What a needle run comes to: the mean score of each task, length and depth, as a table, JSON and a heat map.
#pragma once

#include <string>
#include <vector>

#include "src/eval/tasks/needle.h"

namespace blockgtq {

/// One cell of a task's grid; score in 0..1, of `samples` finished ones.
struct NeedleCell {
  int64_t length = 0;
  int depth = 0;  // percent
  double score = 0;
  int samples = 0;
};

struct NeedleGrid {
  std::string task;
  std::vector<NeedleCell> cells;  // by length, then depth, in the order asked for
};

/// A grid a task, in the suite's order; cells without a finished sample are left out.
std::vector<NeedleGrid> NeedleGrids(const NeedleSuite& suite, const TaskRun& run);

/// A row a task, a column a length, then the mean with its interval and the number of samples; in percent.
std::string NeedleTable(const NeedleSuite& suite, const TaskRun& run, uint64_t seed);

/// ScoreJson with "cells" in each task: {length, depth, score, samples}, in percent.
nlohmann::json NeedleJson(const NeedleSuite& suite, const TaskRun& run, uint64_t seed);

/// A heat map a task, lengths across and depths down, as an SVG document. subtitle: model and cache.
std::string NeedlePicture(const NeedleSuite& suite, const TaskRun& run, const std::string& subtitle);

}  // namespace blockgtq
