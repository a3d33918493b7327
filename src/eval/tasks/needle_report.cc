// See needle_report.h.
#include "src/eval/tasks/needle_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/eval/svg.h"

namespace blockgtq {
namespace {

constexpr double kCellWidth = 52, kCellHeight = 24, kGap = 44, kLeft = 60, kTop = 92;
constexpr size_t kPanelsARow = 4;

/// Red over yellow to blue (ColorBrewer's RdYlBu), which people with any colour vision tell apart.
std::string ScoreColour(double score) {
  static constexpr std::array<std::array<double, 3>, 5> kStops = {
      {{215, 48, 39}, {252, 141, 89}, {254, 224, 144}, {145, 191, 219}, {69, 117, 180}}};
  const double at = std::clamp(score, 0.0, 1.0) * (kStops.size() - 1);
  const size_t low = std::min(static_cast<size_t>(at), kStops.size() - 2);
  const double share = at - static_cast<double>(low);
  std::array<int, 3> rgb{};
  for (size_t c = 0; c < 3; ++c) {
    rgb[c] = static_cast<int>(std::lround(kStops[low][c] + share * (kStops[low + 1][c] - kStops[low][c])));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]);
}

std::string LengthName(int64_t length) {
  return length % 1024 == 0 ? fmt::format("{}K", length / 1024) : fmt::format("{}", length);
}

template <typename T>
size_t PlaceOf(const std::vector<T>& list, T value) {
  return static_cast<size_t>(std::find(list.begin(), list.end(), value) - list.begin());
}

void DrawGrid(SvgCanvas& canvas, const NeedleGrid& grid, const NeedleOptions& options, double left,
              double top) {
  const double width = kCellWidth * static_cast<double>(options.lengths.size());
  const double height = kCellHeight * static_cast<double>(options.depths.size());
  canvas.Text({left, top - 10}, grid.task, {.size = 13, .bold = true});
  canvas.Rect(left, top, width, height, "#eeeeee");  // what a stopped run has not reached
  for (const NeedleCell& cell : grid.cells) {
    const double x = left + kCellWidth * static_cast<double>(PlaceOf(options.lengths, cell.length));
    const double y = top + kCellHeight * static_cast<double>(PlaceOf(options.depths, cell.depth));
    canvas.Rect(x, y, kCellWidth - 1, kCellHeight - 1, ScoreColour(cell.score));
    const bool dark = cell.score < 0.2 || cell.score > 0.85;
    canvas.Text({x + kCellWidth / 2, y + kCellHeight / 2 + 4}, fmt::format("{:.0f}", 100 * cell.score),
                {.size = 11, .anchor = SvgAnchor::kMiddle, .colour = dark ? "#ffffff" : "#222222"});
  }
  for (size_t i = 0; i < options.lengths.size(); ++i) {
    canvas.Text({left + kCellWidth * (static_cast<double>(i) + 0.5), top + height + 15},
                LengthName(options.lengths[i]), {.size = 11, .anchor = SvgAnchor::kMiddle});
  }
  for (size_t i = 0; i < options.depths.size(); ++i) {
    canvas.Text({left - 6, top + kCellHeight * (static_cast<double>(i) + 0.5) + 4},
                fmt::format("{}%", options.depths[i]), {.size = 11, .anchor = SvgAnchor::kEnd});
  }
}

}  // namespace

std::vector<NeedleGrid> NeedleGrids(const NeedleSuite& suite, const TaskRun& run) {
  const NeedleOptions& options = suite.options();
  std::vector<NeedleGrid> grids;
  for (const std::string& task : options.tasks) {
    NeedleGrid& grid = grids.emplace_back(NeedleGrid{task, {}});
    for (const int64_t length : options.lengths) {
      for (const int depth : options.depths) grid.cells.push_back({length, depth, 0, 0});
    }
  }
  for (const TaskSample& sample : run.samples) {
    const NeedleSuite::Sample& of = suite.sample(sample.index);
    NeedleGrid& grid = grids[PlaceOf(options.tasks, std::string(of.task->name))];
    NeedleCell& cell = grid.cells[PlaceOf(options.lengths, of.length) * options.depths.size() +
                                  PlaceOf(options.depths, of.depth)];
    cell.score += sample.score;
    ++cell.samples;
  }
  for (NeedleGrid& grid : grids) {
    std::erase_if(grid.cells, [](const NeedleCell& cell) { return cell.samples == 0; });
    for (NeedleCell& cell : grid.cells) cell.score /= cell.samples;
  }
  return grids;
}

