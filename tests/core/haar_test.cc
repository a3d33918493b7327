// Haar rotations: orthogonality, pinned values (independent Python), first and second moments.
#include "src/core/haar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace blockgtq {
namespace {

double LargestDefect(const std::vector<float>& q, int n) {
  double worst = 0;
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b <= a; ++b) {
      double dot = 0;
      for (int i = 0; i < n; ++i) dot += double{q[a * n + i]} * double{q[b * n + i]};
      worst = std::max(worst, std::fabs(dot - (a == b)));
    }
  }
  return worst;
}

TEST(Haar, RotationsAreOrthogonal) {
  for (int n : {1, 2, 3, 16, 48, 64, 128, 256}) {
    const std::vector<float> q = HaarRotation(n, 7);
    ASSERT_EQ(q.size(), static_cast<size_t>(n) * n);
    EXPECT_LT(LargestDefect(q, n), 1e-6) << n;
  }
}

TEST(Haar, SeedsDetermineTheMatrixAndDiffer) {
  EXPECT_EQ(HaarRotation(32, 5), HaarRotation(32, 5));
  EXPECT_NE(HaarRotation(32, 5), HaarRotation(32, 6));
}

// The values come from a separate Python program that orthogonalises the same normals by Gram-Schmidt.
TEST(Haar, ValuesArePinned) {
  const float expected[9] = {-0.41714966f, -0.46003796f, -0.78380561f, 0.33298827f, 0.72509014f,
                             -0.60279606f, -0.84563879f, 0.51245425f,  0.14928386f};
  const std::vector<float> small = HaarRotation(3, 1);
  for (int i = 0; i < 9; ++i) EXPECT_NEAR(small[i], expected[i], 1e-7) << i;
  const std::vector<float> q = HaarRotation(16, 0x123456789abcdef0ull);
  EXPECT_NEAR(q[0], -0.009000627602f, 1e-7);
  EXPECT_NEAR(q[3 * 16 + 7], 0.136338452425f, 1e-7);
  EXPECT_NEAR(q[15 * 16 + 15], -0.132648984232f, 1e-7);
  EXPECT_NEAR(q[15 * 16 + 0], -0.140428692313f, 1e-7);
}

// Over 4,000 draws: E Q = 0, E Q_ij^2 = 1/n, E (Q_ij Q_kl) = 0, and the trace has variance 1 (without the
// sign fix of R's diagonal the mean of Q_00 is far from zero).
TEST(Haar, MomentsAreThoseOfTheUniformLaw) {
  constexpr int kDraws = 4000, n = 4;
  double first[n * n] = {}, second[n * n] = {}, cross = 0, trace2 = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const std::vector<float> q = HaarRotation(n, 1000 + draw);
    for (int i = 0; i < n * n; ++i) {
      first[i] += q[i];
      second[i] += double{q[i]} * q[i];
    }
    cross += double{q[0]} * q[n + 1];
    const double trace = double{q[0]} + q[5] + q[10] + q[15];
    trace2 += trace * trace;
  }
  for (int i = 0; i < n * n; ++i) {
    EXPECT_NEAR(first[i] / kDraws, 0.0, 0.04) << i;  // five standard errors of 0.5 / sqrt(4000)
    EXPECT_NEAR(second[i] / kDraws, 0.25, 0.018) << i;
  }
  EXPECT_NEAR(cross / kDraws, 0.0, 0.02);
  EXPECT_NEAR(trace2 / kDraws, 1.0, 0.12);
}

}  // namespace
}  // namespace blockgtq
