// Choice of a log norm's reference from observed norms.
#include "src/core/log_norm.h"

#include <algorithm>
#include <vector>

namespace blockgtq {
namespace {

// Octaves from the reference to the window's lowest and highest byte.
constexpr double kLowest = -128.0 / 32.0;
constexpr double kHighest = 127.0 / 32.0;
constexpr double kHeadroom = 0.5;
constexpr double kStep = 1.0 / 32.0;

}  // namespace

float ChooseNormReference(std::span<const float> norms) {
  std::vector<double> sorted;
  for (float norm : norms) {
    if (norm > 0.0f && std::isfinite(norm)) sorted.push_back(norm);
  }
  if (sorted.empty()) return 1.0f;
  std::sort(sorted.begin(), sorted.end());
  const double smallest = sorted.front(), largest = sorted.back();

  // Where the window holds them all: headroom above the largest, no more than the smallest leaves free.
  const double room = (kHighest - kLowest) - std::log2(largest / smallest);
  const auto reference = [&](double top_octave) {
    return static_cast<float>(std::clamp(std::exp2(top_octave - kHighest), 1e-30, 1e30));
  };
  if (room >= 0) return reference(std::log2(largest) + std::min(kHeadroom, room));

  // Otherwise slide the window from the largest norm down and keep the place of least squared clamping error.
  // Prefix sums give each place's error in logarithmic time.
  const size_t n = sorted.size();
  std::vector<double> sum(n + 1, 0.0), squares(n + 1, 0.0);
  for (size_t i = 0; i < n; ++i) {
    sum[i + 1] = sum[i] + sorted[i];
    squares[i + 1] = squares[i] + sorted[i] * sorted[i];
  }
  const auto clamping = [&](size_t begin, size_t end, double to) {
    return squares[end] - squares[begin] - 2.0 * to * (sum[end] - sum[begin]) +
           to * to * static_cast<double>(end - begin);
  };
  double best_top = std::log2(largest), best_error = -1.0;
  for (double top = std::log2(largest); top >= std::log2(smallest); top -= kStep) {
    const double high = std::exp2(top), low = std::exp2(top - kHighest + kLowest);
    const size_t below = std::lower_bound(sorted.begin(), sorted.end(), low) - sorted.begin();
    const size_t above = std::upper_bound(sorted.begin(), sorted.end(), high) - sorted.begin();
    const double error = clamping(0, below, low) + clamping(above, n, high);
    if (best_error < 0 || error < best_error) {
      best_error = error;
      best_top = top;
    }
  }
  return reference(best_top);
}

}  // namespace blockgtq
