// See model_config.h.
#include "src/models/model_config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "src/formats/message.h"
#include "src/models/rope_config.h"

namespace blockgtq {
namespace {

// Bounds that no known model reaches; they keep products of dimensions far from overflow.
constexpr int64_t kMaxLayers = 4096, kMaxHeads = 4096, kMaxHeadDim = 1024, kMaxWidth = int64_t{1} << 22,
                  kMaxExperts = 4096;

Status Corrupt(const ModelSource& source, const std::string& what) {
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", source.name(), what));
}

/// The value of `key`, which must be above 0 and keep its value as a float.
Result<float> PositiveFloat(const ModelKeys& keys, std::string_view key, double value) {
  if (value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max())
    return static_cast<float>(value);
  return keys.Error(ErrorCode::kCorruptFile, key,
                    fmt::format("is {}, not a positive number that 32 bits hold", value));
}

/// Keys that would change the forward pass and that no family here has: refused unless they say nothing.
Status RefuseUnknownMeanings(const ModelKeys& keys) {
  static constexpr const char* kKeys[] = {
      "attention.clamp_kqv",    "attention.max_alibi_bias", "logit_scale",
      "residual_scale",         "embedding_scale",          "attn_logit_softcapping",
      "final_logit_softcapping"};
  for (const char* key : kKeys) {
    BGTQ_ASSIGN_OR_RETURN(const double value, keys.RealOr(key, 0.0));
    if (value == 0.0) continue;
    return keys.Error(ErrorCode::kUnsupported, key,
                      fmt::format("= {} is not supported by this build", value));
  }
  BGTQ_ASSIGN_OR_RETURN(const bool causal, keys.FlagOr("attention.causal", true));
  if (!causal) {
    return keys.Error(ErrorCode::kUnsupported, "attention.causal", "= false is not supported by this build");
  }
  return Status::Ok();
}

Status ReadGate(const ModelKeys& keys, GateFunction fallback, ModelConfig& config) {
  config.gate = fallback;
  if (!keys.Has("feed_forward.activation")) return Status::Ok();
  BGTQ_ASSIGN_OR_RETURN(const std::string name, keys.Text("feed_forward.activation"));
  const bool is_gelu = name == "gelu_pytorch_tanh" || name == "gelu_new";  // two names of the tanh form
  if (!is_gelu && name != "silu") {
    return keys.Error(
        ErrorCode::kUnsupported, "feed_forward.activation",
        fmt::format("is '{}', which this build does not support (silu and gelu_pytorch_tanh are)",
                    Printable(name)));
  }
  config.gate = is_gelu ? GateFunction::kGeluTanh : GateFunction::kSilu;
  return Status::Ok();
}

Status ReadWindows(const ModelKeys& keys, int pattern, ModelConfig& config) {
  BGTQ_ASSIGN_OR_RETURN(config.window, keys.IntOr("attention.sliding_window", 0));
  if (config.window < 0) {
    return keys.Error(ErrorCode::kCorruptFile, "attention.sliding_window",
                      fmt::format("is {}, not a number of tokens", config.window));
  }
  // No sequence outgrows a window as long as the context.
  if (config.window >= config.context_length) config.window = 0;
  if (config.window == 0) return Status::Ok();
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const auto layers = static_cast<size_t>(config.layers);
  if (keys.IsList(kPattern)) {
    BGTQ_ASSIGN_OR_RETURN(const std::vector<int64_t> windowed, keys.Ints(kPattern));
    if (windowed.size() != layers) {
      return keys.Error(ErrorCode::kCorruptFile, kPattern,
                        fmt::format("is of {} layers, not {}", windowed.size(), layers));
    }
    for (int64_t w : windowed) config.windowed.push_back(w != 0 ? 1 : 0);
    return Status::Ok();
  }
  BGTQ_ASSIGN_OR_RETURN(const int64_t every, keys.IntOr(kPattern, pattern));
  if (every < 1)
    return keys.Error(ErrorCode::kCorruptFile, kPattern, fmt::format("is {}, not a number above 0", every));
  if (every == 1) return Status::Ok();
  for (size_t l = 0; l < layers; ++l)
    config.windowed.push_back(static_cast<int64_t>(l + 1) % every != 0 ? 1 : 0);
  return Status::Ok();
}

Status ReadExperts(const ModelSource& source, const ConfigDefaults& defaults, ModelConfig& config) {
  const ModelKeys& keys = source.keys();
  BGTQ_ASSIGN_OR_RETURN(const int64_t count, keys.IntOr("expert_count", 0));
  if (count == 0 && !defaults.experts) return Status::Ok();
  if (!defaults.experts) {
    return keys.Error(
        ErrorCode::kUnsupported, "expert_count",
        fmt::format("is {}, but a {} has no experts in this build", count, source.architecture()));
  }
  BGTQ_ASSIGN_OR_RETURN(const int64_t checked, keys.Dimension("expert_count", kMaxExperts));
  BGTQ_ASSIGN_OR_RETURN(const int64_t used, keys.Dimension("expert_used_count", checked));
  ExpertConfig& experts = config.experts;
  experts.count = static_cast<int>(checked);
  experts.used = static_cast<int>(used);
  BGTQ_ASSIGN_OR_RETURN(experts.feed_forward, keys.Dimension("expert_feed_forward_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(experts.renormalise,
                        keys.FlagOr("expert_weights_norm", source.gguf() != nullptr && defaults.renormalise));
  BGTQ_ASSIGN_OR_RETURN(const double scale, keys.RealOr("expert_weights_scale", 1.0));
  BGTQ_ASSIGN_OR_RETURN(experts.scale, PositiveFloat(keys, "expert_weights_scale", scale));
  if (defaults.shared_experts) {
    const auto count_of = [&](const char* key, int64_t limit, int* out) -> Status {
      BGTQ_ASSIGN_OR_RETURN(const int64_t value, keys.IntOr(key, 0));
      if (value < 0 || value > limit)
        return keys.Error(ErrorCode::kCorruptFile, key, fmt::format("is {}, not in 0..{}", value, limit));
      *out = static_cast<int>(value);
      return Status::Ok();
    };
    BGTQ_RETURN_IF_ERROR(count_of("expert_shared_count", kMaxExperts, &experts.shared));
    BGTQ_RETURN_IF_ERROR(count_of("leading_dense_block_count", config.layers, &experts.dense_layers));
    for (const char* key : {"expert_group_count", "expert_group_used_count"}) {
      BGTQ_ASSIGN_OR_RETURN(const int64_t groups, keys.IntOr(key, 1));
      if (groups > 1)
        return keys.Error(ErrorCode::kUnsupported, key,
                          fmt::format("= {}: routers that choose groups of experts are not supported by this "
                                      "build",
                                      groups));
    }
  }
  constexpr int64_t kSoftmax = 1;
  BGTQ_ASSIGN_OR_RETURN(const int64_t gating, keys.IntOr("expert_gating_func", kSoftmax));
  if (gating == kSoftmax) return Status::Ok();
  return keys.Error(ErrorCode::kUnsupported, "expert_gating_func",
                    fmt::format("is {}: routers other than softmax are not supported by this build", gating));
}

/// Heads of multi-head latent attention. GGUF files have either the dims of a head (as transformers) or,
/// newer, those of the cached key, and a head's under names that end in _mla.
Status ReadLatentHeads(const ModelSource& source, ModelConfig& config) {
  const ModelKeys& keys = source.keys();
  const bool of_cache = keys.Has("attention.key_length_mla");
  const char* key_length = of_cache ? "attention.key_length_mla" : "attention.key_length";
  const char* value_length = of_cache ? "attention.value_length_mla" : "attention.value_length";
  BGTQ_ASSIGN_OR_RETURN(const int64_t heads, keys.Dimension("attention.head_count", kMaxHeads));
  BGTQ_ASSIGN_OR_RETURN(const int64_t rank, keys.Dimension("attention.kv_lora_rank", kMaxHeadDim));
  BGTQ_ASSIGN_OR_RETURN(const int64_t rope, keys.Dimension("rope.dimension_count", kMaxHeadDim));
  BGTQ_ASSIGN_OR_RETURN(const int64_t key, keys.Dimension(key_length, kMaxHeadDim));
  BGTQ_ASSIGN_OR_RETURN(const int64_t value, keys.Dimension(value_length, kMaxHeadDim));
  BGTQ_ASSIGN_OR_RETURN(config.latent.query_rank, keys.IntOr("attention.q_lora_rank", 0));
  if (config.latent.query_rank < 0 || config.latent.query_rank > kMaxWidth) {
    return keys.Error(ErrorCode::kCorruptFile, "attention.q_lora_rank",
                      fmt::format("is {}", config.latent.query_rank));
  }
  if (key <= rope) {
    return keys.Error(ErrorCode::kCorruptFile, key_length,
                      fmt::format("is {}, of which {} rotate: none are left", key, rope));
  }
  const int64_t kv_heads = of_cache ? 1 : heads, cached = rank + rope;
  struct Implied {
    const char* key;
    int64_t value;
  };
  for (const Implied& implied : {Implied{"attention.head_count_kv", kv_heads},
                                 {"attention.key_length", of_cache ? cached : key},
                                 {"attention.value_length", of_cache ? rank : value}}) {
    BGTQ_ASSIGN_OR_RETURN(const int64_t found, keys.IntOr(implied.key, implied.value));
    if (found == implied.value) continue;
    return keys.Error(ErrorCode::kCorruptFile, implied.key,
                      fmt::format("is {} where the latent's dimensions imply {}", found, implied.value));
  }
  if (rank % kUnitDims != 0 || rope % kUnitDims != 0 || cached > kMaxHeadDim) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: a latent of {} and a rope key of {} dims: this build's kernels need multiples "
                    "of {}, at most {} together",
                    source.name(), rank, rope, kUnitDims, kMaxHeadDim));
  }
  config.heads = static_cast<int>(heads);
  config.kv_heads = 1;
  config.head_dim = static_cast<int>(cached);
  config.latent.rank = static_cast<int>(rank);
  config.latent.rope_dims = static_cast<int>(rope);
  config.latent.nope_dims = static_cast<int>(key - rope);
  config.latent.value_dims = static_cast<int>(value);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(key)));
  return Status::Ok();
}

