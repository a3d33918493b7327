// Metrics of logits against values worked out by hand.
#include "src/eval/logit_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace blockgtq {
namespace {

std::vector<float> Logs(std::vector<double> probabilities, double shift) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

TEST(CompareLogits, KldIsTheSumOverTheBase) {
  const std::vector<double> p = {0.5, 0.25, 0.25}, q = {0.25, 0.5, 0.25};
  const LogitComparison c = CompareLogits(Logs(p, 3), Logs(q, -7));
  EXPECT_NEAR(c.kld, 0.5 * std::log(2) - 0.25 * std::log(2), 1e-6);
  EXPECT_FALSE(c.same_top1);
}

TEST(CompareLogits, EqualLogitsAreAtDistanceZero) {
  std::vector<float> logits;
  for (int i = 0; i < 1000; ++i) logits.push_back(std::sin(static_cast<float>(i)) * 8);
  const LogitComparison c = CompareLogits(logits, logits);
  EXPECT_EQ(c.kld, 0);
  EXPECT_TRUE(c.same_top1);
  EXPECT_EQ(c.top10_overlap, 1);
}

TEST(CompareLogits, OverlapCountsTheTenLikeliest) {
  std::vector<float> base(100, 0), test(100, 0);
  for (int i = 0; i < 10; ++i) base[static_cast<size_t>(i)] = 20.0f - static_cast<float>(i);
  for (int i = 3; i < 13; ++i) test[static_cast<size_t>(i)] = 20.0f - static_cast<float>(i);
  EXPECT_DOUBLE_EQ(CompareLogits(base, test).top10_overlap, 0.7);
}

TEST(CompareLogits, ASmallVocabularyHasFewerThanTen) {
  const std::vector<float> base = {1, 2, 3}, test = {3, 2, 1};
  EXPECT_DOUBLE_EQ(CompareLogits(base, test).top10_overlap, 1);
}

TEST(NegativeLogLikelihood, OfAUniformDistributionIsTheLogOfItsSize) {
  const std::vector<float> logits(64, -3.5f);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 5), std::log(64.0), 1e-6);
}

}  // namespace
}  // namespace blockgtq
