// See diagnose.h.
#include "src/eval/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "src/engine/calibration.h"

namespace blockgtq {
namespace {

Status Invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }

Status Cancelled() { return {ErrorCode::kCancelled, "stopped; nothing was written"}; }

bool Stopped(const DiagnoseOptions& options) { return options.stop != nullptr && options.stop->load(); }

/// The first tokens of a text, with the token that the model's texts begin with.
std::vector<Token> FirstTokens(const LoadedModel& model, std::string_view text, int64_t count) {
  // Sixteen bytes a token is more than any text of these vocabularies takes on average.
  std::vector<Token> tokens =
      model.tokenizer().Encode(text.substr(0, static_cast<size_t>(count) * 16), false);
  const std::vector<Token> start = model.PromptStart(nullptr);
  tokens.insert(tokens.begin(), start.begin(), start.end());
  if (static_cast<int64_t>(tokens.size()) > count) tokens.resize(static_cast<size_t>(count));
  return tokens;
}

Status CheckOptions(const ModelConfig& config, const DiagnoseOptions& options) {
  if (options.recipes.empty()) return Invalid("diagnose: no recipe; name one with --recipes");
  if (options.k_bits.empty()) return Invalid("diagnose: no width; name one with -K");
  for (size_t i = 0; i < options.recipes.size(); ++i) {
    BGTQ_RETURN_IF_ERROR(CheckDiagnosable(options.recipes[i]));
    if (std::count(options.recipes.begin(), options.recipes.end(), options.recipes[i]) > 1)
      return Invalid(fmt::format("--recipes: {} stands there twice", options.recipes[i]));
  }
  if (options.sinks < 0 || options.sinks > DiagnoseOptions::kChunkTokens)
    return Invalid(
        fmt::format("--sinks: {} must lie within 0..{}", options.sinks, DiagnoseOptions::kChunkTokens));
  for (double bits : options.k_bits) {
    if (!(bits >= 1 && bits <= 8)) return Invalid(fmt::format("-K: {} must lie within 1..8", bits));
    if (std::count(options.k_bits.begin(), options.k_bits.end(), bits) > 1)
      return Invalid(fmt::format("-K: {} stands there twice", bits));
  }
  for (const std::string& recipe : options.recipes) {
    const double fixed = FixedKeyBits(recipe);
    for (double bits : fixed > 0 ? std::vector<double>{fixed} : options.k_bits) {
      if (fixed > 0 || !options.equal_bytes ||
          recipe == options.recipes[0])  // else its budgets are found later
        BGTQ_RETURN_IF_ERROR(CheckKeyBits(config, recipe, bits));
    }
  }
  return Status::Ok();
}

/// Storages and how they are grouped, while they are being made.
struct Panel {
  std::vector<KeyStorage> storages;
  std::vector<DiagnosedRow> rows;

  /// Index of the storage; a new one unless it is there already.
  size_t Add(KeyStorage storage) {
    for (size_t i = 0; i < storages.size(); ++i)
      if (storages[i].recipe == storage.recipe && storages[i].k_bits == storage.k_bits) return i;
    storages.push_back(std::move(storage));
    return storages.size() - 1;
  }
};

Result<Panel> PanelOfWidths(const StorageSource& source, const DiagnoseOptions& options) {
  Panel panel;
  std::vector<double> widths = options.k_bits;
  for (const std::string& recipe : options.recipes) {  // a format of one width is in the row of that width
    const double fixed = FixedKeyBits(recipe);
    if (fixed > 0 && std::find(widths.begin(), widths.end(), fixed) == widths.end()) widths.push_back(fixed);
  }
  for (double bits : widths) {
    const bool asked = std::find(options.k_bits.begin(), options.k_bits.end(), bits) != options.k_bits.end();
    DiagnosedRow row{fmt::format("{:g} code bits", bits), {}};
    for (const std::string& recipe : options.recipes) {
      const double fixed = FixedKeyBits(recipe);
      if (fixed > 0 ? fixed != bits : !asked) continue;
      BGTQ_ASSIGN_OR_RETURN(KeyStorage storage, MakeKeyStorage(source, recipe, bits));
      row.storages.push_back(panel.Add(std::move(storage)));
    }
    if (!row.storages.empty()) panel.rows.push_back(std::move(row));
  }
  return panel;
}

Result<Panel> PanelOfBytes(const StorageSource& source, const DiagnoseOptions& options) {
  const std::string& first = options.recipes[0];
  const double fixed = FixedKeyBits(first);
  Panel panel;
  for (double bits : fixed > 0 ? std::vector<double>{fixed} : options.k_bits) {
    BGTQ_ASSIGN_OR_RETURN(KeyStorage storage, MakeKeyStorage(source, first, bits));
    const double bytes = storage.k_bytes;
    DiagnosedRow row{fmt::format("{:.2f} stored bytes a key or more", bytes), {}};
    row.storages.push_back(panel.Add(std::move(storage)));
    for (size_t r = 1; r < options.recipes.size(); ++r) {
      BGTQ_ASSIGN_OR_RETURN(KeyStorage other, MakeKeyStorageOfBytes(source, options.recipes[r], bytes));
      row.storages.push_back(panel.Add(std::move(other)));
    }
    panel.rows.push_back(std::move(row));
  }
  return panel;
}

KeyErrors MeanOf(const std::vector<KeyErrors>& layers) {
  KeyErrors mean;
  const double count = static_cast<double>(layers.size());
  for (const KeyErrors& e : layers) {
    mean.mae += e.mae / count;
    mean.kl += e.kl / count;
    mean.overlap += e.overlap / count;
    mean.latent_mae += e.latent_mae / count;
    mean.rms += e.rms / count;
  }
  return mean;
}

DiagnosedStorage Figures(const KeyStorage& storage, std::vector<KeyErrors> layers) {
  DiagnosedStorage out;
  out.recipe = storage.recipe;
  out.name = storage.Name();
  out.k_bits = storage.k_bits;
  out.k_bytes = storage.k_bytes;
  out.simulated = storage.simulated;
  out.mean = MeanOf(layers);
  out.layers = std::move(layers);
  out.block_widths = storage.block_widths;
  if (storage.block_widths.empty()) return out;
  for (int l = 0; l < storage.heads.layers; ++l) {
    out.fingerprint.push_back(storage.Fingerprint(l));
    if (storage.latent_dims > 0) {
      out.latent_fingerprint.push_back(storage.LatentFingerprint(l));
      continue;
    }
    const auto first = storage.predicted_square.begin() + std::ptrdiff_t{l} * storage.heads.kv_heads;
    const double sum = std::accumulate(first, first + storage.heads.kv_heads, 0.0);
    out.predicted_rms.push_back(std::sqrt(sum / storage.heads.kv_heads));
  }
  return out;
}

}  // namespace

