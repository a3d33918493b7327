// Recipe pmkvq: PM-KVQ (arXiv 2505.18610). Vectors are coded uniformly over their own range in groups of 128
// dims (a head's, where it has fewer), bf16 scale and zero point; codes begin at 16 bits and are halved in
// place, 16 to 8 to 4 to 2, as memory fills, each layer down to its own width. A layer's keys have the memory
// that memory_tokens tokens' codes take at their last width, its values likewise; all of a side's codes are
// halved when they outgrow it, and tokens that come later are halved as often. Past that length they stay at
// the last width. Without memory_tokens memory is full from the start. Keys are first divided, pair of
// channels by pair, by a power of their largest magnitude (the paper's SmoothAttention).
//
// The widths of the layers solve an integer programme: the least sum of sensitivities within the average
// width. The paper's sensitivities are errors times the loss's gradients; without a backward pass these are
// the expected square errors of the logits (keys) and of the values relative to their size. Keys and values
// have a programme each, so that their budgets may differ.
// Source: the paper, and thu-nics/PM-KVQ (quantizer.py, progressive_quantized_cache.py, allocation.py).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "src/codec/simulated_parts.h"
#include "src/core/half.h"

namespace blockgtq {
namespace {

constexpr std::array<int, 3> kWidths = {2, 4, 8};
constexpr size_t kGroup = 128;
constexpr int kFirstWidth = 16;
constexpr size_t kMeasuredTokens = 128;  // of a head, spread over the calibration
constexpr int kExponents = 20;           // of the pairs' sizes: 1, 0.95, .. 0.05
constexpr float kSmallestScale = 1e-4f, kLargestScale = 1e4f;

float Bf16Of(float x) { return Bf16ToFloat(FloatToBf16(x)); }

void RoundTripRun(std::span<float> x, int width) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const float zero = Bf16Of(*low), largest = static_cast<float>((1 << kFirstWidth) - 1);
  const float first_scale = Bf16Of((*high - *low) / largest);
  float scale = first_scale;
  for (int bits = kFirstWidth; bits > width; bits /= 2) {
    scale = Bf16Of(scale * static_cast<float>((1 << (bits / 2)) + 1));
  }
  for (float& v : x) {
    int code = 0;
    if (first_scale > 0) {
      code = static_cast<int>(std::nearbyint(std::clamp((v - zero) / first_scale, 0.0f, largest)));
    }
    for (int bits = kFirstWidth; bits > width; bits /= 2) code = HalveCode(code, bits);
    v = Bf16Of(static_cast<float>(code) * scale + zero);
  }
}

void RoundTripVector(std::span<float> x, int width) {
  while (!x.empty()) {
    const std::span<float> run = x.first(std::min(x.size(), kGroup));
    RoundTripRun(run, width);
    x = x.subspan(run.size());
  }
}

/// Keys divided by `pair_scale` [dim / 2] while they are coded.
void RoundTripScaledKey(std::span<float> key, std::span<const float> pair_scale, int width) {
  for (size_t d = 0; d < key.size(); ++d) key[d] /= pair_scale[d / 2];
  RoundTripVector(key, width);
  for (size_t d = 0; d < key.size(); ++d) key[d] *= pair_scale[d / 2];
}

/// What a side's codes are at a number of coded tokens: the widest that fits in memory_tokens codes of `last`
/// bits, not below `last`. memory_tokens = 0: `last`.
int WidthAt(int64_t coded, int last, int64_t memory_tokens) {
  int width = kFirstWidth;
  while (width > last && (memory_tokens == 0 || coded > memory_tokens * last / width)) width /= 2;
  return width;
}

class PmKvqHead : public SimulatedHead {
 public:
  PmKvqHead(std::vector<float> pair_scale, int key_width, int value_width)
      : pair_scale_(std::move(pair_scale)), key_width_(key_width), value_width_(value_width) {}

  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t) const override {
    for (size_t first = 0; first < keys.size(); first += dim()) {
      RoundTripScaledKey(keys.subspan(first, dim()), pair_scale_, key_width_);
    }
  }
  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (size_t first = 0; first < values.size(); first += dim()) {
      RoundTripVector(values.subspan(first, dim()), value_width_);
    }
  }
  double bytes_per_token() const override { return Bytes(key_width_) + Bytes(value_width_); }
  double key_bytes_per_token() const override { return Bytes(key_width_); }

 private:
  size_t dim() const { return 2 * pair_scale_.size(); }
  double Bytes(int width) const {
    const size_t groups = (dim() + kGroup - 1) / kGroup;
    return static_cast<double>(dim()) * width / 8 + 4.0 * static_cast<double>(groups);  // scale, zero point
  }

  std::vector<float> pair_scale_;
  int key_width_, value_width_;
};

