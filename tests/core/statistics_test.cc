// Statistics of a head against two-pass sums, including a mean that holds nearly all energy.
#include "src/core/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>
#include <vector>

namespace blockgtq {
namespace {

TEST(Statistics, MatchTwoPassSums) {
  constexpr int kDim = 8, kTokens = 500, kHeads = 3;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  StatisticsAccumulator accumulator(kDim);
  std::vector<std::vector<float>> queries, keys;
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      std::vector<float> q(kDim);
      for (int d = 0; d < kDim; ++d) q[d] = normal(rng) * (1 + d);
      queries.push_back(q);
      accumulator.AddQuery(q.data());
    }
    std::vector<float> k(kDim);
    for (int d = 0; d < kDim; ++d) k[d] = 300.0f * (d == 2) + normal(rng) * (1 + d);
    keys.push_back(k);
    accumulator.AddKey(k.data());
  }
  const HeadStatistics s = accumulator.Finish();
  EXPECT_EQ(s.tokens, kTokens);
  for (int d = 0; d < kDim; ++d) {
    long double mean = 0;
    for (const auto& k : keys) mean += k[d];
    EXPECT_NEAR(s.key_mean[d], static_cast<double>(mean / kTokens), 1e-10);
  }
  for (int i = 0; i < kDim / 2; ++i) {
    long double q2 = 0, k2 = 0, c2 = 0;
    for (const auto& q : queries)
      q2 += (long double)q[2 * i] * q[2 * i] + (long double)q[2 * i + 1] * q[2 * i + 1];
    for (const auto& k : keys) {
      for (int e = 0; e < 2; ++e) {
        const long double x = k[2 * i + e], c = x - s.key_mean[2 * i + e];
        k2 += x * x;
        c2 += c * c;
      }
    }
    EXPECT_NEAR(s.query_energy[i] / static_cast<double>(q2 / (kTokens * kHeads)), 1.0, 1e-12);
    EXPECT_NEAR(s.key_energy[i] / static_cast<double>(k2 / kTokens), 1.0, 1e-12);
    EXPECT_NEAR(s.centred_key_energy[i] / static_cast<double>(c2 / kTokens), 1.0, 1e-10);
  }
}

TEST(Statistics, CentredEnergySurvivesAMeanThatHoldsAllButATrillionth) {
  StatisticsAccumulator accumulator(2);
  for (int t = 0; t < 1000; ++t) {
    const float key[2] = {1048576.0f + (t % 2 ? 1.0f : -1.0f), 0.0f};
    accumulator.AddKey(key);
  }
  EXPECT_NEAR(accumulator.Finish().centred_key_energy[0], 1.0, 1e-9);
}

TEST(Statistics, OfNothingAreZero) {
  const HeadStatistics s = StatisticsAccumulator(4).Finish();
  EXPECT_EQ(s.tokens, 0);
  EXPECT_EQ(s.query_energy, (std::vector<double>{0, 0}));
  EXPECT_EQ(s.key_mean, (std::vector<double>{0, 0, 0, 0}));
}

// Old vectors count half, new ones whole: weighted two-pass sums say the same.
TEST(Statistics, DiscountedVectorsWeighLess) {
  constexpr int kOld = 40, kNew = 30;
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  StatisticsAccumulator accumulator(2);
  std::vector<std::pair<double, std::array<float, 2>>> seen;  // weight, vector
  for (int t = 0; t < kOld + kNew; ++t) {
    if (t == kOld) accumulator.Discount(0.5);
    const bool old = t < kOld;
    const std::array<float, 2> x = {normal(rng) + (old ? 3.0f : -2.0f), normal(rng) * (old ? 1.0f : 4.0f)};
    seen.emplace_back(old ? 0.5 : 1.0, x);
    accumulator.AddKey(x.data());
    accumulator.AddQuery(x.data());
  }
  double weight = 0, energy = 0, centred = 0, mean[2] = {};
  for (const auto& [w, x] : seen) {
    weight += w;
    for (int d = 0; d < 2; ++d) mean[d] += w * x[d];
    energy += w * (double{x[0]} * x[0] + double{x[1]} * x[1]);
  }
  for (double& m : mean) m /= weight;
  for (const auto& [w, x] : seen)
    for (int d = 0; d < 2; ++d) centred += w * (x[d] - mean[d]) * (x[d] - mean[d]);
  const HeadStatistics s = accumulator.Finish();
  EXPECT_EQ(s.tokens, kOld / 2 + kNew);
  EXPECT_NEAR(s.key_mean[0], mean[0], 1e-12);
  EXPECT_NEAR(s.query_energy[0], energy / weight, 1e-12);
  EXPECT_NEAR(s.centred_key_energy[0], centred / weight, 1e-12);
}

TEST(Statistics, RestoredSumsGoOnWhereTheyWere) {
  std::mt19937 rng(6);
  std::normal_distribution<float> normal(1.0f);
  StatisticsAccumulator whole(4), first(4), second(4);
  for (int t = 0; t < 50; ++t) {
    if (t == 20) second.Restore(first.Finish(), 2);
    StatisticsAccumulator& part = t < 20 ? first : second;
    for (int h = 0; h < 2; ++h) {
      const float q[4] = {normal(rng), normal(rng), normal(rng), normal(rng)};
      whole.AddQuery(q);
      part.AddQuery(q);
    }
    const float k[4] = {normal(rng), normal(rng), normal(rng), normal(rng)};
    whole.AddKey(k);
    part.AddKey(k);
  }
  const HeadStatistics a = whole.Finish(), b = second.Finish();
  EXPECT_EQ(a.tokens, b.tokens);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(a.query_energy[i], b.query_energy[i], 1e-12);
    EXPECT_NEAR(a.centred_key_energy[i], b.centred_key_energy[i], 1e-12);
    EXPECT_NEAR(a.key_mean[2 * i], b.key_mean[2 * i], 1e-12);
  }
}

}  // namespace
}  // namespace blockgtq
