// See logit_comparison.h.
#include "src/eval/logit_comparison.h"

#include <algorithm>
#include <array>

#include "src/cpu/elementwise.h"

namespace blockgtq {
namespace {

constexpr size_t kTop = 10;

/// The ten likeliest tokens, likeliest first; equal logits: the lower token. Fewer when the vocabulary is
/// smaller.
std::array<int32_t, kTop> TopTokens(std::span<const float> logits, size_t& count) {
  std::array<int32_t, kTop> top{};
  count = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (count == kTop && !(logits[i] > logits[top[kTop - 1]])) continue;
    size_t at = count < kTop ? count++ : kTop - 1;
    for (; at > 0 && logits[i] > logits[top[at - 1]]; --at) top[at] = top[at - 1];
    top[at] = static_cast<int32_t>(i);
  }
  return top;
}

}  // namespace

LogitComparison CompareLogits(std::span<const float> base, std::span<const float> test) {
  LogitComparison result;
  result.kld = Divergence(base, LogSum(base), test);
  size_t base_count = 0, test_count = 0;
  const auto base_top = TopTokens(base, base_count), test_top = TopTokens(test, test_count);
  result.same_top1 = base_top[0] == test_top[0];
  size_t common = 0;
  for (size_t i = 0; i < base_count; ++i) {
    common += std::find(test_top.begin(), test_top.begin() + test_count, base_top[i]) !=
              test_top.begin() + test_count;
  }
  result.top10_overlap = base_count > 0 ? static_cast<double>(common) / static_cast<double>(base_count) : 0;
  return result;
}

double LogSum(std::span<const float> logits) {
  return cpu::LogSumExp(logits.data(), static_cast<int64_t>(logits.size()));
}

double Divergence(std::span<const float> base, double base_sum, std::span<const float> test) {
  return std::max(cpu::KlDivergence(base.data(), base_sum, test.data(), static_cast<int64_t>(base.size())),
                  0.0);
}

double NegativeLogLikelihood(std::span<const float> logits, int32_t token) {
  return LogSum(logits) - logits[static_cast<size_t>(token)];
}

}  // namespace blockgtq
