// What decoded keys do to the attention of one query head: RoPE-logit error, divergence of the softmax,
// overlap of the most attended tokens. Definitions: docs/method.md, "Judging keys alone".
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/core/rope.h"

namespace blockgtq {

inline constexpr int kLogitOffsets = 50;  // offsets between query and key
inline constexpr double kLargestOffset =
    1024.0;                          // they are evenly spaced in [-kLargestOffset, +kLargestOffset]
inline constexpr int kTopKeys = 10;  // most attended tokens that are compared

/// Cosines and sines of every block at the offsets. Blocks that do not rotate have angle 0: their part of a
/// logit is the plain dot product.
class OffsetRotations {
 public:
  explicit OffsetRotations(const RopeTable& rope);
  static double Offset(int index) {
    return -kLargestOffset + 2 * kLargestOffset * index / (kLogitOffsets - 1);
  }
  const float* Cos(int block) const { return &cos_[static_cast<size_t>(block) * kLogitOffsets]; }
  const float* Sin(int block) const { return &sin_[static_cast<size_t>(block) * kLogitOffsets]; }

 private:
  std::vector<float> cos_, sin_;  // [blocks, kLogitOffsets]
};

/// Sums over the queries of one head; their means are what is reported.
struct KeyErrorSums {
  double logit_error = 0;   // |q' R k - q' R k^|, unscaled logits; of latents' heads the rope key's part
  double logit_square = 0;  // its square
  int64_t logits = 0;       // tokens x offsets
  double latent_error = 0;  // |q' k - q' k^| of the latent's dims, a token each
  double kl = 0;            // nats, of the softmax over the tokens a query sees
  double overlap = 0;       // share of the kTopKeys most attended tokens that stay among them
  int64_t queries = 0;      // that see more than kTopKeys tokens: over these kl and overlap are summed
  KeyErrorSums& operator+=(const KeyErrorSums& other);
};

/// One query head over one chunk of tokens, with exact keys: what decoded keys are compared with.
class QueryHead {
 public:
  /// queries, keys  [tokens, head_dim] post-RoPE, block order, row i at position i; must outlive the head
  /// scale          of the logits before the softmax
  /// latent_dims    last dims of a key that are a latent (MLA); they do not rotate
  QueryHead(std::span<const float> queries, std::span<const float> keys, int head_dim, float scale,
            int latent_dims = 0);

  /// decoded: [tokens, head_dim], as keys.
  KeyErrorSums Errors(std::span<const float> decoded, const OffsetRotations& rotations) const;

 private:
  void AddLogitErrors(std::span<const float> decoded, const OffsetRotations& rotations,
                      KeyErrorSums& sums) const;
  void AddAttentionErrors(std::span<const float> decoded, KeyErrorSums& sums) const;

  std::span<const float> queries_, keys_;
  int dim_, latent_dims_;
  int64_t tokens_;
  float scale_;
  // Of exact keys, of the queries from kTopKeys on.
  std::vector<double> log_p_, p_;  // [tokens, tokens]; row i holds tokens 0..i, the rest is unused
  std::vector<std::array<int, kTopKeys>> top_;  // [tokens], ascending
};

}  // namespace blockgtq