Status ReadHeads(const ModelSource& source, bool latent, ModelConfig& config) {
  const ModelKeys& keys = source.keys();
  for (const char* key : {"attention.head_count", "attention.head_count_kv"}) {
    if (keys.IsList(key)) {
      return keys.Error(ErrorCode::kUnsupported, key, "differs by layer, which this build does not support");
    }
  }
  if (latent) return ReadLatentHeads(source, config);
  BGTQ_ASSIGN_OR_RETURN(const int64_t heads, keys.Dimension("attention.head_count", kMaxHeads));
  BGTQ_ASSIGN_OR_RETURN(const int64_t kv_heads, keys.IntOr("attention.head_count_kv", heads));
  if (kv_heads < 1 || kv_heads > heads || heads % kv_heads != 0) {
    return keys.Error(ErrorCode::kCorruptFile, "attention.head_count_kv",
                      fmt::format("is {}, which does not divide {} heads", kv_heads, heads));
  }
  BGTQ_ASSIGN_OR_RETURN(const int64_t head_dim, keys.IntOr("attention.key_length", config.embedding / heads));
  BGTQ_ASSIGN_OR_RETURN(const int64_t value_dim, keys.IntOr("attention.value_length", head_dim));
  if (head_dim < 2 || head_dim > kMaxHeadDim) {
    return keys.Error(ErrorCode::kCorruptFile, "attention.key_length",
                      fmt::format("is {}, not in 2..{}", head_dim, kMaxHeadDim));
  }
  if (value_dim != head_dim) {
    return keys.Error(
        ErrorCode::kUnsupported, "attention.value_length",
        fmt::format("{} differs from the keys' {}, which this build does not support", value_dim, head_dim));
  }
  if (head_dim % kUnitDims != 0) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: head dimension {} is not a multiple of {}, which this build's kernels need",
                    source.name(), head_dim, kUnitDims));
  }
  config.heads = static_cast<int>(heads);
  config.kv_heads = static_cast<int>(kv_heads);
  config.head_dim = static_cast<int>(head_dim);
  BGTQ_ASSIGN_OR_RETURN(const double scale, keys.RealOr("attention.scale", 0.0));  // 0: as without the key
  const double usual = 1.0 / std::sqrt(static_cast<double>(head_dim));
  BGTQ_ASSIGN_OR_RETURN(config.attention_scale,
                        PositiveFloat(keys, "attention.scale", scale != 0 ? scale : usual));
  return Status::Ok();
}

}  // namespace

