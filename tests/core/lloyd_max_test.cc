// Lloyd-Max quantisers: published distortions, stationarity by numerical integration, symmetry.
#include "src/core/lloyd_max.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>

namespace blockgtq {
namespace {

// Integrates f(x) phi(x) over [lo, hi] by Gauss-Legendre of ten nodes on 32 pieces.
template <typename F>
double Integrate(double lo, double hi, F f) {
  constexpr std::array<double, 5> kNodes = {0.1488743389816312, 0.4333953941292472, 0.6794095682990244,
                                            0.8650633666889845, 0.9739065285171717};
  constexpr std::array<double, 5> kWeights = {0.2955242247147529, 0.2692667193099963, 0.2190863625159820,
                                              0.1494513491505806, 0.0666713443086881};
  const int pieces = 32;
  double sum = 0;
  for (int p = 0; p < pieces; ++p) {
    const double a = lo + (hi - lo) * p / pieces, b = lo + (hi - lo) * (p + 1) / pieces;
    for (size_t i = 0; i < kNodes.size(); ++i) {
      for (double x :
           {0.5 * (a + b) + 0.5 * (b - a) * kNodes[i], 0.5 * (a + b) - 0.5 * (b - a) * kNodes[i]}) {
        const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
        sum += 0.5 * (b - a) * kWeights[i] * f(x) * density;
      }
    }
  }
  return sum;
}

double Lower(const LloydMaxCodebook& book, size_t i) { return i == 0 ? -12.0 : book.thresholds[i - 1]; }
double Upper(const LloydMaxCodebook& book, size_t i) {
  return i + 1 == book.centroids.size() ? 12.0 : book.thresholds[i];
}

TEST(LloydMax, DistortionsAreThePublishedOnes) {
  // Max 1960, table I, and its continuation.
  const double expected[] = {.36338, .11748, .03455, .00950, .00250, .00064};
  for (int bits = 1; bits <= 6; ++bits)
    EXPECT_NEAR(LloydMax(bits).distortion, expected[bits - 1], 6e-6) << bits;
  EXPECT_EQ(Distortion(0), 1.0);
  EXPECT_EQ(Distortion(3), LloydMax(3).distortion);
}

TEST(LloydMax, CentroidsAreTheMeansOfTheirCellsAndThresholdsMidpoints) {
  for (int bits = 1; bits <= kMaxWidth; ++bits) {
    const LloydMaxCodebook& book = LloydMax(bits);
    const size_t n = size_t{1} << bits;
    ASSERT_EQ(book.centroids.size(), n);
    ASSERT_EQ(book.thresholds.size(), n - 1);
    for (size_t i = 0; i < n; ++i) {
      const double mass = Integrate(Lower(book, i), Upper(book, i), [](double) { return 1.0; });
      const double moment = Integrate(Lower(book, i), Upper(book, i), [](double x) { return x; });
      EXPECT_NEAR(book.centroids[i], moment / mass, 1e-11) << bits << " bits, centroid " << i;
      EXPECT_EQ(book.centroids[i], -book.centroids[n - 1 - i]);
      if (i + 1 < n) {
        EXPECT_DOUBLE_EQ(book.thresholds[i], 0.5 * (book.centroids[i] + book.centroids[i + 1]));
        EXPECT_LT(book.centroids[i], book.centroids[i + 1]);
      }
    }
  }
}

TEST(LloydMax, DistortionIsTheIntegratedSquaredError) {
  for (int bits = 1; bits <= kMaxWidth; ++bits) {
    const LloydMaxCodebook& book = LloydMax(bits);
    double error = 0;
    for (size_t i = 0; i < book.centroids.size(); ++i) {
      const double c = book.centroids[i];
      error += Integrate(Lower(book, i), Upper(book, i), [c](double x) { return (x - c) * (x - c); });
    }
    EXPECT_NEAR(book.distortion / error, 1.0, 1e-9) << bits;
  }
}

}  // namespace
}  // namespace blockgtq
