// The plots of diagnose_report.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/eval/diagnose_report.h"
#include "src/eval/svg_chart.h"

namespace blockgtq {
namespace {

/// A name as part of a file's: letters, digits, '-' and '.'.
std::string FileName(const std::string& name) {
  std::string out;
  for (char c : name) out += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' ? c : '-';
  return out;
}

std::string ModelText(const DiagnoseResult& r) {
  return fmt::format("{}, {} layers, {} KV heads of {} dims", r.architecture, r.layers, r.kv_heads,
                     r.head_dim);
}

std::string Fingerprint(const DiagnoseResult& result, const DiagnosedStorage& storage) {
  SvgStackedBars chart;
  chart.title = fmt::format("Key bits by layer: {}", storage.name);
  chart.subtitle = fmt::format("{}; {:.2f} stored bytes a token a head", ModelText(result), storage.k_bytes);
  chart.x_label = "layer";
  chart.y_label = "share of RoPE blocks";
  for (int width = 1; width <= 8; ++width) {
    chart.parts.push_back(fmt::format("{} bit{}", width, width == 1 ? "" : "s"));
    chart.colours.push_back(SvgWidthColour(width));
  }
  for (const auto& layer : storage.fingerprint) chart.bars.emplace_back(layer.begin(), layer.end());
  return DrawSvg(chart);
}

std::string ErrorsByLayer(const DiagnoseResult& result, const DiagnosedRow& row) {
  SvgLineChart chart;
  chart.title = "RoPE-logit error by layer";
  chart.subtitle = fmt::format("{}; {}", ModelText(result), row.title);
  chart.x = {.label = "layer", .whole_numbers = true};
  chart.y = {.label = "mean absolute logit error (unscaled)", .logarithmic = true};
  for (size_t s : row.storages) {
    const DiagnosedStorage& d = result.storages[s];
    SvgSeries series{.name = fmt::format("{} ({:.1f} B a key)", d.name, d.k_bytes)};
    for (size_t l = 0; l < d.layers.size(); ++l)
      series.points.push_back({static_cast<double>(l), d.layers[l].mae});
    chart.series.push_back(std::move(series));
  }
  return DrawSvg(chart);
}

/// Measured and predicted errors of the first recipe's storages; empty where none has a plan.
std::string PredictedErrors(const DiagnoseResult& result) {
  SvgLineChart chart;
  chart.title = "RoPE-logit error by layer: predicted from calibration, and measured";
  chart.subtitle =
      fmt::format("{}; lines: predicted for nearest rounding, points: measured", ModelText(result));
  chart.x = {.label = "layer", .whole_numbers = true};
  chart.y = {.label = "root mean square of the logit error (unscaled)", .logarithmic = true};
  for (const DiagnosedStorage& d : result.storages) {
    if (d.recipe != result.storages.front().recipe || d.predicted_rms.empty()) continue;
    SvgSeries predicted{.name = d.name + " predicted", .markers = false},
        measured{.name = d.name + " measured", .line = false};
    for (size_t l = 0; l < d.layers.size(); ++l) {
      predicted.points.push_back({static_cast<double>(l), d.predicted_rms[l]});
      measured.points.push_back({static_cast<double>(l), d.layers[l].rms});
    }
    chart.series.push_back(std::move(predicted));
    chart.series.push_back(std::move(measured));
  }
  return chart.series.empty() ? std::string() : DrawSvg(chart);
}

/// One series a recipe, a point a storage, in the order of stored bytes.
template <typename PointOf>
std::vector<SvgSeries> SeriesOfRecipes(const DiagnoseResult& result, bool line, PointOf point_of) {
  std::vector<const DiagnosedStorage*> sorted;
  for (const DiagnosedStorage& d : result.storages) sorted.push_back(&d);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return a->k_bytes < b->k_bytes; });
  std::vector<SvgSeries> all;
  for (const DiagnosedStorage& d : result.storages) {  // recipes as they were asked for
    if (std::any_of(all.begin(), all.end(), [&](const SvgSeries& s) { return s.name == d.recipe; })) continue;
    SvgSeries series{.name = d.recipe, .line = line};
    for (const DiagnosedStorage* other : sorted) {
      if (other->recipe != d.recipe) continue;
      series.points.push_back(point_of(*other));
      series.labels.push_back(fmt::format("K{:g}", other->k_bits));
    }
    all.push_back(std::move(series));
  }
  return all;
}

std::string DivergenceBySize(const DiagnoseResult& result) {
  SvgLineChart chart;
  chart.title = "Divergence of attention against the size of keys";
  chart.subtitle = ModelText(result) + "; keys decoded, values exact; mean over layers";
  chart.x = {.label = "stored bytes of a key (a token a head, norms and padding included)"};
  chart.y = {.label = "KL of the softmax (nats)", .logarithmic = true};
  chart.series = SeriesOfRecipes(result, true, [](const DiagnosedStorage& d) {
    return SvgPoint{d.k_bytes, d.mean.kl};
  });
  return DrawSvg(chart);
}

std::string OverlapByDivergence(const DiagnoseResult& result) {
  SvgLineChart chart;
  chart.title = "Most attended tokens kept against divergence";
  chart.subtitle = ModelText(result) + "; mean over layers";
  chart.x = {.label = "KL of the softmax (nats)", .logarithmic = true};
  chart.y = {.label = "overlap of the ten most attended tokens (%)"};
  chart.series = SeriesOfRecipes(result, false, [](const DiagnosedStorage& d) {
    return SvgPoint{d.mean.kl, 100 * d.mean.overlap};
  });
  return DrawSvg(chart);
}