LayerRopes ModelConfig::ropes() const {
  if (!window_rope.has_value()) return {{rope}};
  LayerRopes all{{rope, *window_rope}};
  for (int l = 0; l < layers; ++l) all.of_layer.push_back(window_of(l) > 0 ? 1 : 0);
  return all;
}

Status RequireOneRope(const ModelConfig& config, std::string_view what) {
  if (!config.window_rope.has_value()) return Status::Ok();
  return Status(
      ErrorCode::kUnsupported,
      fmt::format("{}: the layers of a {} with a sliding window rotate at another base, which this is "
                  "not made for",
                  what, config.architecture));
}

Result<ModelConfig> ReadModelConfig(const ModelSource& source, const ConfigDefaults& defaults) {
  const ModelKeys& keys = source.keys();
  ModelConfig config;
  config.architecture = source.architecture();
  config.gguf_pairing = defaults.pairing;
  BGTQ_RETURN_IF_ERROR(RefuseUnknownMeanings(keys));
  BGTQ_ASSIGN_OR_RETURN(const int64_t layers, keys.Dimension("block_count", kMaxLayers));
  config.layers = static_cast<int>(layers);
  BGTQ_ASSIGN_OR_RETURN(config.embedding, keys.Dimension("embedding_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(config.feed_forward, keys.Dimension("feed_forward_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(config.context_length,
                        keys.Dimension("context_length", std::numeric_limits<int32_t>::max()));
  BGTQ_RETURN_IF_ERROR(ReadHeads(source, defaults.latent, config));
  BGTQ_RETURN_IF_ERROR(ReadGate(keys, defaults.gate, config));
  BGTQ_RETURN_IF_ERROR(ReadWindows(keys, defaults.window_pattern, config));
  BGTQ_RETURN_IF_ERROR(ReadExperts(source, defaults, config));
  BGTQ_ASSIGN_OR_RETURN(const double epsilon, keys.Real("attention.layer_norm_rms_epsilon"));
  if (epsilon >= 1) {
    return keys.Error(ErrorCode::kCorruptFile, "attention.layer_norm_rms_epsilon",
                      fmt::format("is {}, not a small number", epsilon));
  }
  BGTQ_ASSIGN_OR_RETURN(config.norm_epsilon,
                        PositiveFloat(keys, "attention.layer_norm_rms_epsilon", epsilon));
  const ModelTensor* table = source.Find("token_embd.weight");
  if (table == nullptr)
    return Corrupt(source, fmt::format("tensor {} is missing", source.Spell("token_embd.weight")));
  config.vocabulary = table->rows;
  // GGUF's, where there is one, may count tokens that a conversion has added or left out.
  if (source.gguf() == nullptr && keys.Has("vocab_size")) {
    BGTQ_ASSIGN_OR_RETURN(const int64_t vocabulary, keys.Int("vocab_size"));
    if (vocabulary != config.vocabulary) {
      return keys.Error(ErrorCode::kCorruptFile, "vocab_size",
                        fmt::format("is {}; the embedding table has {} rows", vocabulary, config.vocabulary));
    }
  }
  BGTQ_RETURN_IF_ERROR(ReadRope(source, defaults.window_base, config));
  return config;
}

Status CheckAllKeysRead(const ModelSource& source) {
  // The vocabulary's size is the embedding table's; what RoPE was trained on matters to some scalings only,
  // which read it; the window's layers only with a window.
  static constexpr std::array<std::string_view, 5> kHarmless = {
      "vocab_size", "rope.scaling.finetuned", "rope.scaling.original_context_length",
      "attention.sliding_window_pattern", "tensor_data_layout"};
  return source.keys().CheckAllRead(kHarmless);
}

}  // namespace blockgtq
