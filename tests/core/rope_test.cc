// RoPE against long double arithmetic, both pairings, partial rotation and every scaling parameter.
#include "src/core/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace blockgtq {
namespace {

std::vector<float> Ramp(int n) {
  std::vector<float> v(n);
  for (int i = 0; i < n; ++i) v[i] = std::sin(1.7f * i + 0.3f) * (1.0f + 0.1f * i);
  return v;
}

// The definition, channel by channel, in long double.
std::vector<long double> Expected(const RopeConfig& c, const std::vector<float>& in, int64_t position) {
  std::vector<long double> out(c.head_dim);
  const int half = c.rotary_dims / 2;
  for (int j = 0; j < half; ++j) {
    long double f =
        std::pow(static_cast<long double>(c.freq_base), -2.0L * j / static_cast<long double>(c.rotary_dims));
    f /= static_cast<long double>(c.linear_scale);
    if (!c.freq_divisors.empty()) f /= static_cast<long double>(c.freq_divisors[j]);
    const long double a = static_cast<long double>(position) * f;
    const bool neox = c.pairing == RopePairing::kNeox;
    const long double x = in[neox ? j : 2 * j], y = in[neox ? j + half : 2 * j + 1];
    out[2 * j] = c.attention_factor * (x * std::cos(a) - y * std::sin(a));
    out[2 * j + 1] = c.attention_factor * (x * std::sin(a) + y * std::cos(a));
  }
  for (int d = c.rotary_dims; d < c.head_dim; ++d) out[d] = in[d];
  return out;
}

std::vector<RopeConfig> Configs() {
  RopeConfig llama{.head_dim = 64, .rotary_dims = 64};
  RopeConfig qwen{.head_dim = 128, .rotary_dims = 128, .pairing = RopePairing::kNeox, .freq_base = 1e6};
  RopeConfig partial{.head_dim = 96, .rotary_dims = 48, .pairing = RopePairing::kNeox};
  RopeConfig scaled{.head_dim = 64, .rotary_dims = 64, .freq_base = 5e5, .linear_scale = 4.0};
  scaled.freq_divisors.resize(32, 1.0f);
  for (int j = 16; j < 32; ++j) scaled.freq_divisors[j] = 8.0f;
  scaled.attention_factor = 1.25f;
  return {llama, qwen, partial, scaled};
}

TEST(Rope, ApplyMatchesLongDoubleUpToAMillionTokens) {
  for (const RopeConfig& config : Configs()) {
    RopeTable table(config);
    table.Reserve(100);
    const std::vector<float> in = Ramp(config.head_dim);
    for (int64_t position : {0, 1, 63, 99, 100, 4097, 1000000}) {
      std::vector<float> out(config.head_dim);
      table.Apply(in.data(), position, out.data());
      const std::vector<long double> expected = Expected(config, in, position);
      for (int d = 0; d < config.head_dim; ++d) {
        ASSERT_NEAR(out[d], static_cast<double>(expected[d]), 3e-6) << "dim " << d << " at " << position;
      }
    }
  }
}

TEST(Rope, TabledAndUntabledPositionsGiveTheSameBits) {
  for (const RopeConfig& config : Configs()) {
    RopeTable empty(config), full(config);
    full.Reserve(40);
    full.Reserve(300);  // growth keeps what is there
    ASSERT_EQ(full.positions(), 300);
    ASSERT_EQ(empty.positions(), 0);
    const std::vector<float> in = Ramp(config.head_dim);
    std::vector<float> a(config.head_dim), b(config.head_dim);
    for (int64_t position : {0, 39, 40, 299}) {
      empty.Rotate(in.data(), position, a.data());
      full.Rotate(in.data(), position, b.data());
      EXPECT_EQ(a, b);
    }
  }
}

TEST(Rope, ApplyIsRotateAfterToBlockOrder) {
  for (const RopeConfig& config : Configs()) {
    RopeTable table(config);
    const std::vector<float> in = Ramp(config.head_dim);
    std::vector<float> ordered(config.head_dim), rotated(config.head_dim), applied(config.head_dim);
    table.ToBlockOrder(in.data(), ordered.data());
    table.Rotate(ordered.data(), 17, rotated.data());
    table.Apply(in.data(), 17, applied.data());
    EXPECT_EQ(rotated, applied);
  }
}

TEST(Rope, DotProductsDependOnTheDistanceAlone) {
  RopeTable table(Configs()[1]);
  const std::vector<float> q = Ramp(128);
  std::vector<float> k = q;
  std::rotate(k.begin(), k.begin() + 5, k.end());
  const auto logit = [&](int64_t tq, int64_t tk) {
    std::vector<float> a(128), b(128);
    table.Apply(q.data(), tq, a.data());
    table.Apply(k.data(), tk, b.data());
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  const double near = logit(40, 7), far = logit(100040, 100007);
  EXPECT_NEAR(near, far, 1e-3);
  EXPECT_GT(std::fabs(near - logit(41, 7)), 1e-1);
}

TEST(Rope, NonRotaryBlocksHaveFrequencyZero) {
  const std::vector<double> f = RopeFrequencies(Configs()[2]);
  ASSERT_EQ(f.size(), 48u);
  EXPECT_EQ(f[0], 1.0);
  EXPECT_GT(f[23], 0.0);
  for (int j = 24; j < 48; ++j) EXPECT_EQ(f[j], 0.0);
}

}  // namespace
}  // namespace blockgtq
