// Tables, JSON and plots of a calibration study: see calibration_study.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/engine/plan_source.h"
#include "src/eval/calibration_study.h"
#include "src/eval/svg_chart.h"

namespace blockgtq {
namespace {

/// A factor of a study and what value a plan has of it.
struct Factor {
  const char* name;
  size_t (*values)(const CalibrationStudyOptions&);
  std::string (*value)(const CalibrationStudyOptions&, const CalibrationCase&);
};

constexpr std::array kFactors = {
    Factor{"tokens", [](const CalibrationStudyOptions& o) { return o.lengths.size(); },
           [](const CalibrationStudyOptions&, const CalibrationCase& c) { return std::to_string(c.length); }},
    Factor{"text", [](const CalibrationStudyOptions& o) { return o.texts.size(); },
           [](const CalibrationStudyOptions& o, const CalibrationCase& c) { return o.texts[c.text].name; }},
    Factor{"offset", [](const CalibrationStudyOptions& o) { return o.offsets.size(); },
           [](const CalibrationStudyOptions&, const CalibrationCase& c) { return std::to_string(c.offset); }},
    Factor{
        "seed", [](const CalibrationStudyOptions& o) { return o.seeds.size(); },
        [](const CalibrationStudyOptions&, const CalibrationCase& c) { return std::to_string(c.bits.seed); }},
};

bool SameBudget(const RecipeOptions& a, const RecipeOptions& b) {
  return a.k_bits == b.k_bits && a.v_bits == b.v_bits;
}

/// The budgets of a study, in the order in which they were named.
std::vector<RecipeOptions> BudgetsIn(const CalibrationStudy& study) {
  std::vector<RecipeOptions> budgets;
  for (const CalibrationCase& c : study.cases) {
    if (std::none_of(budgets.begin(), budgets.end(),
                     [&](const RecipeOptions& b) { return SameBudget(b, c.bits); }))
      budgets.push_back(c.bits);
  }
  return budgets;
}

/// Finished plans of a budget that `belongs` takes.
template <typename Belongs>
CalibrationGroup GroupOf(const CalibrationStudy& study, const RecipeOptions& budget, Belongs belongs) {
  std::vector<double> ppl, kld, top1, needle, bytes;
  for (size_t i = 0; i < study.cases.size(); ++i) {
    if (!study.scores[i].has_value() || !SameBudget(study.cases[i].bits, budget) || !belongs(study.cases[i]))
      continue;
    const CalibrationScores& s = *study.scores[i];
    ppl.push_back(s.ppl);
    kld.push_back(s.kld);
    top1.push_back(s.top1);
    needle.push_back(s.needle);
    bytes.push_back(s.bytes);
  }
  return {budget.k_bits,  budget.v_bits,   MomentsOf(bytes).mean, "all", "", MomentsOf(ppl),
          MomentsOf(kld), MomentsOf(top1), MomentsOf(needle)};
}

std::string Cell(const Moments& m, int digits, double scale = 1) {
  if (m.count < 2) return fmt::format("{:.{}f}", scale * m.mean, digits);
  return fmt::format("{:.{}f} +/- {:.{}f}", scale * m.mean, digits, scale * m.sd, digits);
}

/// The fp16 cache's perplexity, which every finished plan's scores name; 0 where none is finished.
double HalfPerplexity(const CalibrationStudy& study) {
  for (const auto& s : study.scores)
    if (s.has_value()) return s->ppl_fp16;
  return 0;
}

nlohmann::json Json(const Moments& m) { return {{"mean", m.mean}, {"sd", m.sd}}; }

}  // namespace

std::vector<CalibrationGroup> CalibrationGroups(const CalibrationStudyOptions& options,
                                                const CalibrationStudy& study) {
  std::vector<CalibrationGroup> groups;
  for (const RecipeOptions& budget : BudgetsIn(study)) {
    groups.push_back(GroupOf(study, budget, [](const CalibrationCase&) { return true; }));
    for (const Factor& factor : kFactors) {
      if (factor.values(options) < 2) continue;
      std::vector<std::string> seen;
      for (const CalibrationCase& c : study.cases) {
        const std::string value = factor.value(options, c);
        if (std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
        seen.push_back(value);
        CalibrationGroup group = GroupOf(study, budget, [&](const CalibrationCase& other) {
          return factor.value(options, other) == value;
        });
        group.factor = factor.name;
        group.value = value;
        groups.push_back(std::move(group));
      }
    }
  }
  std::erase_if(groups, [](const CalibrationGroup& g) { return g.ppl.count == 0; });
  return groups;
}

std::string CalibrationTables(const CalibrationStudyOptions& options, const CalibrationStudy& study) {
  std::string out = "| bits | B a token a head | calibrated on | plans | PPL | KLD | same top token |";
  std::string line = "\n|---|---|---|---|---|---|---|";
  if (options.needle != nullptr) {
    out += " needle |";
    line += "---|";
  }
  out += line + "\n";
  for (const CalibrationGroup& g : CalibrationGroups(options, study)) {
    out += fmt::format("| {} | {:.1f} | {}{}{} | {} | {} | {} | {} |", BitsName(g.k_bits, g.v_bits), g.bytes,
                       g.factor, g.value.empty() ? "" : " ", g.value, g.ppl.count, Cell(g.ppl, 3),
                       Cell(g.kld, 5), Cell(g.top1, 1, 100) + "%");
    if (options.needle != nullptr) out += fmt::format(" {} |", Cell(g.needle, 1));
    out += "\n";
  }
  out +=
      fmt::format("\nMean +/- standard deviation over plans. fp16 cache: PPL {:.3f}", HalfPerplexity(study));
  if (study.needle_fp16.has_value()) out += fmt::format(", needle {:.1f}", *study.needle_fp16);
  return out + "\n";
}

nlohmann::json CalibrationJson(const CalibrationStudyOptions& options, const CalibrationStudy& study) {
  using nlohmann::json;
  json plans = json::array(), groups = json::array();
  for (size_t i = 0; i < study.cases.size(); ++i) {
    if (!study.scores[i].has_value()) continue;
    const CalibrationCase& c = study.cases[i];
    const CalibrationScores& s = *study.scores[i];
    plans.push_back({{"text", options.texts[c.text].name},
                     {"tokens", c.length},
                     {"offset", c.offset},
                     {"seed", c.bits.seed},
                     {"k_bits", c.bits.k_bits},
                     {"v_bits", c.bits.v_bits},
                     {"bytes_per_token_per_head", s.bytes},
                     {"ppl", s.ppl},
                     {"kld_mean", s.kld},
                     {"kld_p99", s.kld_p99},
                     {"top1", s.top1}});
    if (options.needle != nullptr) plans.back()["needle"] = s.needle;
  }
  for (const CalibrationGroup& g : CalibrationGroups(options, study)) {
    groups.push_back({{"k_bits", g.k_bits},
                      {"v_bits", g.v_bits},
                      {"bytes_per_token_per_head", g.bytes},
                      {"factor", g.factor},
                      {"value", g.value},
                      {"plans", g.ppl.count},
                      {"ppl", Json(g.ppl)},
                      {"kld_mean", Json(g.kld)},
                      {"top1", Json(g.top1)}});
    if (options.needle != nullptr) groups.back()["needle"] = Json(g.needle);
  }
  json out = {{"plans", plans},
              {"groups", groups},
              {"fp16", {{"ppl", HalfPerplexity(study)}}},
              {"plans_total", study.cases.size()},
              {"stopped", study.stopped}};
  if (study.needle_fp16.has_value()) out["fp16"]["needle"] = *study.needle_fp16;
  return out;
}

std::vector<std::pair<std::string, std::string>> CalibrationPlots(const std::string& model,
                                                                  const CalibrationStudyOptions& options,
                                                                  const CalibrationStudy& study) {
  struct Plot {
    const char *file, *label;
    bool logarithmic;
    double (*value)(const CalibrationGroup&);
  };
  const std::array plots = {
      Plot{"kld-by-tokens.svg", "KL divergence to the fp16 cache (nats)", true,
           [](const CalibrationGroup& g) { return g.kld.mean; }},
      Plot{"ppl-by-tokens.svg", "perplexity", false, [](const CalibrationGroup& g) { return g.ppl.mean; }},
      Plot{"needle-by-tokens.svg", "needle score (%)", false,
           [](const CalibrationGroup& g) { return g.needle.mean; }},
  };
  std::vector<std::pair<std::string, std::string>> files;
  for (const Plot& plot : plots) {
    if (&plot == &plots[2] && options.needle == nullptr) continue;
    SvgLineChart chart;
    chart.title = fmt::format("{}: what calibration changes", options.recipe);
    chart.subtitle = model + "; mean over offsets and seeds";
    chart.x = {.label = "tokens calibrated on", .logarithmic = true};
    chart.y = {.label = plot.label, .logarithmic = plot.logarithmic};
    for (const RecipeOptions& budget : BudgetsIn(study)) {
      for (size_t text = 0; text < options.texts.size(); ++text) {
        SvgSeries series{
            .name = fmt::format("{}, {}", BitsName(budget.k_bits, budget.v_bits), options.texts[text].name)};
        std::vector<int64_t> lengths = options.lengths;
        std::sort(lengths.begin(), lengths.end());
        for (const int64_t length : lengths) {
          const CalibrationGroup group = GroupOf(
              study, budget, [&](const CalibrationCase& c) { return c.text == text && c.length == length; });
          if (group.ppl.count > 0) series.points.push_back({static_cast<double>(length), plot.value(group)});
        }
        chart.series.push_back(std::move(series));
      }
    }
    files.emplace_back(plot.file, DrawSvg(chart));
  }
  return files;
}

}  // namespace blockgtq
