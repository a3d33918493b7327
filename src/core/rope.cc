// Rotary position embedding: frequencies, the shared cos/sin table, and the two pairings.
#include "src/core/rope.h"

#include <cmath>

namespace blockgtq {
namespace {

struct CosSin {
  float cos, sin;
};

// The angle is taken in double: at a million tokens its error stays below 1e-9 radians.
CosSin At(double frequency, int64_t position) {
  const double angle = static_cast<double>(position) * frequency;
  return {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& config) {
  std::vector<double> frequencies(config.head_dim / 2, 0.0);
  for (int j = 0; j < config.rotary_dims / 2; ++j) {
    double f = std::pow(config.freq_base, -2.0 * j / config.rotary_dims) / config.linear_scale;
    if (!config.freq_divisors.empty()) f /= config.freq_divisors[j];
    frequencies[j] = f;
  }
  return frequencies;
}

RopeTable::RopeTable(const RopeConfig& config) : config_(config), frequencies_(RopeFrequencies(config)) {}

int64_t RopeTable::positions() const {
  return frequencies_.empty() ? 0 : static_cast<int64_t>(cos_.size() / frequencies_.size());
}

void RopeTable::Reserve(int64_t positions) {
  const int64_t first = this->positions();
  if (positions <= first) return;
  const int64_t blocks = static_cast<int64_t>(frequencies_.size());
  cos_.resize(positions * blocks);
  sin_.resize(positions * blocks);
  for (int64_t t = first; t < positions; ++t) {
    for (int64_t j = 0; j < blocks; ++j) {
      const CosSin cs = At(frequencies_[j], t);
      cos_[t * blocks + j] = cs.cos;
      sin_[t * blocks + j] = cs.sin;
    }
  }
}

const float* RopeTable::Cos(int64_t position) const { return cos_.data() + position * frequencies_.size(); }
const float* RopeTable::Sin(int64_t position) const { return sin_.data() + position * frequencies_.size(); }

void RopeTable::Apply(const float* in, int64_t position, float* out) const {
  std::vector<float> ordered(config_.head_dim);
  ToBlockOrder(in, ordered.data());
  Rotate(ordered.data(), position, out);
}

void RopeTable::ToBlockOrder(const float* in, float* out) const {
  const int half = config_.rotary_dims / 2;
  const bool neox = config_.pairing == RopePairing::kNeox;
  for (int j = 0; j < half; ++j) {
    out[2 * j] = neox ? in[j] : in[2 * j];
    out[2 * j + 1] = neox ? in[j + half] : in[2 * j + 1];
  }
  for (int d = config_.rotary_dims; d < config_.head_dim; ++d) out[d] = in[d];
}

void RopeTable::Rotate(const float* in, int64_t position, float* out) const {
  const bool tabled = position >= 0 && position < positions();
  const float* cos = tabled ? Cos(position) : nullptr;
  const float* sin = tabled ? Sin(position) : nullptr;
  const float factor = config_.attention_factor;
  for (int j = 0; j < config_.rotary_dims / 2; ++j) {
    const CosSin cs = tabled ? CosSin{cos[j], sin[j]} : At(frequencies_[j], position);
    const float c = cs.cos * factor, s = cs.sin * factor;
    const float x = in[2 * j], y = in[2 * j + 1];
    out[2 * j] = x * c - y * s;
    out[2 * j + 1] = x * s + y * c;
  }
  for (int d = config_.rotary_dims; d < config_.head_dim; ++d) out[d] = in[d];
}

}  // namespace blockgtq
