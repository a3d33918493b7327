// Statistics of a head against two-pass sums, including a mean that holds nearly all energy.
#include "src/core/statistics.h"

#include <gtest/gtest.h>

#include <random>
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

}  // namespace
}  // namespace blockgtq
