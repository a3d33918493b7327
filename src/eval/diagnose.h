// `diagnose`: the paper's panel. What a recipe does to keys alone, layer by layer: RoPE-logit error,
// divergence of the softmax, overlap of the most attended tokens, and who wins in how many layers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/diagnose_storage.h"

namespace blockgtq {

struct DiagnoseOptions {
  std::vector<std::string> recipes = {"aligned", "paper", "uniform"};
  std::vector<double> k_bits = {2, 3, 4};
  bool equal_bytes = false;  // the other recipes at the first one's stored bytes, not at its code bits
  int64_t tokens = 2048;     // of each text, from its start; scored in chunks of kChunkTokens
  int sinks = 0;             // first tokens of each chunk that keep their exact keys
  uint64_t seed = RecipeOptions().seed;
  int threads = 0;                                                      // of the metrics; 0: one a core
  std::function<void(const std::string& stage, double done)> progress;  // done 0..1; may be empty
  const std::atomic<bool>* stop = nullptr;                              // set: ends with kCancelled

  static constexpr int64_t kChunkTokens = 256;
};

struct KeyErrors {
  double mae = 0;  // mean absolute error of unscaled RoPE logits; in a cache of latents, of the rope key's
                   // part of them
  double kl = 0;   // mean divergence of the softmax, nats
  double overlap = 0;     // mean share of the ten most attended tokens kept
  double latent_mae = 0;  // mean absolute error of the latent's part of unscaled logits; 0 without latents
  double rms = 0;         // root mean square of what mae is the mean of
};

/// One storage's figures.
struct DiagnosedStorage {
  std::string recipe, name;  // "aligned", "aligned K3"
  double k_bits = 0, k_bytes = 0;
  bool simulated = false;
  std::vector<KeyErrors> layers;
  KeyErrors mean;                                         // over layers
  std::vector<std::array<double, 8>> fingerprint;         // [layers]; empty without a plan
  std::vector<std::array<double, 8>> latent_fingerprint;  // [layers], of the latent; empty without one
  std::vector<std::vector<int>> block_widths;  // [layers * kv_heads][head_dim / 2]; empty without a plan
  /// [layers]: KeyErrors::rms as the error law predicts it from calibration (codec/logit_error.h); empty
  /// without a plan and for latents.
  std::vector<double> predicted_rms;
};

/// Layers in which one storage is strictly better than another.
struct LayerWins {
  int layers = 0, mae = 0, kl = 0, overlap = 0;
};
LayerWins CountWins(const DiagnosedStorage& winner, const DiagnosedStorage& loser);

/// Storages that are compared with each other: those of one width, or of one size in bytes.
struct DiagnosedRow {
  std::string title;             // "3 code bits", "25.00 stored bytes a key or more"
  std::vector<size_t> storages;  // into DiagnoseResult::storages, in the order of DiagnoseOptions::recipes
};

struct DiagnoseResult {
  std::string architecture;
  int layers = 0, kv_heads = 0, head_dim = 0;
  int latent_dims = 0;  // the last of head_dim that are a latent (MLA); 0: none are
  int64_t calibration_tokens = 0, scored_tokens = 0;
  std::vector<DiagnosedStorage> storages;
  std::vector<DiagnosedRow> rows;
  std::vector<HeadStatistics> statistics;  // [layers * kv_heads], of the calibration
};

/// Errors: kInvalidArgument (no or repeated recipes or widths, a text of less than a chunk, bits that a
/// recipe does not have), kNonFinite, kCancelled, those of calibration and of running the model.
Result<DiagnoseResult> Diagnose(LoadedModel& model, std::string_view calibration_text,
                                std::string_view scoring_text, const DiagnoseOptions& options);

/// Scores storages on tokens, in chunks of kChunkTokens that each are a sequence of their own: [storages].
Result<std::vector<std::vector<KeyErrors>>> ScoreStorages(LoadedModel& model, std::span<const Token> tokens,
                                                          std::span<const KeyStorage> storages,
                                                          const DiagnoseOptions& options);

}  // namespace blockgtq
