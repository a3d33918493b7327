// See rope_config.h.
#include "src/models/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "src/core/rope_scaling.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

struct ScalingName {
  std::string_view name;
  RopeScalingType type;
};
constexpr std::array<ScalingName, 6> kScalings = {{{"none", RopeScalingType::kNone},
                                                   {"linear", RopeScalingType::kLinear},
                                                   {"dynamic", RopeScalingType::kDynamic},
                                                   {"llama3", RopeScalingType::kLlama3},
                                                   {"yarn", RopeScalingType::kYarn},
                                                   {"longrope", RopeScalingType::kLongRope}}};

/// The positive numbers of a [rotary_dims / 2] tensor; empty when the model has none of that name.
Result<std::vector<float>> BlockTensor(const ModelSource& source, const std::string& name, int rotary_dims) {
  const ModelTensor* tensor = source.Take(name);
  if (tensor == nullptr) return std::vector<float>();
  const int64_t blocks = rotary_dims / 2;
  const auto corrupt = [&](const std::string& what) {
    return Status(ErrorCode::kCorruptFile, fmt::format("{}: tensor {}{}", source.name(), name, what));
  };
  if (tensor->cols != blocks || tensor->rows != 1)
    return corrupt(fmt::format(": {} x {} instead of {}", tensor->rows, tensor->cols, blocks));
  std::vector<float> values(static_cast<size_t>(blocks));
  DequantizeRow(tensor->parts.front(), 0, values.data());
  for (float v : values) {
    if (!(v > 0) || !std::isfinite(v)) return corrupt(fmt::format(" holds {}", v));
  }
  return values;
}

Result<double> Base(const ModelKeys& keys, std::string_view key, double fallback) {
  BGTQ_ASSIGN_OR_RETURN(const double base, keys.RealOr(key, fallback));
  if (!std::isfinite(base) || base <= 1.0)
    return keys.Error(ErrorCode::kCorruptFile, key, fmt::format("is {}, not a number above 1", base));
  return base;
}

Result<RopeScalingType> ScalingType(const ModelKeys& keys, std::string_view fallback) {
  BGTQ_ASSIGN_OR_RETURN(const std::string name, keys.TextOr("rope.scaling.type", fallback));
  std::string known;
  for (const ScalingName& scaling : kScalings) {
    if (scaling.name == name) return scaling.type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", scaling.name);
  }
  return keys.Error(
      ErrorCode::kUnsupported, "rope.scaling.type",
      fmt::format("is '{}', which this build does not support (known: {})", Printable(name), known));
}

/// LongRoPE's factors: lists of the configuration, or GGUF's tensors.
Status ReadLongFactors(const ModelSource& source, int rotary_dims, RopeScaling& scaling) {
  struct Name {
    const char* key;
    const char* tensor;
    std::vector<double>* factors;
  };
  for (const Name& name :
       {Name{"rope.scaling.short_factor", "rope_factors_short.weight", &scaling.short_factors},
        Name{"rope.scaling.long_factor", "rope_factors_long.weight", &scaling.long_factors}}) {
    if (source.keys().Has(name.key)) {
      BGTQ_ASSIGN_OR_RETURN(*name.factors, source.keys().Reals(name.key));
      continue;
    }
    BGTQ_ASSIGN_OR_RETURN(const std::vector<float> values, BlockTensor(source, name.tensor, rotary_dims));
    name.factors->assign(values.begin(), values.end());
  }
  return Status::Ok();
}