/// A head whose codes narrow as the sequence grows.
class NarrowingHead : public PmKvqHead {
 public:
  NarrowingHead(const std::vector<float>& pair_scale, int key_width, int value_width, int64_t memory_tokens)
      : PmKvqHead(pair_scale, key_width, value_width) {
    // Each side changes at the first count that its width has no room for.
    std::vector<int64_t> from = {0};
    for (const int last : {key_width, value_width}) {
      for (int width = kFirstWidth; width > last; width /= 2)
        from.push_back(memory_tokens * last / width + 1);
    }
    std::sort(from.begin(), from.end());
    from.erase(std::unique(from.begin(), from.end()), from.end());
    for (const int64_t coded : from) {
      stages_.push_back(
          {coded, std::make_unique<PmKvqHead>(pair_scale, WidthAt(coded, key_width, memory_tokens),
                                              WidthAt(coded, value_width, memory_tokens))});
    }
  }

  const SimulatedHead& At(int64_t coded) const override { return *(After(coded) - 1)->head; }
  int64_t ChangesAfter(int64_t coded) const override {
    const auto next = After(coded);
    return next == stages_.end() ? kNever : next->from;
  }

 private:
  struct Stage {
    int64_t from;  // coded tokens
    std::unique_ptr<const SimulatedHead> head;
  };
  std::vector<Stage>::const_iterator After(int64_t coded) const {
    return std::upper_bound(stages_.begin(), stages_.end(), coded,
                            [](int64_t count, const Stage& stage) { return count < stage.from; });
  }
  std::vector<Stage> stages_;  // ascending, the first from 0
};

/// A sample of one head's calibration, and what follows from it.
class MeasuredHead {
 public:
  MeasuredHead(const HeadCalibration& calibration, const RopeTable& rope)
      : dim_(static_cast<size_t>(rope.config().head_dim)),
        query_energy_(calibration.statistics.query_energy),
        largest_(dim_ / 2, 0.0f) {
    const size_t tokens = calibration.keys.size() / dim_;
    for (size_t i = 0; i < calibration.keys.size(); i += 2) {
      float& largest = largest_[i % dim_ / 2];  // of the pair, whatever its position turns it to
      largest = std::max(largest, std::hypot(calibration.keys[i], calibration.keys[i + 1]));
    }
    const size_t step = std::max<size_t>(tokens / kMeasuredTokens, 1);
    std::vector<float> key(dim_);
    for (size_t t = 0; t < tokens; t += step) {
      rope.Rotate(&calibration.keys[t * dim_], static_cast<int64_t>(t), key.data());
      keys_.insert(keys_.end(), key.begin(), key.end());
      values_.insert(values_.end(), &calibration.values[t * dim_], &calibration.values[t * dim_] + dim_);
    }
  }

