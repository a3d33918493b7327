// How one position's logits compare with another's.
#pragma once

#include <cstdint>
#include <span>

namespace blockgtq {

struct LogitComparison {
  double kld = 0;            // sum p (log p - log q), p = softmax(base), q = softmax(test), nats
  bool same_top1 = false;    // equal logits: the lower token wins
  double top10_overlap = 0;  // share of the ten likeliest tokens in common
};

/// base, test [vocabulary].
LogitComparison CompareLogits(std::span<const float> base, std::span<const float> test);

/// log(sum exp(logits)).
double LogSum(std::span<const float> logits);
/// LogitComparison::kld alone; base_sum: LogSum(base).
double Divergence(std::span<const float> base, double base_sum, std::span<const float> test);

/// -log softmax(logits)[token].
double NegativeLogLikelihood(std::span<const float> logits, int32_t token);

}  // namespace blockgtq
