// See model_config.h.
#include "src/models/model_config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "src/formats/message.h"

namespace blockgtq {
namespace {

// Bounds that no known model reaches; they keep products of dimensions far from overflow.
constexpr int64_t kMaxLayers = 4096, kMaxHeads = 4096, kMaxHeadDim = 1024, kMaxWidth = int64_t{1} << 22;

Status Corrupt(const ModelSource& source, const std::string& what) {
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", source.name(), what));
}

/// A finite number above 0.
Result<double> Positive(const ModelKeys& keys, std::string_view key) {
  BGTQ_ASSIGN_OR_RETURN(const double value, keys.Real(key));
  if (!(value > 0) || !std::isfinite(value)) {
    return keys.Error(ErrorCode::kCorruptFile, key, fmt::format("is {}, not a number above 0", value));
  }
  return value;
}

/// Llama 3's frequency divisors from their parameters. Source: transformers,
/// modeling_rope_utils.py, _compute_llama3_parameters.
Status Llama3Divisors(const ModelKeys& keys, RopeConfig& rope) {
  BGTQ_ASSIGN_OR_RETURN(const double factor, Positive(keys, "rope.scaling.factor"));
  BGTQ_ASSIGN_OR_RETURN(const double low, Positive(keys, "rope.scaling.low_freq_factor"));
  BGTQ_ASSIGN_OR_RETURN(const double high, Positive(keys, "rope.scaling.high_freq_factor"));
  BGTQ_ASSIGN_OR_RETURN(const double trained, Positive(keys, "rope.scaling.original_context_length"));
  if (high <= low) {
    return keys.Error(ErrorCode::kCorruptFile, "rope.scaling.high_freq_factor",
                      fmt::format("is {}, not above the low one, {}", high, low));
  }
  rope.freq_divisors.clear();
  for (const double frequency : RopeFrequencies(rope)) {
    if (static_cast<int>(rope.freq_divisors.size()) == rope.rotary_dims / 2) break;
    const double turns = trained * frequency / (2 * std::numbers::pi);  // within the trained context
    double divisor = 1;
    if (turns < low) {
      divisor = factor;
    } else if (turns <= high) {
      const double smooth = (turns - low) / (high - low);
      divisor = 1 / ((1 - smooth) / factor + smooth);
    }
    rope.freq_divisors.push_back(static_cast<float>(divisor));
  }
  return Status::Ok();
}

/// Llama 3's frequency divisors as GGUF stores them.
Status TensorDivisors(const ModelSource& source, RopeConfig& rope) {
  const ModelTensor* divisors = source.Take("rope_freqs.weight");
  if (divisors == nullptr) return Status::Ok();
  const int64_t blocks = rope.rotary_dims / 2;
  if (divisors->cols != blocks || divisors->rows != 1) {
    return Corrupt(source, fmt::format("tensor rope_freqs.weight: {} x {} instead of {}", divisors->rows,
                                       divisors->cols, blocks));
  }
  rope.freq_divisors.resize(static_cast<size_t>(blocks));
  DequantizeRow(divisors->parts.front(), 0, rope.freq_divisors.data());
  for (float d : rope.freq_divisors) {
    if (!(d > 0) || !std::isfinite(d)) {
      return Corrupt(source, fmt::format("tensor rope_freqs.weight holds {}", d));
    }
  }
  return Status::Ok();
}

Status ReadRope(const ModelSource& source, ModelConfig& config) {
  const ModelKeys& keys = source.keys();
  RopeConfig& rope = config.rope;
  rope.head_dim = config.head_dim;
  rope.pairing = source.StoredPairing(config.gguf_pairing);
  BGTQ_ASSIGN_OR_RETURN(const int64_t rotary, keys.IntOr("rope.dimension_count", config.head_dim));
  if (rotary < 2 || rotary > config.head_dim || rotary % 2 != 0) {
    return keys.Error(ErrorCode::kCorruptFile, "rope.dimension_count",
                      fmt::format("is {}, not an even number in 2..{}", rotary, config.head_dim));
  }
  rope.rotary_dims = static_cast<int>(rotary);
  BGTQ_ASSIGN_OR_RETURN(rope.freq_base, keys.RealOr("rope.freq_base", 10000.0));
  if (!std::isfinite(rope.freq_base) || rope.freq_base <= 1.0) {
    return keys.Error(ErrorCode::kCorruptFile, "rope.freq_base", fmt::format("is {}", rope.freq_base));
  }
  BGTQ_RETURN_IF_ERROR(TensorDivisors(source, rope));
  // As llama.cpp reads them: an older key, and a factor without a type means linear.
  const std::string factor_key =
      keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  BGTQ_ASSIGN_OR_RETURN(const double factor, keys.RealOr(factor_key, 1.0));
  BGTQ_ASSIGN_OR_RETURN(const std::string scaling,
                        keys.TextOr("rope.scaling.type", factor == 1.0 ? "none" : "linear"));
  if (scaling == "none") return Status::Ok();
  if (scaling == "linear") {
    BGTQ_ASSIGN_OR_RETURN(rope.linear_scale, Positive(keys, factor_key));
    return Status::Ok();
  }
  if (scaling == "llama3") return Llama3Divisors(keys, rope);
  return keys.Error(ErrorCode::kUnsupported, "rope.scaling.type",
                    fmt::format("is '{}', which this build does not support (none, linear and llama3 are)",
                                Printable(scaling)));
}

/// Keys that would change the forward pass and that no family here has: refused unless they say nothing.
Status RefuseUnknownMeanings(const ModelKeys& keys) {
  static constexpr const char* kKeys[] = {"attention.scale",
                                          "attention.clamp_kqv",
                                          "attention.max_alibi_bias",
                                          "expert_count",
                                          "logit_scale",
                                          "residual_scale",
                                          "embedding_scale",
                                          "attn_logit_softcapping",
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
  BGTQ_ASSIGN_OR_RETURN(const std::string activation, keys.TextOr("feed_forward.activation", "silu"));
  if (activation == "silu") return Status::Ok();
  return keys.Error(
      ErrorCode::kUnsupported, "feed_forward.activation",
      fmt::format("is '{}', which this build does not support (silu is)", Printable(activation)));
}

Status ReadHeads(const ModelSource& source, ModelConfig& config) {
  const ModelKeys& keys = source.keys();
  for (const char* key : {"attention.head_count", "attention.head_count_kv"}) {
    if (keys.IsList(key)) {
      return keys.Error(ErrorCode::kUnsupported, key, "differs by layer, which this build does not support");
    }
  }
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
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return Status::Ok();
}

}  // namespace

Result<ModelConfig> ReadModelConfig(const ModelSource& source, RopePairing gguf_pairing) {
  const ModelKeys& keys = source.keys();
  ModelConfig config;
  config.architecture = source.architecture();
  config.gguf_pairing = gguf_pairing;
  BGTQ_RETURN_IF_ERROR(RefuseUnknownMeanings(keys));
  BGTQ_ASSIGN_OR_RETURN(const int64_t layers, keys.Dimension("block_count", kMaxLayers));
  config.layers = static_cast<int>(layers);
  BGTQ_ASSIGN_OR_RETURN(config.embedding, keys.Dimension("embedding_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(config.feed_forward, keys.Dimension("feed_forward_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(config.context_length,
                        keys.Dimension("context_length", std::numeric_limits<int32_t>::max()));
  BGTQ_RETURN_IF_ERROR(ReadHeads(source, config));
  BGTQ_ASSIGN_OR_RETURN(const int64_t window, keys.IntOr("attention.sliding_window", 0));
  if (window != 0 && window < config.context_length) {
    return keys.Error(ErrorCode::kUnsupported, "attention.sliding_window",
                      fmt::format("= {} tokens is not supported by this build", window));
  }
  BGTQ_ASSIGN_OR_RETURN(const double epsilon, keys.Real("attention.layer_norm_rms_epsilon"));
  if (!(epsilon > 0) || !(epsilon < 1)) {
    return keys.Error(ErrorCode::kCorruptFile, "attention.layer_norm_rms_epsilon",
                      fmt::format("is {}", epsilon));
  }
  config.norm_epsilon = static_cast<float>(epsilon);
  const ModelTensor* table = source.Find("token_embd.weight");
  if (table == nullptr) return Corrupt(source, "tensor token_embd.weight is missing");
  config.vocabulary = table->rows;
  BGTQ_RETURN_IF_ERROR(ReadRope(source, config));
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
