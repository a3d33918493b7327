// Recipe fp8: keys and values as FP8 E4M3 with one fp32 scale a head for each, which calibration sets (1
// without a calibration). The scales are constants of the model and take no bytes of a token.
#include <algorithm>
#include <cmath>
#include <utility>

#include "src/codec/simulated_parts.h"

namespace blockgtq {
namespace {

// What the calibration's largest magnitude becomes: half of E4M3's 448, so that larger ones have an octave
// before they saturate.
constexpr float kCalibratedLargest = 224.0f;

float ScaleFor(float largest) { return largest > 0 ? largest / kCalibratedLargest : 1.0f; }

class Fp8Head : public SimulatedHead {
 public:
  Fp8Head(int head_dim, float key_scale, float value_scale)
      : dim_(head_dim), key_scale_(key_scale), value_scale_(value_scale) {}

  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t) const override {
    for (float& x : keys) x = RoundToE4m3(x / key_scale_) * key_scale_;
  }
  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (float& x : values) x = RoundToE4m3(x / value_scale_) * value_scale_;
  }
  double bytes_per_token() const override { return 2.0 * dim_; }
  double key_bytes_per_token() const override { return dim_; }

 private:
  int dim_;
  float key_scale_, value_scale_;
};

}  // namespace

Result<SimulatedHeadList> SimulateFp8(const SimulationInput& input, const RecipeOptions& options) {
  BGTQ_RETURN_IF_ERROR(ExpectBits("fp8", 8, 8, options));
  const int dim = input.rope->config().head_dim;
  return SimulateEach(
      input,
      [&](int, int, const HeadCalibration* calibration) -> Result<std::unique_ptr<const SimulatedHead>> {
        float key = 0, value = 0;
        if (calibration != nullptr) {
          // RoPE turns the pairs of channels: the longest pair bounds every channel at every position.
          for (size_t i = 0; i + 1 < calibration->keys.size(); i += 2) {
            key = std::max(key, std::hypot(calibration->keys[i], calibration->keys[i + 1]));
          }
          for (float x : calibration->values) value = std::max(value, std::abs(x));
          key *= input.rope->config().attention_factor;
        }
        return std::unique_ptr<const SimulatedHead>(new Fp8Head(dim, ScaleFor(key), ScaleFor(value)));
      });
}

}  // namespace blockgtq
