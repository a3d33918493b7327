// The small vector operations against double arithmetic, on every SIMD target this machine has.
#include "src/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "src/cpu/simd_targets.h"
//
#include "hwy/targets.h"

namespace blockgtq::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kSizes[] = {1, 3, 15, 16, 17, 64, 576, 896, 1001};

std::vector<float> Normal(int64_t count, uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

class ElementwiseOnTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(ElementwiseOnTarget, RmsNormIsExactToThreeRoundings) {
  for (int64_t n : kSizes) {
    const auto x = Normal(n, 1, 100), weight = Normal(n, 2, 1);
    std::vector<float> y(x.size(), kNan);
    RmsNorm(x.data(), weight.data(), 1e-5f, n, y.data());
    double squares = 0;
    for (float value : x) squares += double{value} * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + double{1e-5f});
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = x[i] * factor * weight[i];
      EXPECT_NEAR(y[i], expected, 2e-7 * std::fabs(expected)) << n << " at " << i;
    }
  }
}

TEST_P(ElementwiseOnTarget, RmsNormMayWorkInPlaceAndKeepsLargeValuesFinite) {
  std::vector<float> x(70, 1e25f);  // squares overflow in float
  const std::vector<float> weight(70, 2.0f);
  RmsNorm(x.data(), weight.data(), 1e-6f, 70, x.data());
  for (float value : x) EXPECT_NEAR(value, 2.0f, 1e-6f);
}

TEST_P(ElementwiseOnTarget, SiluMulIsAccurateToOneMillionthOverItsWholeRange) {
  std::vector<float> gate;
  for (float g = -86.5f; g < 200; g += 0.0173f) gate.push_back(g);
  for (float g = 1e-30f; g < 1; g *= 3) gate.insert(gate.end(), {g, -g});
  gate.push_back(0);
  const auto up = Normal(static_cast<int64_t>(gate.size()), 3, 1);
  auto y = gate;
  SiluMul(y.data(), up.data(), static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
    EXPECT_NEAR(y[i], expected, 1e-6 * std::fabs(expected) + 1e-44) << gate[i];
  }
}

TEST_P(ElementwiseOnTarget, SiluMulOfVeryNegativeGatesIsNothing) {
  for (float gate : {-88.0f, -100.0f, -1e4f, -1e30f}) {
    std::vector<float> y(20, gate);
    const std::vector<float> up(20, 1.0f);
    SiluMul(y.data(), up.data(), 20);
    for (float value : y) EXPECT_NEAR(value, 0.0f, 2e-38f * std::fabs(gate)) << gate;
  }
}

TEST_P(ElementwiseOnTarget, SiluMulWritesItsRowOnlyAndShowsNan) {
  for (int64_t n : kSizes) {
    auto gate = Normal(n + 1, 4, 2);
    const float beyond = gate.back();
    const auto up = Normal(n, 5, 1);
    gate[static_cast<size_t>(n - 1)] = kNan;
    SiluMul(gate.data(), up.data(), n);
    EXPECT_EQ(gate.back(), beyond);
    EXPECT_TRUE(std::isnan(gate[static_cast<size_t>(n - 1)]));
    if (n > 1) {
      EXPECT_TRUE(std::isfinite(gate[0]));
    }
  }
}

TEST_P(ElementwiseOnTarget, GeluTanhMulIsAccurateToTwoMillionthsOfItsGate) {
  std::vector<float> gate;
  for (float g = -30; g < 100; g += 0.0173f) gate.push_back(g);
  gate.insert(gate.end(), {0.0f, -1e4f, -1e30f, 1e4f, 1e30f});
  const auto up = Normal(static_cast<int64_t>(gate.size()), 3, 1);
  auto y = gate;
  GeluTanhMul(y.data(), up.data(), static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double z = gate[i];
    const double inner = std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z);
    const double expected = 0.5 * z * (1 + std::tanh(inner)) * up[i];
    // tanh's 1 + x loses what is below its rounding; so do very negative gates here.
    EXPECT_NEAR(y[i], expected, 2e-6 * std::fabs(expected) + 3e-7 * std::fabs(up[i])) << gate[i];
  }
}

