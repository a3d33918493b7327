// Figures of a depth study from its finished samples, and their tables, JSON and plots: see depth_study.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/eval/depth_study.h"
#include "src/eval/moments.h"
#include "src/eval/svg_chart.h"

namespace blockgtq {
namespace {

/// `count` finite numbers under `name`, or a Status.
Result<std::vector<double>> Numbers(const nlohmann::json& band, const char* name, size_t count) {
  std::vector<double> values;
  if (band.is_object() && band.contains(name) && band[name].is_array()) {
    for (const nlohmann::json& value : band[name])
      if (value.is_number()) values.push_back(value.get<double>());
  }
  if (values.size() == count) return values;
  return Status(ErrorCode::kCorruptFile, fmt::format("results file: a sample has no {} of {} positions or "
                                                     "layers; remove its line to have it run again",
                                                     name, count));
}

/// A figure as tables and plots show it.
struct Figure {
  const char *name, *file, *axis;
  bool logarithmic;
  double (*value)(const DepthFigures&);
  std::string (*cell)(const DepthFigures&);
};

constexpr std::array kFigures = {
    Figure{"mean KL divergence to the fp16 cache (nats), with its standard error", "kld",
           "KL divergence (nats)", true, [](const DepthFigures& f) { return f.kld; },
           [](const DepthFigures& f) { return fmt::format("{:.5f} +/- {:.5f}", f.kld, f.kld_se); }},
    Figure{"same top token", "top1", "same top token (%)", false,
           [](const DepthFigures& f) { return 100 * f.top1; },
           [](const DepthFigures& f) { return fmt::format("{:.1f}%", 100 * f.top1); }},
    Figure{"relative error of attention's outputs, mean over layers", "attention",
           "relative error of attention's outputs", true,
           [](const DepthFigures& f) { return f.attention_mean(); },
           [](const DepthFigures& f) { return fmt::format("{:.4f}", f.attention_mean()); }},
};

/// Whether a finished cache has the figure: attention's may be left out.
bool Has(const Figure& figure, const DepthStudy& study) {
  if (figure.file != std::string("attention")) return true;
  for (const auto& depths : study.caches)
    if (!depths.empty()) return !depths[0].attention.empty();
  return false;
}

/// A chart as high as its legend makes it.
std::string Draw(SvgLineChart chart) {
  constexpr double kPlotHeight = 360, kLegendWidth = 620;
  chart.height = kPlotHeight + DrawSvgLegend(nullptr, {}, kLegendWidth, chart.series);
  return DrawSvg(chart);
}

std::string Label(const StudiedCache& cache) {
  return fmt::format("{} ({:.1f} B)", cache.Name(), cache.cache->bytes_per_token_per_head());
}

}  // namespace

double DepthFigures::attention_mean() const { return MomentsOf(attention).mean; }

Result<DepthFigures> DepthFiguresOf(std::span<const nlohmann::json* const> samples, size_t band,
                                    const DepthStudyOptions& options, size_t layers) {
  DepthFigures f;
  f.depth = options.depths[band];
  const size_t span = static_cast<size_t>(options.span);
  std::vector<double> kld, top1, overlap;
  for (const nlohmann::json* sample : samples) {
    const nlohmann::json bands = sample->value("bands", nlohmann::json());
    const nlohmann::json of = bands.is_array() && band < bands.size() ? bands[band] : nlohmann::json();
    for (const auto& [name, to] : {std::pair{"kld", &kld}, {"top1", &top1}, {"overlap", &overlap}}) {
      BGTQ_ASSIGN_OR_RETURN(const std::vector<double> values, Numbers(of, name, span));
      to->insert(to->end(), values.begin(), values.end());
    }
    if (!options.attention) continue;
    BGTQ_ASSIGN_OR_RETURN(const std::vector<double> errors, Numbers(of, "attention", layers));
    f.attention.resize(layers, 0);
    for (size_t l = 0; l < layers; ++l) f.attention[l] += errors[l] / static_cast<double>(samples.size());
  }
  const Moments of_kld = MomentsOf(kld);
  f.positions = static_cast<int64_t>(kld.size());
  f.kld = of_kld.mean;
  f.kld_se = of_kld.sd / std::sqrt(static_cast<double>(kld.size()));
  std::sort(kld.begin(), kld.end());
  f.kld_median = (kld[(kld.size() - 1) / 2] + kld[kld.size() / 2]) / 2;
  f.top1 = MomentsOf(top1).mean;
  f.top10_overlap = MomentsOf(overlap).mean;
  return f;
}

std::string DepthTables(std::span<const StudiedCache> caches, const DepthStudyOptions& options,
                        const DepthStudy& study) {
  std::string out;
  for (const Figure& figure : kFigures) {
    if (!Has(figure, study)) continue;
    out += fmt::format("{}### {}\n| cache | B a token a head |", out.empty() ? "" : "\n", figure.name);
    std::string line = "\n|---|---|";
    for (const int64_t depth : options.depths) {
      out += fmt::format(" {} |", depth);
      line += "---|";
    }
    out += line + "\n";
    for (size_t c = 0; c < caches.size(); ++c) {
      if (study.caches[c].empty()) continue;
      out += fmt::format("| {}{} | {:.1f} |", caches[c].Name(),
                         caches[c].cache->simulated != nullptr ? " (simulated)" : "",
                         caches[c].cache->bytes_per_token_per_head());
      for (const DepthFigures& f : study.caches[c]) out += fmt::format(" {} |", figure.cell(f));
      out += "\n";
    }
  }
  return out;
}

nlohmann::json DepthJson(std::span<const StudiedCache> caches, const DepthStudy& study) {
  nlohmann::json rows = nlohmann::json::array();
  for (size_t c = 0; c < caches.size(); ++c) {
    const TestedCache& cache = *caches[c].cache;
    for (const DepthFigures& f : study.caches[c]) {
      nlohmann::json row = {{"cache", cache.Name()},
                            {"recipe", cache.recipe},
                            {"k_bits", cache.k_bits},
                            {"v_bits", cache.v_bits},
                            {"seed", cache.seed},
                            {"sinks", caches[c].protection.sinks},
                            {"recent", caches[c].protection.recent},
                            {"protection", caches[c].protection.Name()},
                            {"simulated", cache.simulated != nullptr},
                            {"bytes_per_token_per_head", cache.bytes_per_token_per_head()},
                            {"depth", f.depth},
                            {"positions", f.positions},
                            {"kld_mean", f.kld},
                            {"kld_se", f.kld_se},
                            {"kld_median", f.kld_median},
                            {"top1", f.top1},
                            {"top10_overlap", f.top10_overlap}};
      if (cache.memory_tokens > 0) {
        const int64_t coded = std::max<int64_t>(f.depth - caches[c].protection.recent, 0);
        row["bytes_at_depth"] = cache.simulated->bytes_per_token_per_head(coded);
      }
      if (!f.attention.empty()) {
        row["attention_error"] = f.attention_mean();
        row["attention_error_per_layer"] = f.attention;
      }
      rows.push_back(std::move(row));
    }
  }
  return {{"rows", rows},
          {"samples", study.samples},
          {"samples_total", study.samples_total},
          {"stopped", study.stopped}};
}

std::vector<std::pair<std::string, std::string>> DepthPlots(const std::string& model,
                                                            std::span<const StudiedCache> caches,
                                                            const DepthStudy& study) {
  std::vector<std::pair<std::string, std::string>> files;
  for (const Figure& figure : kFigures) {
    if (!Has(figure, study)) continue;
    SvgLineChart chart;
    chart.title = figure.axis + std::string(" by depth");
    chart.subtitle = model + "; strict, against the fp16 cache";
    chart.x = {.label = "position (tokens)", .logarithmic = true};
    chart.y = {.label = figure.axis, .logarithmic = figure.logarithmic};
    for (size_t c = 0; c < caches.size(); ++c) {
      if (study.caches[c].empty()) continue;
      SvgSeries series{.name = Label(caches[c])};
      for (const DepthFigures& f : study.caches[c])
        series.points.push_back({static_cast<double>(f.depth), figure.value(f)});
      chart.series.push_back(std::move(series));
    }
    files.emplace_back(fmt::format("{}-by-depth.svg", figure.file), Draw(std::move(chart)));
  }
  if (!Has(kFigures[2], study)) return files;
  SvgLineChart chart;
  for (size_t c = 0; c < caches.size(); ++c) {
    if (study.caches[c].empty()) continue;
    const DepthFigures& deepest = study.caches[c].back();
    chart.title = fmt::format("Error of attention's outputs by layer, at position {}", deepest.depth);
    SvgSeries series{.name = Label(caches[c])};
    for (size_t l = 0; l < deepest.attention.size(); ++l)
      series.points.push_back({static_cast<double>(l), deepest.attention[l]});
    chart.series.push_back(std::move(series));
  }
  chart.subtitle = model + "; on the fp16 run's queries, keys and values";
  chart.x = {.label = "layer", .whole_numbers = true};
  chart.y = {.label = kFigures[2].axis, .logarithmic = true};
  files.emplace_back("attention-by-layer.svg", Draw(std::move(chart)));
  return files;
}

}  // namespace blockgtq