LayerWins CountWins(const DiagnosedStorage& winner, const DiagnosedStorage& loser) {
  LayerWins wins;
  for (size_t l = 0; l < winner.layers.size() && l < loser.layers.size(); ++l) {
    ++wins.layers;
    wins.mae += winner.layers[l].mae < loser.layers[l].mae ? 1 : 0;
    wins.kl += winner.layers[l].kl < loser.layers[l].kl ? 1 : 0;
    wins.overlap += winner.layers[l].overlap > loser.layers[l].overlap ? 1 : 0;
  }
  return wins;
}

Result<DiagnoseResult> Diagnose(LoadedModel& model, std::string_view calibration_text,
                                std::string_view scoring_text, const DiagnoseOptions& options) {
  BGTQ_RETURN_IF_ERROR(CheckOptions(model.config(), options));
  const ModelConfig& config = model.config();
  BGTQ_RETURN_IF_ERROR(RequireOneRope(config, model.path()));
  const std::vector<Token> calibration = FirstTokens(
      model, calibration_text, std::min({options.tokens, config.context_length, config.max_positions}));
  std::vector<Token> scored = FirstTokens(model, scoring_text, options.tokens);
  for (const auto& [tokens, name] :
       {std::pair{&calibration, "calibration"}, std::pair{&std::as_const(scored), "scored"}}) {
    if (static_cast<int64_t>(tokens->size()) < DiagnoseOptions::kChunkTokens)
      return Invalid(fmt::format("diagnose: the {} text has {} tokens, at least {} are needed", name,
                                 tokens->size(), DiagnoseOptions::kChunkTokens));
  }
  scored.resize(scored.size() / DiagnoseOptions::kChunkTokens * DiagnoseOptions::kChunkTokens);
  const auto report = [&](const char* stage, double done) {
    if (options.progress) options.progress(stage, done);
  };
  BGTQ_ASSIGN_OR_RETURN(const std::vector<HeadCalibration> measured,
                        Measure(model, calibration, [&](double done) { report("calibrating", done); }));
  if (Stopped(options)) return Cancelled();

  auto rope = std::make_shared<RopeTable>(config.rope);
  rope->Reserve(DiagnoseOptions::kChunkTokens);
  const StorageSource source{&model, measured, std::move(rope), options.seed};
  BGTQ_ASSIGN_OR_RETURN(const Panel panel,
                        options.equal_bytes ? PanelOfBytes(source, options) : PanelOfWidths(source, options));
  BGTQ_ASSIGN_OR_RETURN(std::vector<std::vector<KeyErrors>> errors,
                        ScoreStorages(model, scored, panel.storages, options));
  DiagnoseResult result;
  result.architecture = config.architecture;
  result.layers = config.layers;
  result.kv_heads = config.kv_heads;
  result.head_dim = config.head_dim;
  result.latent_dims = config.latent.rank;
  result.calibration_tokens = static_cast<int64_t>(calibration.size());
  result.scored_tokens = static_cast<int64_t>(scored.size());
  result.rows = panel.rows;
  for (size_t s = 0; s < errors.size(); ++s)
    result.storages.push_back(Figures(panel.storages[s], std::move(errors[s])));
  for (const HeadCalibration& head : measured) result.statistics.push_back(head.statistics);
  return result;
}

}  // namespace blockgtq
