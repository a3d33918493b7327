// See expert_mix.h.
#include "src/cpu/expert_mix.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace blockgtq::cpu {

void ChooseExperts(std::span<const float> logits, bool renormalise, float scale, std::span<int> choice,
                   std::span<float> weights) {
  const auto value = [&](int e) {
    const float x = logits[static_cast<size_t>(e)];
    return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x;
  };
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(choice.size()), order.end(),
                    [&](int a, int b) { return value(a) > value(b) || (value(a) == value(b) && a < b); });
  const double largest = value(order[0]);
  double total = 0, taken = 0;
  for (float x : logits) total += std::exp(x - largest);
  for (size_t i = 0; i < choice.size(); ++i) {
    choice[i] = order[i];
    taken += std::exp(value(order[i]) - largest);
  }
  // A NaN among the logits is in `total`: the softmax is then NaN, also where the chosen are numbers.
  const double divisor = renormalise && !std::isnan(total) ? taken : total;
  for (size_t i = 0; i < choice.size(); ++i) {
    weights[i] = static_cast<float>(scale * std::exp(value(order[i]) - largest) / divisor);
  }
}

std::vector<std::vector<ExpertShare>> ShareRows(const float* logits, int64_t rows, int experts, int chosen,
                                                bool renormalise, float scale) {
  std::vector<std::vector<ExpertShare>> shares(static_cast<size_t>(experts));
  std::vector<int> choice(static_cast<size_t>(chosen));
  std::vector<float> weights(static_cast<size_t>(chosen));
  for (int64_t r = 0; r < rows; ++r) {
    ChooseExperts({logits + r * experts, static_cast<size_t>(experts)}, renormalise, scale, choice, weights);
    for (size_t i = 0; i < choice.size(); ++i)
      shares[static_cast<size_t>(choice[i])].push_back({r, weights[i]});
  }
  return shares;
}

}  // namespace blockgtq::cpu
