// Recipes turboquant-k8v4, -4bit, -k3v4 and -3bit: vLLM's presets turboquant_k8v4, turboquant_4bit_nc,
// turboquant_k3v4_nc and turboquant_3bit_nc. Keys: rotated by a Hadamard matrix, Lloyd-Max codes of the unit
// vector, an fp16 norm, decoded to unit length before the norm is applied ("nc"); k8v4: FP8 E4M3 without a
// scale, not rotated. Values: uniform over the head's own range, fp16 scale and zero point. The first and
// last two layers stay in bf16. Channel order does not matter: reordering a Hadamard matrix's inputs by the
// bits of their index reorders its outputs. Source: vllm-project/vllm,
// model_executor/layers/quantization/turboquant/config.py and v1/attention/ops/triton_turboquant_store.py.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "src/codec/simulated_parts.h"
#include "src/core/half.h"
#include "src/core/lloyd_max.h"

namespace blockgtq {
namespace {

constexpr int kProtectedLayers = 2;  // at each end, at most half of the layers
constexpr float kLargestHalf = 65504.0f;

float HalfOf(float x) { return HalfToFloat(FloatToHalf(x)); }

struct Preset {
  std::string_view recipe;
  int key_bits, value_bits;  // key_bits 8: FP8
};

// As the store kernel does it: codes from the range in fp32, halves rounded up; what is stored is fp16.
void RoundTripUniform(std::span<float> x, int bits) {
  constexpr float kSmallestScale = 1e-8f;
  const int last = (1 << bits) - 1;
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float zero = *low, scale = std::max((*high - *low) / static_cast<float>(last), kSmallestScale);
  for (float& v : x) {
    const int code = std::clamp(static_cast<int>(std::floor((v - zero) / scale + 0.5f)), 0, last);
    v = static_cast<float>(code) * HalfOf(scale) + HalfOf(zero);
  }
}

// Lloyd-Max codes of the rotated unit vector.
void RoundTripMse(std::span<float> x, int bits) {
  double energy = 0;
  for (float v : x) energy += double{v} * v;
  const double norm = std::sqrt(energy);
  if (norm == 0) return;  // norm 0 decodes to zeros
  const LloydMaxCodebook& codebook = LloydMax(bits);
  const double to_unit_variance = std::sqrt(static_cast<double>(x.size())) / norm;
  Hadamard(x);
  double decoded_energy = 0;
  for (float& v : x) {
    const auto above =
        std::upper_bound(codebook.thresholds.begin(), codebook.thresholds.end(), v * to_unit_variance);
    v = static_cast<float>(codebook.centroids[static_cast<size_t>(above - codebook.thresholds.begin())]);
    decoded_energy += double{v} * v;
  }
  const float stored = HalfOf(std::min(static_cast<float>(norm), kLargestHalf));
  const float scale = static_cast<float>(stored / std::sqrt(decoded_energy));
  for (float& v : x) v *= scale;
  Hadamard(x);
}

class TurboQuantHead : public SimulatedHead {
 public:
  TurboQuantHead(int head_dim, const Preset& preset) : dim_(static_cast<size_t>(head_dim)), preset_(preset) {}

  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t) const override {
    if (preset_.key_bits == 8) {
      for (float& x : keys) x = RoundToE4m3(x);
      return;
    }
    for (size_t first = 0; first < keys.size(); first += dim_) {
      RoundTripMse(keys.subspan(first, dim_), preset_.key_bits);
    }
  }
  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (size_t first = 0; first < values.size(); first += dim_) {
      RoundTripUniform(values.subspan(first, dim_), preset_.value_bits);
    }
  }
  double bytes_per_token() const override {
    const size_t value = CodeBytes(preset_.value_bits) + 4;                          // scale and zero point
    return std::ceil((key_bytes_per_token() + static_cast<double>(value)) / 2) * 2;  // slots are even
  }
  double key_bytes_per_token() const override {
    return static_cast<double>(CodeBytes(preset_.key_bits) + (preset_.key_bits == 8 ? 0 : 2));  // norm
  }

 private:
  size_t CodeBytes(int bits) const { return (dim_ * static_cast<size_t>(bits) + 7) / 8; }

  size_t dim_;
  Preset preset_;
};

class Bf16Head : public SimulatedHead {
 public:
  explicit Bf16Head(int head_dim) : dim_(head_dim) {}
  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t) const override { Round(keys); }
  void RoundTripValues(std::span<float> values, int64_t) const override { Round(values); }
  double bytes_per_token() const override { return 4.0 * dim_; }
  double key_bytes_per_token() const override { return 2.0 * dim_; }

 private:
  static void Round(std::span<float> x) {
    for (float& v : x) v = Bf16ToFloat(FloatToBf16(v));
  }
  int dim_;
};

Result<SimulatedHeadList> SimulatePreset(const Preset& preset, const SimulationInput& input,
                                         const RecipeOptions& options) {
  BGTQ_RETURN_IF_ERROR(ExpectBits(preset.recipe, preset.key_bits, preset.value_bits, options));
  const int dim = input.rope->config().head_dim;
  if (!std::has_single_bit(static_cast<unsigned>(dim))) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("recipe {}: head dim {} is no power of two, as its rotation needs", preset.recipe, dim));
  }
  const int kept = std::min(kProtectedLayers, input.layers / 2);
  return SimulateEach(
      input, [&](int layer, int, const HeadCalibration*) -> Result<std::unique_ptr<const SimulatedHead>> {
        if (layer < kept || layer >= input.layers - kept) {
          return std::unique_ptr<const SimulatedHead>(new Bf16Head(dim));
        }
        return std::unique_ptr<const SimulatedHead>(new TurboQuantHead(dim, preset));
      });
}

}  // namespace

Result<SimulatedHeadList> SimulateTurboQuantK8V4(const SimulationInput& input, const RecipeOptions& options) {
  return SimulatePreset({"turboquant-k8v4", 8, 4}, input, options);
}
Result<SimulatedHeadList> SimulateTurboQuant4Bit(const SimulationInput& input, const RecipeOptions& options) {
  return SimulatePreset({"turboquant-4bit", 4, 4}, input, options);
}
Result<SimulatedHeadList> SimulateTurboQuantK3V4(const SimulationInput& input, const RecipeOptions& options) {
  return SimulatePreset({"turboquant-k3v4", 3, 4}, input, options);
}
Result<SimulatedHeadList> SimulateTurboQuant3Bit(const SimulationInput& input, const RecipeOptions& options) {
  return SimulatePreset({"turboquant-3bit", 3, 3}, input, options);
}

}  // namespace blockgtq
