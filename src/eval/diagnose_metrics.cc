// See diagnose_metrics.h.
#include "src/eval/diagnose_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace blockgtq {
namespace {

/// scaled logits of every query with the tokens up to its own: [tokens, tokens]. Sums run over dims in the
/// outer loop, so that the inner one, over tokens, is a vector operation.
std::vector<float> CausalLogits(std::span<const float> queries, std::span<const float> keys, int dim,
                                float scale) {
  const size_t width = static_cast<size_t>(dim), tokens = keys.size() / width;
  std::vector<float> transposed(keys.size());  // [dim, tokens]
  for (size_t t = 0; t < tokens; ++t)
    for (size_t d = 0; d < width; ++d) transposed[d * tokens + t] = keys[t * width + d];
  std::vector<float> logits(tokens * tokens);
  for (size_t t = 0; t < tokens; ++t) {
    float* row = &logits[t * tokens];
    for (size_t d = 0; d < width; ++d) {
      const float q = queries[t * width + d] * scale;
      const float* column = &transposed[d * tokens];
      for (size_t s = 0; s <= t; ++s) row[s] += q * column[s];
    }
  }
  return logits;
}

/// Indices of the kTopKeys largest of `logits`, ascending; the first of equals is larger.
std::array<int, kTopKeys> TopKeys(std::span<const float> logits) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + kTopKeys - 1, order.end(), [&](int a, int b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::array<int, kTopKeys> top{};
  std::copy_n(order.begin(), kTopKeys, top.begin());
  std::sort(top.begin(), top.end());
  return top;
}

/// log sum exp.
double LogMass(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double mass = 0;
  for (float x : logits) mass += std::exp(x - largest);
  return largest + std::log(mass);
}

}  // namespace

OffsetRotations::OffsetRotations(const RopeTable& rope) {
  for (double frequency : rope.frequencies()) {
    for (int o = 0; o < kLogitOffsets; ++o) {
      cos_.push_back(static_cast<float>(std::cos(frequency * Offset(o))));
      sin_.push_back(static_cast<float>(std::sin(frequency * Offset(o))));
    }
  }
}

KeyErrorSums& KeyErrorSums::operator+=(const KeyErrorSums& other) {
  logit_error += other.logit_error;
  logit_square += other.logit_square;
  logits += other.logits;
  latent_error += other.latent_error;
  kl += other.kl;
  overlap += other.overlap;
  queries += other.queries;
  return *this;
}

QueryHead::QueryHead(std::span<const float> queries, std::span<const float> keys, int head_dim, float scale,
                     int latent_dims)
    : queries_(queries),
      keys_(keys),
      dim_(head_dim),
      latent_dims_(latent_dims),
      tokens_(static_cast<int64_t>(keys.size()) / head_dim),
      scale_(scale),
      log_p_(static_cast<size_t>(tokens_ * tokens_)),
      p_(log_p_.size()),
      top_(static_cast<size_t>(tokens_)) {
  const std::vector<float> logits = CausalLogits(queries, keys, head_dim, scale);
  for (int64_t t = kTopKeys; t < tokens_; ++t) {
    const size_t first = static_cast<size_t>(t * tokens_);
    const std::span<const float> seen =
        std::span<const float>(logits).subspan(first, static_cast<size_t>(t + 1));
    const double mass = LogMass(seen);
    for (size_t s = 0; s < seen.size(); ++s) {
      log_p_[first + s] = seen[s] - mass;
      p_[first + s] = std::exp(log_p_[first + s]);
    }
    top_[static_cast<size_t>(t)] = TopKeys(seen);
  }
}

KeyErrorSums QueryHead::Errors(std::span<const float> decoded, const OffsetRotations& rotations) const {
  KeyErrorSums sums;
  AddLogitErrors(decoded, rotations, sums);
  AddAttentionErrors(decoded, sums);
  return sums;
}

void QueryHead::AddLogitErrors(std::span<const float> decoded, const OffsetRotations& rotations,
                               KeyErrorSums& sums) const {
  for (int64_t t = 0; t < tokens_; ++t) {
    const float* q = &queries_[static_cast<size_t>(t * dim_)];
    const float* k = &keys_[static_cast<size_t>(t * dim_)];
    const float* z = &decoded[static_cast<size_t>(t * dim_)];
    std::array<float, kLogitOffsets> error{};
    const int rope_dims = dim_ - latent_dims_;
    for (int block = 0; block < rope_dims / 2; ++block) {
      // (R_o q)' e of the block = cos(o theta) a + sin(o theta) b
      const int x = 2 * block, y = x + 1;
      const float ex = k[x] - z[x], ey = k[y] - z[y];
      const float a = q[x] * ex + q[y] * ey, b = q[x] * ey - q[y] * ex;
      const float *cosines = rotations.Cos(block), *sines = rotations.Sin(block);
      for (size_t o = 0; o < kLogitOffsets; ++o) error[o] += cosines[o] * a + sines[o] * b;
    }
    for (float e : error) {
      sums.logit_error += std::abs(e);
      sums.logit_square += double{e} * e;
    }
    sums.logits += kLogitOffsets;
    double latent = 0;
    for (int d = rope_dims; d < dim_; ++d) latent += q[d] * (k[d] - z[d]);
    sums.latent_error += std::abs(latent);
  }
}

void QueryHead::AddAttentionErrors(std::span<const float> decoded, KeyErrorSums& sums) const {
  const std::vector<float> logits = CausalLogits(queries_, decoded, dim_, scale_);
  for (int64_t t = kTopKeys; t < tokens_; ++t) {
    const size_t first = static_cast<size_t>(t * tokens_);
    const std::span<const float> seen =
        std::span<const float>(logits).subspan(first, static_cast<size_t>(t + 1));
    const double mass = LogMass(seen);
    double kl = 0;
    for (size_t s = 0; s < seen.size(); ++s) kl += p_[first + s] * (log_p_[first + s] - (seen[s] - mass));
    sums.kl += std::max(0.0, kl);  // rounding can leave a few 1e-8 below zero
    const std::array<int, kTopKeys>& top = top_[static_cast<size_t>(t)];
    const std::array<int, kTopKeys> test_top = TopKeys(seen);
    std::array<int, kTopKeys> both{};
    const auto end =
        std::set_intersection(top.begin(), top.end(), test_top.begin(), test_top.end(), both.begin());
    sums.overlap += static_cast<double>(end - both.begin()) / kTopKeys;
    ++sums.queries;
  }
}

}  // namespace blockgtq
