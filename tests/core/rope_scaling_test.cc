// RoPE scalings against the frequencies and factors that transformers used (values printed by it for small
// configurations) and against their definitions' limits.
#include "src/core/rope_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace blockgtq {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

RopeConfig Plain(int dims, double base) { return {.head_dim = dims, .rotary_dims = dims, .freq_base = base}; }

void ExpectFrequencies(const RopeConfig& config, const std::vector<double>& expected) {
  const std::vector<double> actual = RopeFrequencies(config);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t j = 0; j < expected.size(); ++j)
    EXPECT_NEAR(actual[j], expected[j], 1e-6 * expected[j]) << "block " << j;
}

// transformers 5.24, Llama with rope_type llama3.
TEST(RopeScaling, Llama3EqualsTransformers) {
  RopeConfig config = Plain(16, 500000.0);
  RopeScaling scaling{.type = RopeScalingType::kLlama3, .factor = 8.0, .original_context = 64};
  EXPECT_EQ(*ApplyRopeScaling(scaling, 512, config), kAny);
  ExpectFrequencies(
      config, {1.0, 0.07940301299095154, 0.004700753837823868, 0.0009115831344388425, 0.00017677668074611574,
               3.428102354519069e-05, 6.647869668086059e-06, 1.289173155782919e-06});
  EXPECT_EQ(config.attention_factor, 1.0f);
}

// transformers 5.24, Qwen3 with rope_type yarn.
TEST(RopeScaling, YarnEqualsTransformers) {
  RopeConfig config = Plain(16, 1e6);
  RopeScaling scaling{.type = RopeScalingType::kYarn, .factor = 4.0, .original_context = 128};
  EXPECT_EQ(*ApplyRopeScaling(scaling, 512, config), kAny);
  ExpectFrequencies(
      config, {1.0, 0.11114246398210526, 0.007905694656074047, 0.0014058533124625683, 0.0002500000118743628,
               4.4456985051510856e-05, 7.905693564680405e-06, 1.405853367941745e-06});
  EXPECT_FLOAT_EQ(config.attention_factor, 1.138629436111989f);
}

// transformers 5.24, DeepSeek-V2 with yarn, mscale and mscale_all_dim: they cancel in cos and sin, and the
// softmax scale carries the square (0.2294427735858522 for 48 dims).
TEST(RopeScaling, YarnWithEqualMscalesLeavesCosAndSinAlone) {
  RopeConfig config = Plain(16, 10000.0);
  RopeScaling scaling{.type = RopeScalingType::kYarn, .factor = 40.0, .original_context = 64};
  scaling.mscale = scaling.mscale_all_dim = 0.707;
  ASSERT_TRUE(ApplyRopeScaling(scaling, 2560, config).ok());
  ExpectFrequencies(
      config, {1.0, 0.2134537249803543, 0.034999996423721313, 0.0007905694656074047, 0.0002500000118743628,
               7.905694656074047e-05, 2.499999936844688e-05, 7.905694474175107e-06});
  EXPECT_EQ(config.attention_factor, 1.0f);
  const double m = YarnMscale(40.0, 0.707);
  EXPECT_NEAR(m * m / std::sqrt(48.0), 0.2294427735858522, 1e-7);
}

TEST(RopeScaling, AGivenAttentionFactorReplacesTheComputedOne) {
  RopeConfig config = Plain(16, 1e6);
  RopeScaling scaling{.type = RopeScalingType::kYarn, .factor = 4.0, .original_context = 128};
  scaling.attention_factor = 1.5;
  ASSERT_TRUE(ApplyRopeScaling(scaling, 512, config).ok());
  EXPECT_EQ(config.attention_factor, 1.5f);
}

TEST(RopeScaling, LinearDividesEveryFrequency) {
  RopeConfig config = Plain(8, 10000.0);
  ASSERT_TRUE(ApplyRopeScaling({.type = RopeScalingType::kLinear, .factor = 4.0}, 100, config).ok());
  ExpectFrequencies(config, {0.25, 0.025, 0.0025, 0.00025});
}

TEST(RopeScaling, DynamicIsPlainUpToTheOriginalContextAndSaysSo) {
  RopeConfig config = Plain(8, 10000.0);
  const RopeScaling scaling{.type = RopeScalingType::kDynamic, .factor = 2.0, .original_context = 100};
  EXPECT_EQ(*ApplyRopeScaling(scaling, 100, config), 100);
  ExpectFrequencies(config, {1.0, 0.1, 0.01, 0.001});
}

