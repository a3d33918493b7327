// A loaded decoder: its dimensions, and the forward pass written against the backend interface.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/backend/backend.h"
#include "src/codec/plan.h"
#include "src/core/rope.h"
#include "src/formats/huggingface_family.h"
#include "src/formats/model_source.h"

namespace blockgtq {

/// The feed-forward layers that are mixtures of experts.
struct ExpertConfig {
  int count = 0;  // 0: none are
  int used = 0;   // a token
  int64_t feed_forward = 0;
  bool renormalise = false;
  float scale = 1;
  int shared = 0;        // experts that every token goes through, beside those chosen
  int dense_layers = 0;  // the first layers, which are not mixtures
};

/// Multi-head latent attention (DeepSeek-V2). A token's key is [rope | latent]: the rope part is rotated, the
/// latent is shared by all heads and serves as key (through W_UK, absorbed into the queries) and as value
/// (through W_UV, applied to the attention's output). ModelConfig::head_dim is their sum, kv_heads 1.
struct LatentConfig {
  int rank = 0;  // of the latent; 0: the model has ordinary keys and values
  int rope_dims = 0;
  int nope_dims = 0;       // of a query head, without its rope part
  int value_dims = 0;      // of an output head
  int64_t query_rank = 0;  // queries go through a latent of so many; 0: they do not
};

struct ModelConfig {
  std::string architecture;
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t embedding = 0, feed_forward = 0, vocabulary = 0, context_length = 0;
  float norm_epsilon = 0;
  float attention_scale = 0;  // of the logits, 1 / sqrt(head_dim) unless the model says otherwise
  RopeConfig rope;            // rope.pairing: of the stored rows
  RopePairing gguf_pairing = RopePairing::kNorm;  // of the family in GGUF files
  /// Longest sequence for which `rope` is what the model defines (core/rope_scaling.h).
  int64_t max_positions = std::numeric_limits<int64_t>::max();

  int64_t window = 0;  // tokens that a token of a windowed layer sees, itself included; 0: no windows
  std::vector<uint8_t> windowed{};          // by layer; empty: every layer, where there is a window
  std::optional<RopeConfig> window_rope{};  // of windowed layers, where it differs from `rope`

  GateFunction gate = GateFunction::kSilu;
  float embedding_scale = 1;
  ExpertConfig experts{};
  LatentConfig latent{};

  CacheGeometry cache_geometry() const { return {layers, kv_heads, head_dim, latent.rank, window, windowed}; }
  /// The window of a layer; 0: it sees all.
  int64_t window_of(int layer) const {
    return windowed.empty() || windowed[static_cast<size_t>(layer)] != 0 ? window : 0;
  }
  LayerRopes ropes() const;
};

/// Errors: kUnsupported, for work that knows one RoPE a model, when layers rotate differently. what: starts
/// the message.
Status RequireOneRope(const ModelConfig& config, std::string_view what);

/// Caches beside the one that drives a pass: in every layer they store and attend to the pass's own queries,
/// keys and values, so that what each makes of the same inputs can be compared.
struct AttentionProbe {
  std::span<CacheBinding* const> caches;  // with the sequences of the pass, at the same lengths
  /// outputs: [0] of the driving cache, [1 + i] of caches[i]; each [rows, heads * head_dim], before the
  /// output projection. A non-ok Status ends the pass.
  std::function<Status(int layer, std::span<const Activations* const> outputs)> report;
};

/// A pass through some of the layers, for work that runs the same tokens many times with a change from some
/// layer on. Layers that are left out leave nothing in the cache.
struct LayerRange {
  int first = 0;                  // > 0: the residual stream that enters it is read from `stream`
  int end = 0;                    // one past the last; 0: all that remain
  Activations* stream = nullptr;  // [rows, embedding]; where `end` is not the last, what leaves it
};

/// Tokens of one or more sequences, run together.
struct Batch {
  std::span<const int32_t> tokens;        // [rows]
  std::span<const BatchSlice> slices;     // cover the rows in order
  CacheBinding* cache = nullptr;          // of the backend that the model was loaded on
  AttentionObserver* observer = nullptr;  // may be null
  const AttentionProbe* probe = nullptr;  // may be null
  LayerRange layers{};
};

class Model {
 public:
  virtual ~Model() = default;
  const ModelConfig& config() const { return config_; }

  /// Runs the batch's layers; the cache is read and written. hidden [rows, embedding]
  /// receives the output of the final norm, unless the range ends before the last layer. The caller reserves
  /// before and commits after. Errors: those of Backend::Attention.
  virtual Status Forward(const Batch& batch, Activations& hidden) = 0;
  /// logits [rows, vocabulary] of the first `rows` rows of hidden.
  virtual void Logits(const Activations& hidden, int64_t rows, Activations& logits) = 0;

 protected:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}
  ModelConfig config_;
};

/// A line of the architecture registry (architecture.cc): how a model of this family is loaded.
struct Architecture {
  std::string_view name;  // ModelSource::architecture
  /// Checks the configuration and every tensor's shape before taking weights. `source` and `backend` must
  /// outlive the model.
  Result<std::unique_ptr<Model>> (*load)(const ModelSource& source, Backend& backend);
  /// What transformers calls it, and writes otherwise than most.
  std::span<const HuggingFaceFamily> huggingface;
};

std::span<const Architecture> Architectures();
/// Opens a model on disk: a GGUF file, a folder with config.json and safetensors, or a .safetensors file that
/// holds a whole model beside its config.json. Errors: those of OpenGgufSource and OpenSafetensorsSource.
Result<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path);
/// Errors: kUnsupported naming the model's architecture and the known ones; those of the loader.
Result<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Backend& backend);

/// What a plan for this model must carry; hashes the k-projections. Equal for a GGUF file and a safetensors
/// model whose keys' weights have equal values in F32, F16 or BF16 (fingerprint.cc).
ModelFingerprint FingerprintOf(const ModelConfig& config, const ModelSource& source);

}  // namespace blockgtq
