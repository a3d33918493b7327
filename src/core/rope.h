// Rotary position embedding as D/2 two-dimensional frequency blocks, in frequency order.
//
// Throughout the library a head vector after RoPE is in *block order*: channels (2j, 2j + 1) are block j,
// which rotates at inv_freq[j]. Models store either pairs (2j, 2j + 1) (kNorm: llama-family GGUF) or (j, j +
// R/2) (kNeox: qwen2); ApplyRope reads the model's pairing and writes block order. Dot products do not depend
// on the order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

enum class RopePairing { kNorm, kNeox };

/// How one model rotates. Non-rotary channels (rotary_dims < head_dim) are blocks with inv_freq = 0, after
/// the others.
struct RopeConfig {
  int head_dim = 0;
  int rotary_dims = 0;  // even, <= head_dim
  RopePairing pairing = RopePairing::kNorm;
  double freq_base = 10000.0;
  double linear_scale = 1.0;           // positions are divided by this (linear scaling)
  std::vector<float> freq_divisors{};  // empty, or [rotary_dims / 2]: Llama 3's rope_freqs
  float attention_factor = 1.0f;       // multiplies cos and sin (YaRN); 1 elsewhere
  bool operator==(const RopeConfig&) const = default;
};

/// The RoPE of every layer. Most models have one; in some, layers with a sliding window have their own.
struct LayerRopes {
  std::vector<RopeConfig> configs;  // at least one
  std::vector<uint8_t> of_layer{};  // index into configs; empty: configs[0] in every layer
  int index(int layer) const { return of_layer.empty() ? 0 : of_layer[static_cast<size_t>(layer)]; }
  const RopeConfig& operator[](int layer) const { return configs[static_cast<size_t>(index(layer))]; }
};

/// Angles per position of each block: [head_dim / 2], radians a token, double precision.
std::vector<double> RopeFrequencies(const RopeConfig& config);

/// cos/sin of every block at a position, computed in double and kept as float; grows on demand, shared by all
/// layers.
class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config);
  const RopeConfig& config() const { return config_; }
  const std::vector<double>& frequencies() const { return frequencies_; }

  /// Makes positions [0, positions) readable. Not thread-safe; call before a parallel region.
  void Reserve(int64_t positions);
  int64_t positions() const;
  /// [head_dim / 2] cosines (sines) at `position` < positions(), without attention_factor.
  const float* Cos(int64_t position) const;
  const float* Sin(int64_t position) const;

  /// Rotates one head vector of the model's pairing to block order: out may not alias in. in, out:
  /// [head_dim].
  void Apply(const float* in, int64_t position, float* out) const;
  /// The pre-RoPE vector in block order (pairing undone, no rotation): what statistics and the K mean are
  /// taken of.
  void ToBlockOrder(const float* in, float* out) const;
  /// R_t of plan.h: rotates a pre-RoPE vector that is already in block order, attention_factor included (on
  /// the rotary blocks), so Apply = Rotate after ToBlockOrder. Works past positions() too, where it computes
  /// the same cosines itself. out may not alias in. in, out: [head_dim].
  void Rotate(const float* in, int64_t position, float* out) const;

 private:
  RopeConfig config_;
  std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // [positions, head_dim / 2]
};

}  // namespace blockgtq