TEST_P(ElementwiseOnTarget, AddIsTheFloatSum) {
  for (int64_t n : kSizes) {
    const auto x = Normal(n, 6, 1), before = Normal(n, 7, 1);
    auto y = before;
    Add(x.data(), n, y.data());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], before[i] + x[i]);
  }
}

TEST_P(ElementwiseOnTarget, LogSumExpMatchesDoubleForSmallAndHugeLogits) {
  for (int64_t n : {1, 2, 15, 17, 49152, 151936 - 5}) {
    for (float offset : {0.0f, 300.0f, -5000.0f}) {
      auto x = Normal(n, 8, 6);
      for (float& value : x) value += offset;
      long double sum = 0;
      for (float value : x) sum += std::exp(static_cast<long double>(value) - offset);
      const double expected = static_cast<double>(offset + std::log(sum));
      EXPECT_NEAR(LogSumExp(x.data(), n), expected, 2e-7) << n << ", " << offset;
    }
  }
}

TEST_P(ElementwiseOnTarget, LogSumExpOfInfinitiesAndNanIsWhatItMustBe) {
  EXPECT_EQ(LogSumExp(nullptr, 0), -kInfinity);
  std::vector<float> x(37, -kInfinity);
  EXPECT_EQ(LogSumExp(x.data(), 37), -kInfinity);
  x[20] = 3;
  EXPECT_NEAR(LogSumExp(x.data(), 37), 3.0, 1e-12);
  x[36] = kInfinity;
  EXPECT_EQ(LogSumExp(x.data(), 37), kInfinity);
  x[5] = kNan;
  EXPECT_TRUE(std::isnan(LogSumExp(x.data(), 37)));
  x[36] = 0;
  EXPECT_TRUE(std::isnan(LogSumExp(x.data(), 37)));
}

double Divergence(const std::vector<float>& base, const std::vector<float>& test) {
  const int64_t n = static_cast<int64_t>(base.size());
  return KlDivergence(base.data(), LogSumExp(base.data(), n), test.data(), n);
}

TEST_P(ElementwiseOnTarget, KlDivergenceMatchesDoubleForLargeAndTinyOnes) {
  for (int64_t n : {1, 2, 15, 17, 49152, 151936 - 5}) {
    for (float change : {3.0f, 0.1f, 0.003f}) {
      for (float offset : {0.0f, 100.0f}) {
        const auto base = Normal(n, 8, 6);
        auto test = Normal(n, 9, change);
        for (size_t i = 0; i < test.size(); ++i) test[i] += base[i] + offset;
        long double base_sum = 0, test_sum = 0, expected = 0;
        for (float x : base) base_sum += std::exp(static_cast<long double>(x));
        for (float x : test) test_sum += std::exp(static_cast<long double>(x) - offset);
        for (size_t i = 0; i < test.size(); ++i) {
          const long double log_p = base[i] - std::log(base_sum);
          expected +=
              std::exp(log_p) * (log_p - (static_cast<long double>(test[i]) - offset - std::log(test_sum)));
        }
        // Of tiny ones it shows how exact the two sums of exponentials are.
        EXPECT_NEAR(Divergence(base, test), static_cast<double>(expected),
                    2e-7 + 1e-5 * static_cast<double>(expected))
            << n << ", " << change << ", " << offset;
      }
    }
  }
}

TEST_P(ElementwiseOnTarget, KlDivergenceOfInfinitiesAndNanIsWhatItMustBe) {
  const std::vector<float> even(37, 1.0f);
  EXPECT_EQ(Divergence(even, even), 0);
  std::vector<float> half = even;
  for (size_t i = 0; i < 18; ++i) half[i] = -kInfinity;  // of no probability in both
  EXPECT_NEAR(Divergence(half, half), 0, 1e-12);
  EXPECT_NEAR(Divergence(half, even), std::log(37.0 / 19.0), 1e-6);
  EXPECT_EQ(Divergence(even, half), kInfinity);
  for (const float bad : {kNan, kInfinity}) {
    for (const size_t at : {size_t{3}, size_t{36}}) {
      std::vector<float> x = even;
      x[at] = bad;
      EXPECT_TRUE(std::isnan(Divergence(x, even))) << bad << " at " << at;
      EXPECT_TRUE(std::isnan(Divergence(even, x))) << bad << " at " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ElementwiseOnTarget, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

}  // namespace
}  // namespace blockgtq::cpu
