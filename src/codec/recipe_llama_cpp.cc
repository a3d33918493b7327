// Recipes q8_0 and q4_0: llama.cpp's quantised KV cache as it is today. Vectors are rotated by Hadamard
// matrices where the head dim is a multiple of 64 (keys: of the largest size 64 * 2^n that divides it;
// values: of 64), then stored in blocks of 32 with an fp16 scale (ggml's block_q8_0 and block_q4_0). The
// rotation is undone at reading: queries and outputs are rotated instead there, which is the same. Source:
// ggml-org/llama.cpp, pull request 21038 and src/llama-kv-cache.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "src/codec/simulated_parts.h"
#include "src/core/half.h"

namespace blockgtq {
namespace {

constexpr int kBlock = 32;
constexpr int kSmallestRotation = 64;

float HalfOf(float x) { return HalfToFloat(FloatToHalf(x)); }

// scale = largest magnitude / 127; a code is the nearest whole number, ties away from zero.
void RoundTripQ8(std::span<float> block) {
  float largest = 0;
  for (float x : block) largest = std::max(largest, std::abs(x));
  const float scale = largest / 127.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f, stored = HalfOf(scale);
  for (float& x : block) x = std::round(x * inverse) * stored;
}

// scale = the element of the largest magnitude / -8, sign kept: codes 0..15 stand for -8..7.
void RoundTripQ4(std::span<float> block) {
  float extreme = 0;
  for (float x : block) {
    if (std::abs(x) > std::abs(extreme)) extreme = x;
  }
  const float scale = extreme / -8.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f, stored = HalfOf(scale);
  for (float& x : block) {
    const int code = std::min(15, static_cast<int>(x * inverse + 8.5f));
    x = static_cast<float>(code - 8) * stored;
  }
}

struct LlamaCppFormat {
  void (*round_trip)(std::span<float> block);
  int block_bytes;
};

class LlamaCppHead : public SimulatedHead {
 public:
  LlamaCppHead(const RopeTable& rope, const LlamaCppFormat& format)
      : dim_(rope.config().head_dim), format_(format), model_channel_(static_cast<size_t>(dim_)) {
    std::vector<float> channels(model_channel_.size());
    for (int d = 0; d < dim_; ++d) channels[static_cast<size_t>(d)] = static_cast<float>(d);
    std::vector<float> ordered(channels.size());
    rope.ToBlockOrder(channels.data(), ordered.data());
    for (size_t d = 0; d < ordered.size(); ++d) model_channel_[d] = static_cast<size_t>(ordered[d]);
    if (dim_ % kSmallestRotation == 0) {
      key_rotation_ = value_rotation_ = kSmallestRotation;
      while (dim_ % (2 * key_rotation_) == 0) key_rotation_ *= 2;
    }
  }

  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t) const override {
    std::vector<float> key(model_channel_.size());
    for (size_t first = 0; first < keys.size(); first += key.size()) {
      // Blocks of 32 and the rotation are over the model file's channel order.
      for (size_t d = 0; d < key.size(); ++d) key[model_channel_[d]] = keys[first + d];
      RoundTrip(key, key_rotation_);
      for (size_t d = 0; d < key.size(); ++d) keys[first + d] = key[model_channel_[d]];
    }
  }

  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (size_t first = 0; first < values.size(); first += model_channel_.size()) {
      RoundTrip(values.subspan(first, model_channel_.size()), value_rotation_);
    }
  }

  double bytes_per_token() const override { return 2 * key_bytes_per_token(); }
  double key_bytes_per_token() const override {
    return static_cast<double>(dim_) / kBlock * format_.block_bytes;
  }

 private:
  void RoundTrip(std::span<float> x, int rotation) const {
    if (rotation > 0) HadamardBlocks(x, rotation);
    for (size_t first = 0; first < x.size(); first += kBlock) format_.round_trip(x.subspan(first, kBlock));
    if (rotation > 0) HadamardBlocks(x, rotation);
  }

  int dim_;
  LlamaCppFormat format_;
  std::vector<size_t> model_channel_;          // [dim] of each channel in block order
  int key_rotation_ = 0, value_rotation_ = 0;  // 0: none
};

Result<SimulatedHeadList> SimulateLlamaCpp(std::string_view recipe, const LlamaCppFormat& format,
                                           const SimulationInput& input) {
  const int dim = input.rope->config().head_dim;
  if (dim % kBlock != 0) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("recipe {}: head dim {} is no multiple of its blocks of {}", recipe, dim, kBlock));
  }
  return SimulateEach(input,
                      [&](int, int, const HeadCalibration*) -> Result<std::unique_ptr<const SimulatedHead>> {
                        return std::unique_ptr<const SimulatedHead>(new LlamaCppHead(*input.rope, format));
                      });
}

}  // namespace

Result<SimulatedHeadList> SimulateQ8(const SimulationInput& input, const RecipeOptions& options) {
  BGTQ_RETURN_IF_ERROR(ExpectBits("q8_0", 8, 8, options));
  return SimulateLlamaCpp("q8_0", {RoundTripQ8, 34}, input);
}

Result<SimulatedHeadList> SimulateQ4(const SimulationInput& input, const RecipeOptions& options) {
  BGTQ_RETURN_IF_ERROR(ExpectBits("q4_0", 4, 4, options));
  return SimulateLlamaCpp("q4_0", {RoundTripQ4, 18}, input);
}

}  // namespace blockgtq