// base' = base (factor n / original - (factor - 1))^(d / (d - 2)): at n = 2 original and factor 2, base
// 3^(4/3).
TEST(RopeScaling, DynamicRaisesTheBasePastTheOriginalContext) {
  RopeConfig config = Plain(8, 10000.0);
  const RopeScaling scaling{.type = RopeScalingType::kDynamic, .factor = 2.0, .original_context = 100};
  EXPECT_EQ(*ApplyRopeScaling(scaling, 200, config), 200);
  const double base = 10000.0 * std::pow(3.0, 4.0 / 3.0);
  ExpectFrequencies(config, {1.0, std::pow(base, -0.25), std::pow(base, -0.5), std::pow(base, -0.75)});
}

TEST(RopeScaling, LongRopeTakesTheFactorsOfTheLengthThatWillBeRun) {
  RopeScaling scaling{.type = RopeScalingType::kLongRope, .factor = 32.0, .original_context = 4096};
  scaling.short_factors = {1.0, 1.0, 1.5, 2.0};
  scaling.long_factors = {1.0, 2.0, 8.0, 32.0};
  RopeConfig few = Plain(8, 10000.0), many = Plain(8, 10000.0);
  EXPECT_EQ(*ApplyRopeScaling(scaling, 4096, few), 4096);
  EXPECT_EQ(*ApplyRopeScaling(scaling, 4097, many), kAny);
  ExpectFrequencies(few, {1.0, 0.1, 0.01 / 1.5, 0.0005});
  ExpectFrequencies(many, {1.0, 0.05, 0.00125, 0.001 / 32});
  EXPECT_NEAR(few.attention_factor, std::sqrt(1.0 + std::log(32.0) / std::log(4096.0)), 1e-6);
  EXPECT_EQ(few.attention_factor, many.attention_factor);
}

TEST(RopeScaling, PartialRotationScalesTheRotaryBlocksAlone) {
  RopeConfig config{.head_dim = 16, .rotary_dims = 8};
  ASSERT_TRUE(
      ApplyRopeScaling({.type = RopeScalingType::kYarn, .factor = 4.0, .original_context = 64}, 256, config)
          .ok());
  EXPECT_EQ(config.freq_divisors.size(), 4u);
  const std::vector<double> f = RopeFrequencies(config);
  for (size_t j = 4; j < 8; ++j) EXPECT_EQ(f[j], 0.0);
}

TEST(RopeScaling, ValuesThatMakeNoSenseAreNamed) {
  const auto message = [](const RopeScaling& scaling) {
    RopeConfig config = Plain(8, 10000.0);
    const Result<int64_t> result = ApplyRopeScaling(scaling, 100, config);
    return result.ok() ? std::string() : result.status().message();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(message({.type = RopeScalingType::kLinear, .factor = 0.0}).find("factor"), std::string::npos);
  EXPECT_NE(message({.type = RopeScalingType::kYarn, .factor = nan, .original_context = 9}).find("factor"),
            std::string::npos);
  EXPECT_NE(message({.type = RopeScalingType::kYarn, .factor = 2.0}).find("original_max_position"),
            std::string::npos);
  RopeScaling llama3{.type = RopeScalingType::kLlama3, .factor = 8.0, .original_context = 64};
  llama3.low_freq_factor = 4.0;
  EXPECT_NE(message(llama3).find("low_freq_factor"), std::string::npos);
  RopeScaling longrope{.type = RopeScalingType::kLongRope, .factor = 8.0, .original_context = 64};
  longrope.short_factors = {1, 1, 1, 1};
  longrope.long_factors = {1, 1, 1};
  EXPECT_NE(message(longrope).find("long_factor has 3"), std::string::npos);
  longrope.long_factors = {1, 1, 1, -1};
  EXPECT_NE(message(longrope).find("long_factor holds -1"), std::string::npos);
  // Finite, but not as the floats that rotate.
  EXPECT_NE(message({.type = RopeScalingType::kYarn, .factor = 1e300, .original_context = 16})
                .find("a frequency is divided by"),
            std::string::npos);
  longrope.short_factors.assign(longrope.short_factors.size(), 1e-300);
  longrope.long_factors = longrope.short_factors;
  EXPECT_NE(message(longrope).find("1e-300"), std::string::npos);
  RopeScaling yarn{.type = RopeScalingType::kYarn, .factor = 4.0, .original_context = 64};
  yarn.attention_factor = 1e300;
  EXPECT_NE(message(yarn).find("cos and sin are multiplied by 1e+300"), std::string::npos);
}

}  // namespace
}  // namespace blockgtq