Result<RopeScaling> ReadScaling(const ModelSource& source, int64_t context_length, int rotary_dims) {
  const ModelKeys& keys = source.keys();
  RopeScaling s;
  // As llama.cpp reads them: an older key, and a factor without a type means linear; GGUF files of LongRoPE
  // models have its tensors and no type.
  const bool has_older = keys.Has("rope.scale_linear") && !keys.Has("rope.scaling.factor");
  const char* factor_key = has_older ? "rope.scale_linear" : "rope.scaling.factor";
  const bool has_factor = keys.Has(factor_key);
  BGTQ_ASSIGN_OR_RETURN(s.factor, keys.RealOr(factor_key, 1.0));
  const bool has_tensors = source.Find("rope_factors_short.weight") != nullptr;
  BGTQ_ASSIGN_OR_RETURN(s.type, ScalingType(keys, has_tensors       ? "longrope"
                                                  : s.factor != 1.0 ? "linear"
                                                                    : "none"));
  if (s.type == RopeScalingType::kNone) return s;
  BGTQ_ASSIGN_OR_RETURN(s.original_context,
                        keys.IntOr("rope.scaling.original_context_length", context_length));
  if (!has_factor && s.type == RopeScalingType::kLongRope && s.original_context > 0) {
    s.factor = static_cast<double>(context_length) / static_cast<double>(s.original_context);
  } else if (!has_factor) {
    return keys.Error(ErrorCode::kCorruptFile, factor_key, "is missing: the RoPE scaling needs it");
  }
  if (s.type == RopeScalingType::kLlama3) {
    BGTQ_ASSIGN_OR_RETURN(s.low_freq_factor, keys.Real("rope.scaling.low_freq_factor"));
    BGTQ_ASSIGN_OR_RETURN(s.high_freq_factor, keys.Real("rope.scaling.high_freq_factor"));
  }
  if (s.type == RopeScalingType::kYarn) {
    BGTQ_ASSIGN_OR_RETURN(s.beta_fast, keys.RealOr("rope.scaling.yarn_beta_fast", s.beta_fast));
    BGTQ_ASSIGN_OR_RETURN(s.beta_slow, keys.RealOr("rope.scaling.yarn_beta_slow", s.beta_slow));
    BGTQ_ASSIGN_OR_RETURN(s.truncate, keys.FlagOr("rope.scaling.truncate", true));
    BGTQ_ASSIGN_OR_RETURN(s.mscale, keys.RealOr("rope.scaling.mscale", 0.0));
    BGTQ_ASSIGN_OR_RETURN(s.mscale_all_dim, keys.RealOr("rope.scaling.mscale_all_dim", 0.0));
    // GGUF's 0.1 mscale_all_dim, of models whose mscale is the same.
    BGTQ_ASSIGN_OR_RETURN(const double multiplier, keys.RealOr("rope.scaling.yarn_log_multiplier", 0.0));
    if (multiplier != 0) s.mscale = s.mscale_all_dim = 10.0 * multiplier;
  }
  const bool has_attention_factor = s.type == RopeScalingType::kYarn || s.type == RopeScalingType::kLongRope;
  if (has_attention_factor && keys.Has("rope.scaling.attn_factor")) {
    BGTQ_ASSIGN_OR_RETURN(s.attention_factor, keys.Real("rope.scaling.attn_factor"));
    // llama.cpp multiplies YaRN's own factor by a GGUF file's; transformers takes the configuration's
    // instead.
    if (source.gguf() != nullptr && s.type == RopeScalingType::kYarn)
      *s.attention_factor *= YarnMscale(s.factor, 1.0);
  }
  if (s.type == RopeScalingType::kLongRope) BGTQ_RETURN_IF_ERROR(ReadLongFactors(source, rotary_dims, s));
  return s;
}

/// LongRoPE has factors up to the model's context; a dynamic base has no end of its own.
Status CheckRopeContext(const ModelSource& source, const RopeScaling& scaling, int64_t context_length) {
  const int64_t wanted = source.rope_context();
  if (wanted == 0) return Status::Ok();
  const auto refuse = [&](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}: a RoPE for {} tokens: {}", source.name(), wanted, what));
  };
  const bool is_long = scaling.type == RopeScalingType::kLongRope;
  if (!is_long && scaling.type != RopeScalingType::kDynamic) {
    return refuse("this model's does not change with the length (dynamic and longrope do)");
  }
  if (wanted < 0) return refuse("give a number from 1 up");
  if (is_long && wanted > context_length)
    return refuse(fmt::format("the model's context is {}", context_length));
  return Status::Ok();
}

}  // namespace

Status ReadRope(const ModelSource& source, double window_base, ModelConfig& config) {
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
  BGTQ_ASSIGN_OR_RETURN(rope.freq_base, Base(keys, "rope.freq_base", 10000.0));
  const RopeConfig plain = rope;
  BGTQ_ASSIGN_OR_RETURN(const RopeScaling scaling,
                        ReadScaling(source, config.context_length, rope.rotary_dims));
  // Frequencies that change with the length: those of the sequence that was asked for, or of the original
  // context. Cached keys cannot follow, so they hold for every sequence, and longer ones are refused.
  BGTQ_RETURN_IF_ERROR(CheckRopeContext(source, scaling, config.context_length));
  int64_t positions = scaling.original_context > 0 ? std::min(config.context_length, scaling.original_context)
                                                   : config.context_length;
  positions = std::max(positions, source.rope_context());
  config.context_length = std::max(config.context_length, source.rope_context());
  const Result<int64_t> valid = ApplyRopeScaling(scaling, positions, rope);
  if (!valid.ok()) return valid.status().WithContext(source.name());
  config.max_positions = *valid;
  if (config.latent.rank > 0 && scaling.type == RopeScalingType::kYarn && scaling.mscale_all_dim != 0) {
    const double m = YarnMscale(scaling.factor, scaling.mscale_all_dim);
    config.attention_scale *= static_cast<float>(m * m);
  }
  BGTQ_ASSIGN_OR_RETURN(std::vector<float> divisors,
                        BlockTensor(source, "rope_freqs.weight", rope.rotary_dims));
  if (!divisors.empty()) {  // Llama 3's, as GGUF stores them
    if (!rope.freq_divisors.empty()) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("{}: tensor rope_freqs.weight beside another RoPE scaling is not supported by "
                      "this build",
                      source.name()));
    }
    rope.freq_divisors = std::move(divisors);
  }
  if (window_base == 0 && !keys.Has("rope.freq_base_swa")) return Status::Ok();
  RopeConfig windowed = plain;
  BGTQ_ASSIGN_OR_RETURN(windowed.freq_base,
                        Base(keys, "rope.freq_base_swa", window_base != 0 ? window_base : rope.freq_base));
  if (config.window > 0 && windowed != rope) config.window_rope = std::move(windowed);
  return Status::Ok();
}

}  // namespace blockgtq
