// See rope_scaling.h.
#include "src/core/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace blockgtq {
namespace {

constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

Status Bad(const std::string& what) {
  return {ErrorCode::kCorruptFile, fmt::format("RoPE scaling: {}", what)};
}

bool Positive(double x) { return std::isfinite(x) && x > 0; }

/// Whether a positive number keeps its value as a float.
bool FitsFloat(double x) {
  return x >= std::numeric_limits<float>::min() && x <= std::numeric_limits<float>::max();
}

/// Blocks that turn at least high_freq_factor times within the original context stay, those that turn at most
/// low_freq_factor times are divided, those between are blended.
std::vector<double> Llama3Divisors(const RopeScaling& s, const std::vector<double>& plain) {
  std::vector<double> divisors;
  const auto context = static_cast<double>(s.original_context);
  for (double f : plain) {
    const double turns = context * f / (2 * std::numbers::pi);  // within the original context
    const double blend =
        std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
    divisors.push_back(1.0 / ((1.0 - blend) / s.factor + blend));
  }
  return divisors;
}

std::vector<double> YarnDivisors(const RopeScaling& s, const RopeConfig& config) {
  const int dims = config.rotary_dims, blocks = dims / 2;
  // The block (a real number) that makes `turns` turns within the original context.
  const auto block_of = [&](double turns) {
    return dims * std::log(static_cast<double>(s.original_context) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.freq_base));
  };
  double low = block_of(s.beta_fast), high = block_of(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> divisors;
  for (int j = 0; j < blocks; ++j) {
    const double stretched = std::clamp((j - low) / (high - low), 0.0, 1.0);
    divisors.push_back(1.0 / (stretched / s.factor + (1.0 - stretched)));
  }
  return divisors;
}

double YarnFactor(const RopeScaling& s) {
  if (s.attention_factor.has_value()) return *s.attention_factor;
  if (s.mscale != 0.0 && s.mscale_all_dim != 0.0)
    return YarnMscale(s.factor, s.mscale) / YarnMscale(s.factor, s.mscale_all_dim);
  return YarnMscale(s.factor, 1.0);
}

double LongRopeFactor(const RopeScaling& s) {
  if (s.attention_factor.has_value()) return *s.attention_factor;
  if (s.factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + std::log(s.factor) / std::log(static_cast<double>(s.original_context)));
}

Status Check(const RopeScaling& s, const RopeConfig& config) {
  if (!Positive(s.factor)) return Bad(fmt::format("factor is {}", s.factor));
  const bool needs_context = s.type != RopeScalingType::kNone && s.type != RopeScalingType::kLinear;
  if (needs_context && s.original_context < 2)
    return Bad(fmt::format("original_max_position_embeddings is {}", s.original_context));
  if (s.attention_factor.has_value() && !Positive(*s.attention_factor))
    return Bad(fmt::format("attention_factor is {}", *s.attention_factor));
  if (s.type == RopeScalingType::kLlama3 &&
      (!Positive(s.low_freq_factor) || !Positive(s.high_freq_factor - s.low_freq_factor)))
    return Bad(fmt::format("low_freq_factor {} and high_freq_factor {} are not ascending", s.low_freq_factor,
                           s.high_freq_factor));
  if (s.type == RopeScalingType::kYarn) {
    if (!Positive(s.beta_slow) || !std::isfinite(s.beta_fast) || s.beta_fast < s.beta_slow)
      return Bad(fmt::format("beta_fast is {}, beta_slow {}", s.beta_fast, s.beta_slow));
    if (!std::isfinite(s.mscale) || !std::isfinite(s.mscale_all_dim) || s.mscale < 0 || s.mscale_all_dim < 0)
      return Bad(fmt::format("mscale is {}, mscale_all_dim {}", s.mscale, s.mscale_all_dim));
  }
  if (s.type == RopeScalingType::kDynamic && config.rotary_dims <= 2)
    return Bad("dynamic scaling of a single block");
  if (s.type != RopeScalingType::kLongRope) return Status::Ok();
  for (const auto& [name, factors] :
       {std::pair("short_factor", &s.short_factors), std::pair("long_factor", &s.long_factors)}) {
    if (factors->size() != static_cast<size_t>(config.rotary_dims / 2))
      return Bad(fmt::format("{} has {} numbers, not {}", name, factors->size(), config.rotary_dims / 2));
    for (double f : *factors) {
      if (!Positive(f)) return Bad(fmt::format("{} holds {}", name, f));
    }
  }
  return Status::Ok();
}

}  // namespace

double YarnMscale(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; }

Result<int64_t> ApplyRopeScaling(const RopeScaling& scaling, int64_t positions, RopeConfig& config) {
  BGTQ_RETURN_IF_ERROR(Check(scaling, config));
  std::vector<double> plain = RopeFrequencies(config);
  plain.resize(static_cast<size_t>(config.rotary_dims / 2));
  std::vector<double> divisors;
  double attention_factor = config.attention_factor;
  int64_t valid = kAnyLength;
  switch (scaling.type) {
    case RopeScalingType::kNone:
      return kAnyLength;
    case RopeScalingType::kLinear:
      config.linear_scale = scaling.factor;
      return kAnyLength;
    case RopeScalingType::kDynamic: {
      // A larger base from the original context on, so that `positions` tokens turn as far as it does.
      if (positions <= scaling.original_context) return scaling.original_context;
      const double stretch = static_cast<double>(positions) / static_cast<double>(scaling.original_context);
      const double base = std::pow(scaling.factor * stretch - (scaling.factor - 1.0),
                                   config.rotary_dims / (config.rotary_dims - 2.0));
      for (int j = 0; j < config.rotary_dims / 2; ++j)
        divisors.push_back(std::pow(base, 2.0 * j / config.rotary_dims));
      valid = positions;
      break;
    }
    case RopeScalingType::kLlama3:
      divisors = Llama3Divisors(scaling, plain);
      break;
    case RopeScalingType::kYarn:
      divisors = YarnDivisors(scaling, config);
      attention_factor = YarnFactor(scaling);
      break;
    case RopeScalingType::kLongRope: {
      const bool is_long = positions > scaling.original_context;
      divisors = is_long ? scaling.long_factors : scaling.short_factors;
      attention_factor = LongRopeFactor(scaling);
      valid = is_long ? kAnyLength : scaling.original_context;
      break;
    }
  }
  if (!FitsFloat(attention_factor))
    return Bad(fmt::format("cos and sin are multiplied by {}", attention_factor));
  for (double d : divisors) {
    if (!FitsFloat(d)) return Bad(fmt::format("a frequency is divided by {}", d));
  }
  config.attention_factor = static_cast<float>(attention_factor);
  config.freq_divisors.assign(divisors.begin(), divisors.end());
  return valid;
}

}  // namespace blockgtq
