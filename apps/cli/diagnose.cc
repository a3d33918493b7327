// blockgtq diagnose: what recipes do to keys alone, layer by layer; tables, JSON and plots.
#include "src/eval/diagnose.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/eval/diagnose_report.h"

namespace blockgtq::cli {
namespace {

/// "L.H", or nullopt.
std::optional<HeadName> ParseHead(const std::string& text) {
  HeadName head;
  const char* end = text.data() + text.size();
  const auto [dot, error] = std::from_chars(text.data(), end, head.layer);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  const auto [rest, second] = std::from_chars(dot + 1, end, head.kv_head);
  if (second != std::errc() || rest != end) return std::nullopt;
  return head;
}

class DiagnoseCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "float");
    app.add_option("-f,--file", file_, "text to score (default: the bundled start of WikiText-2 test)")
        ->check(NotEmpty());
    app.add_option("--calibration", calibration_,
                   "text to calibrate on (default: the bundled start of WikiText-2 train)")
        ->check(NotEmpty());
    app.add_option("--recipes", options_.recipes, "recipes to compare; the first is set against the others")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("-K", options_.k_bits, "code bits a dimension of keys, a list")
        ->delimiter(',')
        ->capture_default_str();
    app.add_flag(
        "--equal-bytes", options_.equal_bytes,
        "the other recipes at the budgets whose stored bytes are those of the first, or the next more");
    app.add_option("--tokens", options_.tokens, "tokens of each text, from its start")
        ->check(CLI::Range(int64_t{256}, int64_t{1} << 20))
        ->capture_default_str();
    app.add_option("--sinks", options_.sinks, "first tokens of each chunk that keep their exact keys")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    app.add_option("-s,--seed", options_.seed, "seed of the random rotations")->capture_default_str();
    CLI::Option* plot = app.add_option("--plot", plot_, "write plots (SVG) into this folder")
                            ->check(NotEmpty())
                            ->type_name("FOLDER");
    app.add_option("--head", head_, "layer and KV head of the spectrum's plot (default: of largest spread)")
        ->type_name("L.H")
        ->needs(plot);
    json_.Add(app);
  }

  Status Run() override {
    std::string calibration(BundledCalibrationText()), text(BundledScoringText());
    if (!calibration_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(calibration, ReadFile(calibration_));
    }
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(text, ReadFile(file_));
    }
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    BGTQ_RETURN_IF_ERROR(CheckHead(model->config()));
    options_.threads = model_.backend.threads;
    InstallStopHandler();
    options_.stop = &StopRequested();
    std::string stage;
    std::optional<Progress> progress;
    options_.progress = [&](const std::string& now, double done) {
      if (now != stage) progress.emplace(stage = now);
      progress->Update(done);
    };
    const Result<DiagnoseResult> result = Diagnose(*model, calibration, text, options_);
    progress.reset();
    if (!result.ok()) return result.status();
    LogLengths(*result);
    fmt::print(
        "{}: {} layers, {} KV heads of {} dims; calibrated on {} tokens, scored on {} in chunks of {}; keys "
        "decoded but for {} sinks, values exact; seed {}\n\n{}",
        model->path(), result->layers, result->kv_heads, result->head_dim, result->calibration_tokens,
        result->scored_tokens, DiagnoseOptions::kChunkTokens, options_.sinks, options_.seed,
        DiagnoseTables(*result));
    BGTQ_RETURN_IF_ERROR(WritePlots(*result));
    return json_.Write(Json(*result));
  }

 private:
  Status CheckHead(const ModelConfig& config) {
    if (head_.empty()) return Status::Ok();
    chosen_ = ParseHead(head_);
    if (!chosen_.has_value() || chosen_->layer < 0 || chosen_->layer >= config.layers ||
        chosen_->kv_head < 0 || chosen_->kv_head >= config.kv_heads) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("--head {}: must be LAYER.HEAD, layers 0..{}, KV heads 0..{}", head_,
                          config.layers - 1, config.kv_heads - 1)};
    }
    return Status::Ok();
  }

  void LogLengths(const DiagnoseResult& result) const {
    const auto log = [&](const char* what, int64_t tokens) {
      if (tokens < options_.tokens)
        Log(fmt::format("{} {} of {} tokens: the text (in whole chunks) or the model's context ends there",
                        what, tokens, options_.tokens));
    };
    log("calibrated on", result.calibration_tokens);
    log("scored", result.scored_tokens);
  }

  Status WritePlots(const DiagnoseResult& result) const {
    if (plot_.empty()) return Status::Ok();
    std::error_code error;
    std::filesystem::create_directories(plot_, error);
    if (error) return {ErrorCode::kIo, fmt::format("{}: cannot make the folder: {}", plot_, error.message())};
    for (const auto& [name, svg] : DiagnosePlots(result, chosen_.value_or(HeadOfLargestSpread(result)))) {
      const std::string path = (std::filesystem::path(plot_) / name).string();
      BGTQ_RETURN_IF_ERROR(WriteFile(path, svg));
      Log("plot: " + path);
    }
    return Status::Ok();
  }

  /// Figures stand under recipe and width: mae_mean.aligned.3.
  nlohmann::json Json(const DiagnoseResult& r) const {
    using nlohmann::json;
    const auto bits = [](const DiagnosedStorage& d) { return fmt::format("{:g}", d.k_bits); };
    json layers = json::array(), out;
    for (int l = 0; l < r.layers; ++l) layers.push_back({{"layer", l}});
    for (const DiagnosedStorage& d : r.storages) {
      out["mae_mean"][d.recipe][bits(d)] = d.mean.mae;
      out["kl_mean"][d.recipe][bits(d)] = d.mean.kl;
      out["overlap_mean"][d.recipe][bits(d)] = d.mean.overlap;
      if (r.latent_dims > 0) out["latent_mae_mean"][d.recipe][bits(d)] = d.mean.latent_mae;
      out["k_bytes_per_token_per_head"][d.recipe][bits(d)] = d.k_bytes;
      out["simulated"][d.recipe] = d.simulated;
      for (size_t l = 0; l < d.layers.size(); ++l) {
        layers[l]["mae"][d.recipe][bits(d)] = d.layers[l].mae;
        layers[l]["kl"][d.recipe][bits(d)] = d.layers[l].kl;
        layers[l]["overlap"][d.recipe][bits(d)] = d.layers[l].overlap;
        layers[l]["logit_rms"][d.recipe][bits(d)] = d.layers[l].rms;
        if (!d.predicted_rms.empty())
          layers[l]["predicted_logit_rms"][d.recipe][bits(d)] = d.predicted_rms[l];
        if (r.latent_dims > 0) layers[l]["latent_mae"][d.recipe][bits(d)] = d.layers[l].latent_mae;
        if (!d.fingerprint.empty()) layers[l]["fingerprint"][d.recipe][bits(d)] = d.fingerprint[l];
        if (!d.latent_fingerprint.empty())
          layers[l]["latent_fingerprint"][d.recipe][bits(d)] = d.latent_fingerprint[l];
      }
    }
    json wins = json::array();
    for (const DiagnosedRow& row : r.rows) {
      const auto add = [&](size_t winner, size_t loser) {
        const DiagnosedStorage &w = r.storages[winner], &o = r.storages[loser];
        const LayerWins won = CountWins(w, o);
        wins.push_back({{"recipe", w.recipe},
                        {"k_bits", w.k_bits},
                        {"against", o.recipe},
                        {"against_k_bits", o.k_bits},
                        {"layers", won.layers},
                        {"mae", won.mae},
                        {"kl", won.kl},
                        {"overlap", won.overlap}});
      };
      for (size_t s : row.storages)
        if (s != row.storages[0]) add(row.storages[0], s);
      for (size_t u : row.storages) {
        if (r.storages[u].recipe != "uniform") continue;
        for (size_t s : row.storages)
          if (s != u && s != row.storages[0]) add(s, u);
      }
    }
    out["per_layer"] = std::move(layers);
    out["wins"] = std::move(wins);
    out.update({{"calibration_tokens", r.calibration_tokens},
                {"scored_tokens", r.scored_tokens},
                {"equal_bytes", options_.equal_bytes},
                {"activations", model_.activations},
                {"sinks", options_.sinks},
                {"seed", options_.seed}});
    return out;
  }

  ModelOptions model_;
  DiagnoseOptions options_;
  std::string file_, calibration_, plot_, head_;
  std::optional<HeadName> chosen_;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeDiagnose() { return std::make_unique<DiagnoseCommand>(); }

}  // namespace blockgtq::cli