std::string Spectrum(const DiagnoseResult& result, HeadName head) {
  constexpr double kLeft = 130, kTop = 62, kWidth = 600, kHeight = 260, kStrip = 16, kStripGap = 6;
  const size_t at = static_cast<size_t>(head.layer) * result.kv_heads + head.kv_head;
  const HeadStatistics& s = result.statistics[at];
  const int blocks = result.head_dim / 2;
  std::vector<SvgSeries> series(3);
  series[0].name = "queries: mean |q|²";
  series[1].name = "keys: mean |k|²";
  series[2].name = "keys less their mean: mean |k - μ|²";
  std::vector<double> energies;
  for (int i = 0; i < blocks; ++i) {
    const double values[3] = {s.query_energy[static_cast<size_t>(i)], s.key_energy[static_cast<size_t>(i)],
                              s.centred_key_energy[static_cast<size_t>(i)]};
    for (size_t v = 0; v < 3; ++v) {
      series[v].points.push_back({static_cast<double>(i), values[v]});
      energies.push_back(values[v]);
    }
  }
  std::vector<const DiagnosedStorage*> planned;
  for (const DiagnosedStorage& d : result.storages)
    if (!d.block_widths.empty()) planned.push_back(&d);
  const double strips_top = kTop + kHeight + 56;
  const double strips = static_cast<double>(planned.size()) * (kStrip + kStripGap);
  const double legend_top = strips_top + strips + 6;
  const double legend = DrawSvgLegend(nullptr, {kLeft, legend_top}, kWidth, series);
  SvgCanvas canvas(kLeft + kWidth + 30, legend_top + legend + 32);
  canvas.Text({kLeft, 26}, fmt::format("Block energies of layer {}, KV head {}", head.layer, head.kv_head),
              {.size = 16, .bold = true});
  canvas.Text({kLeft, 46}, ModelText(result) + "; widths of each block below",
              {.size = 12, .colour = "#555555"});
  const SvgPlotArea area(kLeft, kTop, kWidth, kHeight,
                         {.label = "RoPE block (fast to slow)",
                          .smallest = -0.5,
                          .largest = blocks - 0.5,
                          .whole_numbers = true},
                         SvgRangeFor({.label = "energy of a block", .logarithmic = true}, energies));
  area.DrawFrame(canvas);
  for (size_t v = 0; v < series.size(); ++v) {
    std::vector<SvgPoint> shown;
    for (const SvgPoint& p : series[v].points)
      if (area.Shows(p)) shown.push_back({area.X(p.x), area.Y(p.y)});
    canvas.Polyline(shown, {.colour = SvgSeriesColour(v), .width = 1.6});
    for (const SvgPoint& p : shown) canvas.Marker(v, p, 6, SvgSeriesColour(v));
  }
  std::array<bool, 9> used{};
  for (size_t p = 0; p < planned.size(); ++p) {
    const double y = strips_top + static_cast<double>(p) * (kStrip + kStripGap);
    canvas.Text({kLeft - 8, y + 12}, planned[p]->name, {.size = 12, .anchor = SvgAnchor::kEnd});
    for (int i = 0; i < blocks; ++i) {
      const int width = std::clamp(planned[p]->block_widths[at][static_cast<size_t>(i)], 0, 8);
      used[static_cast<size_t>(width)] = true;
      canvas.Rect(area.X(i - 0.5), y, kWidth / blocks - 0.6, kStrip, SvgWidthColour(width));
    }
  }
  DrawSvgLegend(&canvas, {kLeft, legend_top}, kWidth, series);
  double x = kLeft;
  for (int width = 1; width <= 8; ++width) {
    if (!used[static_cast<size_t>(width)]) continue;
    canvas.Rect(x, legend_top + legend + 4, 14, 14, SvgWidthColour(width));
    canvas.Text({x + 19, legend_top + legend + 15}, fmt::format("{} bit{}", width, width == 1 ? "" : "s"));
    x += 74;
  }
  return canvas.Document();
}

}  // namespace

HeadName HeadOfLargestSpread(const DiagnoseResult& result) {
  double largest = -1;
  HeadName head;
  for (size_t i = 0; i < result.statistics.size(); ++i) {
    const HeadStatistics& s = result.statistics[i];
    const double blocks = static_cast<double>(s.query_energy.size());
    double sum = 0, logs = 0;
    for (size_t b = 0; b < s.query_energy.size(); ++b) {
      const double score = (s.query_energy[b] + s.key_energy[b]) / 2;
      sum += score / blocks;
      logs += std::log(std::max(score, 1e-30)) / blocks;
    }
    const double spread = sum > 0 ? std::log(sum) - logs : 0;
    if (spread > largest) {
      largest = spread;
      head = {static_cast<int>(i) / result.kv_heads, static_cast<int>(i) % result.kv_heads};
    }
  }
  return head;
}

std::vector<std::pair<std::string, std::string>> DiagnosePlots(const DiagnoseResult& result, HeadName head) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const DiagnosedStorage& d : result.storages)
    if (!d.fingerprint.empty())
      files.emplace_back(fmt::format("fingerprint-{}.svg", FileName(d.name)), Fingerprint(result, d));
  for (const DiagnosedRow& row : result.rows)
    files.emplace_back(fmt::format("mae-{}.svg", FileName(result.storages[row.storages[0]].name)),
                       ErrorsByLayer(result, row));
  files.emplace_back("kl.svg", DivergenceBySize(result));
  if (std::string drawn = PredictedErrors(result); !drawn.empty())
    files.emplace_back("predicted.svg", std::move(drawn));
  files.emplace_back("overlap.svg", OverlapByDivergence(result));
  files.emplace_back(fmt::format("spectrum-{}.{}.svg", head.layer, head.kv_head), Spectrum(result, head));
  return files;
}

}  // namespace blockgtq
