// See gguf_config.h.
#include "src/models/gguf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "src/formats/message.h"

namespace blockgtq {
namespace {

// Bounds that no known model reaches; they keep products of dimensions far from overflow.
constexpr int64_t kMaxLayers = 4096, kMaxHeads = 4096, kMaxHeadDim = 1024, kMaxWidth = int64_t{1} << 22;

Status Corrupt(const GgufFile& file, const std::string& what) {
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", file.name(), what));
}

/// An integer key in [1, limit].
Result<int64_t> Dimension(const GgufFile& file, const std::string& key, int64_t limit) {
  BGTQ_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
  if (value < 1 || value > limit)
    return Corrupt(file, fmt::format("{} is {}, not in 1..{}", key, value, limit));
  return value;
}

Status ReadRope(const GgufFile& file, const std::string& arch, RopePairing pairing, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.head_dim = config.head_dim;
  rope.pairing = pairing;
  BGTQ_ASSIGN_OR_RETURN(const int64_t rotary, file.GetIntOr(arch + ".rope.dimension_count", config.head_dim));
  if (rotary < 2 || rotary > config.head_dim || rotary % 2 != 0) {
    return Corrupt(file, fmt::format("{}.rope.dimension_count is {}, not an even number in 2..{}", arch,
                                     rotary, config.head_dim));
  }
  rope.rotary_dims = static_cast<int>(rotary);
  BGTQ_ASSIGN_OR_RETURN(rope.freq_base, file.GetFloatOr(arch + ".rope.freq_base", 10000.0));
  if (!std::isfinite(rope.freq_base) || rope.freq_base <= 1.0) {
    return Corrupt(file, fmt::format("{}.rope.freq_base is {}", arch, rope.freq_base));
  }
  // As llama.cpp reads them: an older key, and a factor without a type means linear.
  const bool has_factor = file.FindValue(arch + ".rope.scaling.factor") != nullptr;
  const std::string factor_key = arch + (has_factor ? ".rope.scaling.factor" : ".rope.scale_linear");
  BGTQ_ASSIGN_OR_RETURN(const double factor, file.GetFloatOr(factor_key, 1.0));
  BGTQ_ASSIGN_OR_RETURN(const std::string_view scaling,
                        file.GetStringOr(arch + ".rope.scaling.type", factor == 1.0 ? "none" : "linear"));
  if (scaling == "linear") {
    if (!(factor > 0) || !std::isfinite(factor)) {
      return Corrupt(file, fmt::format("{} is {}", factor_key, factor));
    }
    rope.linear_scale = factor;
  } else if (scaling != "none") {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: RoPE scaling '{}' is not supported by this build (none, linear and Llama 3's "
                    "rope_freqs are)",
                    file.name(), Printable(scaling)));
  }
  if (const GgufTensor* divisors = file.FindTensor("rope_freqs.weight")) {
    if (divisors->view.cols != rotary / 2 || divisors->view.rows != 1) {
      return Corrupt(file, fmt::format("tensor rope_freqs.weight: {} x {} instead of {}", divisors->view.rows,
                                       divisors->view.cols, rotary / 2));
    }
    rope.freq_divisors.resize(static_cast<size_t>(rotary / 2));
    DequantizeRow(divisors->view, 0, rope.freq_divisors.data());
    for (float d : rope.freq_divisors) {
      if (!(d > 0) || !std::isfinite(d))
        return Corrupt(file, fmt::format("tensor rope_freqs.weight holds {}", d));
    }
  }
  return Status::Ok();
}

}  // namespace

namespace {

/// Keys that would change the forward pass and that no family here has: refused unless they say nothing.
Status RefuseUnknownMeanings(const GgufFile& file, const std::string& arch) {
  static constexpr const char* kKeys[] = {".attention.scale",
                                          ".attention.clamp_kqv",
                                          ".attention.max_alibi_bias",
                                          ".expert_count",
                                          ".logit_scale",
                                          ".residual_scale",
                                          ".embedding_scale",
                                          ".attn_logit_softcapping",
                                          ".final_logit_softcapping"};
  for (const char* key : kKeys) {
    BGTQ_ASSIGN_OR_RETURN(const double value, file.GetFloatOr(arch + key, 0.0));
    if (value == 0.0) continue;
    return Status(ErrorCode::kUnsupported,
                  fmt::format("{}: {}{} = {} is not supported by this build", file.name(), arch, key, value));
  }
  BGTQ_ASSIGN_OR_RETURN(const bool causal, file.GetBoolOr(arch + ".attention.causal", true));
  if (!causal) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: {}.attention.causal = false is not supported by this build", file.name(), arch));
  }
  return Status::Ok();
}

}  // namespace