std::string NeedleTable(const NeedleSuite& suite, const TaskRun& run, uint64_t seed) {
  const std::vector<int64_t>& lengths = suite.options().lengths;
  // Score cells of a row: the mean of each length, and of all.
  const auto row = [&](const std::string& name, const std::vector<std::vector<double>>& groups_by_length,
                       const Estimate& all, size_t samples) {
    std::string line = fmt::format("| {} |", name);
    for (const std::vector<double>& scores : groups_by_length) {
      line += scores.empty() ? " - |" : fmt::format(" {:.1f} |", 100 * BootstrapMean(scores, seed).mean);
    }
    if (samples == 0) return line + " - | - | 0 |\n";
    return line + fmt::format(" {:.1f} | {:.1f} to {:.1f} | {} |\n", 100 * all.mean, 100 * all.low,
                              100 * all.high, samples);
  };
  std::string table = "| task |";
  for (const int64_t length : lengths) table += fmt::format(" {} |", length);
  table += " all | 95% interval | samples |\n|---|";
  for (size_t i = 0; i < lengths.size() + 3; ++i) table += "---|";
  table += "\n";

  std::vector<std::vector<double>> of_tasks, of_lengths(lengths.size());
  for (const TaskScores& task : run.ByTask(suite)) {
    std::vector<std::vector<double>> by_length(lengths.size());
    for (const TaskSample& sample : run.samples) {
      if (suite.task(sample.index) != task.task) continue;
      by_length[PlaceOf(lengths, suite.sample(sample.index).length)].push_back(sample.score);
    }
    table += row(task.task, by_length, BootstrapMean(task.scores, seed), task.scores.size());
    of_tasks.push_back(task.scores);
    for (size_t i = 0; i < lengths.size(); ++i) {  // every task counts alike
      if (!by_length[i].empty()) of_lengths[i].push_back(BootstrapMean(by_length[i], seed).mean);
    }
  }
  return table + row("average", of_lengths, BootstrapMeanOfMeans(of_tasks, seed), run.samples.size());
}

nlohmann::json NeedleJson(const NeedleSuite& suite, const TaskRun& run, uint64_t seed) {
  nlohmann::json json = ScoreJson(run.ByTask(suite), seed);
  for (const NeedleGrid& grid : NeedleGrids(suite, run)) {
    if (grid.cells.empty()) continue;
    nlohmann::json& cells = json["tasks"][grid.task]["cells"];
    cells = nlohmann::json::array();
    for (const NeedleCell& cell : grid.cells) {
      cells.push_back({{"length", cell.length},
                       {"depth", cell.depth},
                       {"score", 100 * cell.score},
                       {"samples", cell.samples}});
    }
  }
  return json;
}

std::string NeedlePicture(const NeedleSuite& suite, const TaskRun& run, const std::string& subtitle) {
  const NeedleOptions& options = suite.options();
  const std::vector<NeedleGrid> grids = NeedleGrids(suite, run);
  const double panel_width = kCellWidth * static_cast<double>(options.lengths.size()) + kGap + 10;
  const double panel_height = kCellHeight * static_cast<double>(options.depths.size()) + kGap + 18;
  const size_t columns = std::min(grids.size(), kPanelsARow);
  const size_t rows = (grids.size() + kPanelsARow - 1) / kPanelsARow;
  double all = 0;
  size_t counted = 0;
  for (const TaskScores& task : run.ByTask(suite)) {
    if (task.scores.empty()) continue;
    all += BootstrapMean(task.scores, 0).mean;
    ++counted;
  }
  const std::string title = fmt::format("Needles found, %: average {:.1f}",
                                        counted == 0 ? 0 : 100 * all / static_cast<double>(counted));
  const double width =
      std::max({kLeft + panel_width * static_cast<double>(columns), kLeft + SvgTextWidth(subtitle, 12) + 20,
                kLeft + SvgTextWidth(title, 16) + 40});
  SvgCanvas canvas(width, kTop + panel_height * static_cast<double>(rows));
  canvas.Text({kLeft - 40, 28}, title, {.size = 16, .bold = true});
  canvas.Text({kLeft - 40, 47}, subtitle, {.size = 12});
  for (size_t i = 0; i < grids.size(); ++i) {
    const size_t row = i / kPanelsARow, column = i % kPanelsARow;
    DrawGrid(canvas, grids[i], options, kLeft + panel_width * static_cast<double>(column),
             kTop + panel_height * static_cast<double>(row));
  }
  canvas.Text({kLeft, kTop + panel_height * static_cast<double>(rows) - 12},
              "across: tokens of the prompt; down: depth of the needle", {.size = 11, .colour = "#555555"});
  return canvas.Document();
}

}  // namespace blockgtq