  std::vector<float> PairScales(double exponent) const {
    std::vector<float> scales(largest_.size());
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] =
          std::clamp(std::pow(largest_[i], static_cast<float>(exponent)), kSmallestScale, kLargestScale);
    }
    return scales;
  }

  /// Expected square error of a logit, scaled by 1 / sqrt(dim): 1/2 sum_i Q_i E |e(i)|^2 / dim.
  double KeyError(std::span<const float> pair_scale, int width) const {
    double sum = 0;
    std::vector<float> read(dim_);
    for (size_t first = 0; first < keys_.size(); first += dim_) {
      std::copy_n(&keys_[first], dim_, read.begin());
      RoundTripScaledKey(read, pair_scale, width);
      for (size_t d = 0; d < dim_; ++d) {
        const double error = double{read[d]} - keys_[first + d];
        sum += query_energy_[d / 2] * error * error;
      }
    }
    const size_t tokens = keys_.size() / dim_;
    return sum / static_cast<double>(2 * tokens * dim_);
  }

  /// Square error of the values relative to their size.
  double ValueError(int width) const {
    double error = 0, energy = 0;
    std::vector<float> read(dim_);
    for (size_t first = 0; first < values_.size(); first += dim_) {
      std::copy_n(&values_[first], dim_, read.begin());
      RoundTripVector(read, width);
      for (size_t d = 0; d < dim_; ++d) {
        const double v = values_[first + d], e = read[d] - v;
        error += e * e;
        energy += v * v;
      }
    }
    return energy > 0 ? error / energy : 0;
  }

 private:
  size_t dim_;
  std::vector<double> query_energy_;
  std::vector<float> largest_;        // [dim / 2] magnitude of a pair
  std::vector<float> keys_, values_;  // [tokens, dim], keys after RoPE
};

/// The exponent of a layer's pair sizes that gives its keys the least error at a width.
double BestExponent(std::span<const MeasuredHead> layer, int width) {
  double best = 0, least = std::numeric_limits<double>::infinity();
  for (int n = 0; n < kExponents; ++n) {
    const double exponent = 1 - static_cast<double>(n) / kExponents;
    double error = 0;
    for (const MeasuredHead& head : layer) error += head.KeyError(head.PairScales(exponent), width);
    if (error < least) {
      least = error;
      best = exponent;
    }
  }
  return best;
}

Status CheckBits(std::string_view side, double bits) {
  if (bits >= kWidths.front() && bits <= kWidths.back()) return Status::Ok();
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("recipe pmkvq: {} bits {} asked for, its layers have 2, 4 or 8: give 2 to 8", side, bits));
}

}  // namespace

Result<SimulatedHeadList> SimulatePmKvq(const SimulationInput& input, const RecipeOptions& options) {
  BGTQ_RETURN_IF_ERROR(CheckBits("K", options.k_bits));
  BGTQ_RETURN_IF_ERROR(CheckBits("V", options.v_bits));
  std::vector<MeasuredHead> measured;
  measured.reserve(input.calibration.size());
  for (const HeadCalibration& calibration : input.calibration)
    measured.emplace_back(calibration, *input.rope);

  // [layers][widths]
  std::vector<std::vector<double>> exponent(input.layers), key_cost(input.layers), value_cost(input.layers);
  for (int layer = 0; layer < input.layers; ++layer) {
    const std::span<const MeasuredHead> heads(&measured[static_cast<size_t>(layer) * input.kv_heads],
                                              static_cast<size_t>(input.kv_heads));
    for (int width : kWidths) {
      exponent[layer].push_back(BestExponent(heads, width));
      double key = 0, value = 0;
      for (const MeasuredHead& head : heads) {
        key += head.KeyError(head.PairScales(exponent[layer].back()), width);
        value += head.ValueError(width);
      }
      key_cost[layer].push_back(key);
      value_cost[layer].push_back(value);
    }
  }
  const std::vector<int> key_choice = ChooseLayerWidths(key_cost, kWidths, options.k_bits);
  const std::vector<int> value_choice = ChooseLayerWidths(value_cost, kWidths, options.v_bits);
  return SimulateEach(
      input,
      [&](int layer, int kv_head, const HeadCalibration*) -> Result<std::unique_ptr<const SimulatedHead>> {
        const MeasuredHead& head = measured[static_cast<size_t>(layer) * input.kv_heads + kv_head];
        std::vector<float> scales = head.PairScales(exponent[layer][key_choice[layer]]);
        const int key_width = kWidths[key_choice[layer]], value_width = kWidths[value_choice[layer]];
        if (options.memory_tokens == 0) {
          return std::unique_ptr<const SimulatedHead>(
              new PmKvqHead(std::move(scales), key_width, value_width));
        }
        return std::unique_ptr<const SimulatedHead>(
            new NarrowingHead(scales, key_width, value_width, options.memory_tokens));
      });
}

}  // namespace blockgtq