Result<ModelConfig> ReadModelConfig(const GgufFile& file, RopePairing pairing) {
  ModelConfig config;
  BGTQ_ASSIGN_OR_RETURN(const std::string_view arch_view, file.GetString("general.architecture"));
  const std::string arch(arch_view);
  config.architecture = arch;
  BGTQ_RETURN_IF_ERROR(RefuseUnknownMeanings(file, arch));
  BGTQ_ASSIGN_OR_RETURN(const int64_t layers, Dimension(file, arch + ".block_count", kMaxLayers));
  const std::string head_key = arch + ".attention.head_count", kv_key = arch + ".attention.head_count_kv";
  for (const std::string& key : {head_key, kv_key}) {
    const GgufValue* value = file.FindValue(key);
    if (value != nullptr && std::holds_alternative<GgufArray>(*value)) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("{}: {} differs by layer, which this build does not support", file.name(), key));
    }
  }
  BGTQ_ASSIGN_OR_RETURN(const int64_t heads, Dimension(file, head_key, kMaxHeads));
  BGTQ_ASSIGN_OR_RETURN(const int64_t kv_heads, file.GetIntOr(kv_key, heads));
  if (kv_heads < 1 || kv_heads > heads || heads % kv_heads != 0) {
    return Corrupt(file, fmt::format("{} is {}, which does not divide {} heads", kv_key, kv_heads, heads));
  }
  BGTQ_ASSIGN_OR_RETURN(config.embedding, Dimension(file, arch + ".embedding_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(config.feed_forward, Dimension(file, arch + ".feed_forward_length", kMaxWidth));
  BGTQ_ASSIGN_OR_RETURN(config.context_length,
                        Dimension(file, arch + ".context_length", std::numeric_limits<int32_t>::max()));
  const std::string length_key = arch + ".attention.key_length", value_key = arch + ".attention.value_length";
  BGTQ_ASSIGN_OR_RETURN(const int64_t head_dim, file.GetIntOr(length_key, config.embedding / heads));
  BGTQ_ASSIGN_OR_RETURN(const int64_t value_dim, file.GetIntOr(value_key, head_dim));
  if (head_dim < 2 || head_dim > kMaxHeadDim) {
    return Corrupt(file, fmt::format("{} is {}, not in 2..{}", length_key, head_dim, kMaxHeadDim));
  }
  if (value_dim != head_dim) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("{}: {} {} differs from {} {}, which this build does not support", file.name(),
                              value_key, value_dim, length_key, head_dim));
  }
  if (head_dim % kUnitDims != 0) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: head dimension {} is not a multiple of {}, which this build's kernels need",
                    file.name(), head_dim, kUnitDims));
  }
  BGTQ_ASSIGN_OR_RETURN(const int64_t window, file.GetIntOr(arch + ".attention.sliding_window", 0));
  if (window != 0 && window < config.context_length) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("{}: sliding-window attention ({} tokens) is not supported by this build",
                              file.name(), window));
  }
  BGTQ_ASSIGN_OR_RETURN(const double epsilon, file.GetFloat(arch + ".attention.layer_norm_rms_epsilon"));
  if (!(epsilon > 0) || !(epsilon < 1)) {
    return Corrupt(file, fmt::format("{}.attention.layer_norm_rms_epsilon is {}", arch, epsilon));
  }
  config.layers = static_cast<int>(layers);
  config.heads = static_cast<int>(heads);
  config.kv_heads = static_cast<int>(kv_heads);
  config.head_dim = static_cast<int>(head_dim);
  config.norm_epsilon = static_cast<float>(epsilon);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const GgufTensor* table = file.FindTensor("token_embd.weight");
  if (table == nullptr) return Corrupt(file, "tensor token_embd.weight is missing");
  config.vocabulary = table->view.rows;
  BGTQ_RETURN_IF_ERROR(ReadRope(file, arch, pairing, config));
  return config;
}

Result<const GgufTensor*> WeightReader::Find(const std::string& name, int64_t rows, int64_t cols) const {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return Corrupt(file_, fmt::format("tensor {} is missing", name));
  if (tensor->view.rows != rows || tensor->view.cols != cols) {
    return Corrupt(file_, fmt::format("tensor {}: shape [{}, {}] where the model's dimensions want [{}, {}]",
                                      name, tensor->view.rows, tensor->view.cols, rows, cols));
  }
  return tensor;
}

Result<std::unique_ptr<Weight>> WeightReader::Matrix(const std::string& name, int64_t rows,
                                                     int64_t cols) const {
  BGTQ_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, rows, cols));
  return backend_.LoadMatrix(tensor->view, name);
}

Result<std::unique_ptr<Weight>> WeightReader::Vector(const std::string& name, int64_t size) const {
  BGTQ_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, 1, size));
  return backend_.LoadVector(tensor->view, name);
}

Result<std::unique_ptr<Weight>> WeightReader::OptionalMatrix(const std::string& name, int64_t rows,
                                                             int64_t cols) const {
  if (file_.FindTensor(name) == nullptr) return std::unique_ptr<Weight>();
  return Matrix(name, rows, cols);
}

Result<std::unique_ptr<Weight>> WeightReader::OptionalVector(const std::string& name, int64_t size) const {
  if (file_.FindTensor(name) == nullptr) return std::unique_ptr<Weight>();
  return Vector(name, size);
}

}  // namespace blockgtq
