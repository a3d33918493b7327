// The tables of diagnose_report.h.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "src/eval/diagnose_report.h"

namespace blockgtq {
namespace {

std::string WinsText(const DiagnosedStorage& winner, const DiagnosedStorage& loser) {
  const LayerWins wins = CountWins(winner, loser);
  return fmt::format("{}, {}, {} of {}", wins.mae, wins.kl, wins.overlap, wins.layers);
}

/// The storage of the recipe `uniform` in a row, or null.
const DiagnosedStorage* UniformOf(const DiagnoseResult& result, const DiagnosedRow& row) {
  for (size_t s : row.storages)
    if (result.storages[s].recipe == "uniform") return &result.storages[s];
  return nullptr;
}

std::string MeansTable(const DiagnoseResult& result) {
  const bool latents = result.latent_dims > 0;
  std::string out = fmt::format(
      "| row | keys | stored bytes a key | {} | KL | top-10 overlap | layers won against uniform | layers "
      "that the first recipe wins against it |\n|---|---|---|---|{}---|---|---|---|\n",
      latents ? "MAE of the rope key | MAE of the latent" : "MAE", latents ? "---|" : "");
  for (const DiagnosedRow& row : result.rows) {
    const DiagnosedStorage* uniform = UniformOf(result, row);
    const DiagnosedStorage& first = result.storages[row.storages[0]];
    for (size_t s : row.storages) {
      const DiagnosedStorage& d = result.storages[s];
      out +=
          fmt::format("| {} | {}{} | {:.2f} | {:.4g} |{} {:.4g} | {:.1f}% | {} | {} |\n", row.title, d.name,
                      d.simulated ? " (simulated)" : "", d.k_bytes, d.mean.mae,
                      latents ? fmt::format(" {:.4g} |", d.mean.latent_mae) : "", d.mean.kl,
                      100 * d.mean.overlap, uniform == nullptr || uniform == &d ? "" : WinsText(d, *uniform),
                      &first == &d ? "" : WinsText(first, d));
    }
  }
  return out + "\nLayers won: by MAE, KL, overlap.\n";
}

std::string LayerTable(const DiagnoseResult& result, const DiagnosedRow& row) {
  std::string head = "| layer |", line = "|---|";
  for (const char* metric : {"MAE", "latent MAE", "KL", "overlap"}) {
    if (result.latent_dims == 0 && metric == std::string_view("latent MAE")) continue;
    for (size_t s : row.storages) {
      head += fmt::format(" {} {} |", metric, result.storages[s].name);
      line += "---|";
    }
  }
  std::string out = fmt::format("\n### {}\n{}\n{}\n", row.title, head, line);
  for (int l = 0; l < result.layers; ++l) {
    out += fmt::format("| {} |", l);
    const auto add = [&](auto&& text) {
      for (size_t s : row.storages) out += text(result.storages[s].layers[static_cast<size_t>(l)]);
    };
    add([](const KeyErrors& e) { return fmt::format(" {:.4g} |", e.mae); });
    if (result.latent_dims > 0)
      add([](const KeyErrors& e) { return fmt::format(" {:.4g} |", e.latent_mae); });
    add([](const KeyErrors& e) { return fmt::format(" {:.4g} |", e.kl); });
    add([](const KeyErrors& e) { return fmt::format(" {:.1f}% |", 100 * e.overlap); });
    out += "\n";
  }
  return out;
}

using Fingerprint = std::vector<std::array<double, 8>>;  // [layers]

/// fingerprint: which of a storage's is meant.
std::string FingerprintTable(const DiagnoseResult& result, Fingerprint DiagnosedStorage::*fingerprint,
                             const char* title) {
  std::string rows;
  for (const DiagnosedStorage& d : result.storages) {
    const Fingerprint& layers = d.*fingerprint;
    if (layers.empty()) continue;
    rows += fmt::format("| {} |", d.name);
    for (size_t w = 0; w < 8; ++w) {
      double share = 0;
      for (const auto& layer : layers) share += layer[w] / static_cast<double>(layers.size());
      rows += share == 0 ? " |" : fmt::format(" {:.1f}% |", 100 * share);
    }
    rows += "\n";
  }
  if (rows.empty()) return rows;
  return fmt::format(
      "\n### {}\n| keys | 1 bit | 2 | 3 | 4 | 5 | 6 | 7 | 8 |\n|---|---|---|---|---|---|---|---|---|\n{}",
      title, rows);
}

}  // namespace

std::string DiagnoseTables(const DiagnoseResult& result) {
  std::string out = MeansTable(result);
  for (const DiagnosedRow& row : result.rows) out += LayerTable(result, row);
  return out +
         FingerprintTable(result, &DiagnosedStorage::fingerprint,
                          result.latent_dims > 0 ? "Share of the rope key's blocks at each width"
                                                 : "Share of blocks at each width") +
         FingerprintTable(result, &DiagnosedStorage::latent_fingerprint,
                          "Share of the latent's pairs of dims at each width");
}

}  // namespace blockgtq
