// See simulated_parts.h.
#include "src/codec/simulated_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/core/half.h"

namespace blockgtq {

float RoundToE4m3(float x) {
  constexpr float kLargest = 448.0f;
  constexpr int kSmallestExponent = -6, kMantissaBits = 3;
  const float magnitude = std::abs(x);
  if (!(magnitude < kLargest)) return std::copysign(kLargest, x);
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent - 1), 2^exponent)
  const float step = std::ldexp(1.0f, std::max(exponent - 1, kSmallestExponent) - kMantissaBits);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

void Hadamard(std::span<float> x) {
  const size_t n = x.size();
  for (size_t half = 1; half < n; half *= 2) {
    for (size_t first = 0; first < n; first += 2 * half) {
      for (size_t i = first; i < first + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(n));
  for (float& v : x) v *= scale;
}

void HadamardBlocks(std::span<float> x, int size) {
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(size)) {
    Hadamard(x.subspan(first, static_cast<size_t>(size)));
  }
}

UniformRange UniformRange::Of(float low, float high, int bits) {
  const float steps = static_cast<float>((1 << bits) - 1);
  return {HalfToFloat(FloatToHalf((high - low) / steps)), HalfToFloat(FloatToHalf(low))};
}

float UniformRange::RoundTrip(float x, int bits) const {
  if (scale == 0) return zero;
  const float steps = static_cast<float>((1 << bits) - 1);
  return zero + scale * std::nearbyint(std::clamp((x - zero) / scale, 0.0f, steps));
}

void RoundTripGroups(std::span<float> x, int group, int bits) {
  while (!x.empty()) {
    const std::span<float> run = x.first(std::min(x.size(), static_cast<size_t>(group)));
    const auto [low, high] = std::minmax_element(run.begin(), run.end());
    const UniformRange range = UniformRange::Of(*low, *high, bits);
    for (float& v : run) v = range.RoundTrip(v, bits);
    x = x.subspan(run.size());
  }
}

int HalveCode(int code, int bits) {
  const int divisor = (1 << (bits / 2)) + 1;
  return (2 * code + divisor) / (2 * divisor);
}

std::vector<int> ChooseLayerWidths(std::span<const std::vector<double>> cost, std::span<const int> widths,
                                   double mean_width) {
  const size_t layers = cost.size();
  // A little more than the product: 3.3 x 10 layers are 33 bits, not 32.
  const int budget = static_cast<int>(std::floor(mean_width * static_cast<double>(layers) + 1e-9));
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  // least[l][b]: of layers l and later within b bits; choice[l][b]: of layer l there.
  std::vector<std::vector<double>> least(layers + 1,
                                         std::vector<double>(static_cast<size_t>(budget) + 1, 0.0));
  std::vector<std::vector<int>> choice(layers, std::vector<int>(static_cast<size_t>(budget) + 1, 0));
  for (size_t layer = layers; layer-- > 0;) {
    for (int bits = 0; bits <= budget; ++bits) {
      double best = kImpossible;
      for (size_t w = 0; w < widths.size() && widths[w] <= bits; ++w) {
        const double total = cost[layer][w] + least[layer + 1][static_cast<size_t>(bits - widths[w])];
        if (total < best) {
          best = total;
          choice[layer][static_cast<size_t>(bits)] = static_cast<int>(w);
        }
      }
      least[layer][static_cast<size_t>(bits)] = best;
    }
  }
  std::vector<int> chosen;
  int left = budget;
  for (size_t layer = 0; layer < layers; ++layer) {
    chosen.push_back(choice[layer][static_cast<size_t>(left)]);
    left -= widths[static_cast<size_t>(chosen.back())];
  }
  return chosen;
}

Status ExpectBits(std::string_view recipe, double k_bits, double v_bits, const RecipeOptions& options) {
  if (options.k_bits == k_bits && options.v_bits == v_bits) return Status::Ok();
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("recipe {}: K bits {} and V bits {} asked for, it has {} and {}", recipe,
                            options.k_bits, options.v_bits, k_bits, v_bits));
}

}  // namespace blockgtq
