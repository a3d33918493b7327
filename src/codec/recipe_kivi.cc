// Recipes kivi and kivi-scale-only: keys by channel over groups of 32 tokens, values by token over groups of
// 32 dims, each group over its own range with an fp16 scale and zero point (KIVI, arXiv 2402.02750). kivi
// keeps the tokens of unfinished groups exactly: its residual of 128 is the cache's window. kivi-scale-only
// is what the Block-GTQ paper compares with: nothing stays exact, so a group of keys is coded over the range
// of the group before it, and the first group over the calibration's.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "src/codec/head_builder.h"
#include "src/codec/simulated_parts.h"

namespace blockgtq {
namespace {

constexpr int kGroup = 32;
constexpr double kScaleAndZero = 4;  // bytes a group
constexpr std::array<int, 8> kWidths = {1, 2, 3, 4, 5, 6, 7, 8};

struct KiviBits {
  int key = 0, value = 0;
};

Result<KiviBits> BitsOf(std::string_view recipe, const RecipeOptions& options) {
  KiviBits bits;
  BGTQ_ASSIGN_OR_RETURN(bits.key, WholeWidth(recipe, "K", options.k_bits, kWidths));
  BGTQ_ASSIGN_OR_RETURN(bits.value, WholeWidth(recipe, "V", options.v_bits, kWidths));
  return bits;
}

/// The smallest and largest value of each channel, [dim].
struct ChannelRanges {
  std::vector<float> low, high;

  /// vectors [tokens > 0, dim]
  static ChannelRanges Of(std::span<const float> vectors, size_t dim) {
    ChannelRanges r{{vectors.begin(), vectors.begin() + static_cast<std::ptrdiff_t>(dim)}, {}};
    r.high = r.low;
    for (size_t i = dim; i < vectors.size(); ++i) {
      r.low[i % dim] = std::min(r.low[i % dim], vectors[i]);
      r.high[i % dim] = std::max(r.high[i % dim], vectors[i]);
    }
    return r;
  }

  void RoundTrip(std::span<float> keys, int bits) const {
    const size_t dim = low.size();
    for (size_t d = 0; d < dim; ++d) {
      const UniformRange range = UniformRange::Of(low[d], high[d], bits);
      for (size_t i = d; i < keys.size(); i += dim) keys[i] = range.RoundTrip(keys[i], bits);
    }
  }
};

/// Calls f(first token, tokens) for each part of a range of positions that lies in one group.
template <typename F>
void ForGroups(int64_t first_position, int64_t count, F f) {
  for (int64_t t = 0; t < count;) {
    const int64_t tokens = std::min(count - t, kGroup - (first_position + t) % kGroup);
    f(t, tokens);
    t += tokens;
  }
}

class KiviHead : public SimulatedHead {
 public:
  KiviHead(int head_dim, KiviBits bits) : dim_(static_cast<size_t>(head_dim)), bits_(bits) {}

  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t first_position) const override {
    ForGroups(first_position, static_cast<int64_t>(keys.size() / dim_), [&](int64_t first, int64_t tokens) {
      const std::span<float> group =
          keys.subspan(static_cast<size_t>(first) * dim_, static_cast<size_t>(tokens) * dim_);
      ChannelRanges::Of(group, dim_).RoundTrip(group, bits_.key);
    });
  }

  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (size_t first = 0; first < values.size(); first += dim_) {
      RoundTripGroups(values.subspan(first, dim_), kGroup, bits_.value);
    }
  }

  double bytes_per_token() const override {
    const size_t value_groups = (dim_ + kGroup - 1) / kGroup;
    return key_bytes_per_token() + static_cast<double>(dim_) * bits_.value / 8 +
           kScaleAndZero * static_cast<double>(value_groups);
  }
  double key_bytes_per_token() const override {
    return static_cast<double>(dim_) * (bits_.key / 8.0 + kScaleAndZero / kGroup);
  }
  int token_unit() const override { return kGroup; }

 protected:
  size_t dim_;
  KiviBits bits_;
};

class KiviScaleOnlyHead : public KiviHead {
 public:
  KiviScaleOnlyHead(int head_dim, KiviBits bits, ChannelRanges seed)
      : KiviHead(head_dim, bits), seed_(std::move(seed)) {}

  void RoundTripKeys(std::span<const float> before, std::span<float> keys,
                     int64_t first_position) const override {
    // Tokens as they were, from position `start` on.
    std::vector<float> all(before.begin(), before.end());
    all.insert(all.end(), keys.begin(), keys.end());
    const int64_t start = first_position - static_cast<int64_t>(before.size() / dim_);
    ForGroups(first_position, static_cast<int64_t>(keys.size() / dim_), [&](int64_t first, int64_t tokens) {
      const std::span<float> group =
          keys.subspan(static_cast<size_t>(first) * dim_, static_cast<size_t>(tokens) * dim_);
      const int64_t previous = ((first_position + first) / kGroup - 1) * kGroup;
      if (previous < start) {
        seed_.RoundTrip(group, bits_.key);
        return;
      }
      const std::span<const float> of_previous = std::span<const float>(all).subspan(
          static_cast<size_t>(previous - start) * dim_, static_cast<size_t>(kGroup) * dim_);
      ChannelRanges::Of(of_previous, dim_).RoundTrip(group, bits_.key);
    });
  }

  int token_unit() const override { return 1; }
  int history_tokens() const override { return 2 * kGroup - 1; }

 private:
  ChannelRanges seed_;
};

}  // namespace

Result<SimulatedHeadList> SimulateKivi(const SimulationInput& input, const RecipeOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(const KiviBits bits, BitsOf("kivi", options));
  const int dim = input.rope->config().head_dim;
  return SimulateEach(input,
                      [&](int, int, const HeadCalibration*) -> Result<std::unique_ptr<const SimulatedHead>> {
                        return std::unique_ptr<const SimulatedHead>(new KiviHead(dim, bits));
                      });
}

Result<SimulatedHeadList> SimulateKiviScaleOnly(const SimulationInput& input, const RecipeOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(const KiviBits bits, BitsOf("kivi-scale-only", options));
  const int dim = input.rope->config().head_dim;
  return SimulateEach(
      input,
      [&](int, int, const HeadCalibration* calibration) -> Result<std::unique_ptr<const SimulatedHead>> {
        std::vector<float> keys(calibration->keys.size());  // as the cache sees them: after RoPE
        for (size_t i = 0; i < keys.size(); i += static_cast<size_t>(dim)) {
          input.rope->Rotate(&calibration->keys[i], static_cast<int64_t>(i) / dim, &keys[i]);
        }
        return std::unique_ptr<const SimulatedHead>(
            new KiviScaleOnlyHead(dim, bits, ChannelRanges::Of(keys, static_cast<size_t>(dim))));
      });
}

}  // namespace blockgtq
