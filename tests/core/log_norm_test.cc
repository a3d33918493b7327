// Log norms: round trip, clamping, and the choice of the reference against a brute force.
#include "src/core/log_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace blockgtq {
namespace {

TEST(LogNorm, RoundTripIsWithinA64thOctaveInsideTheWindow) {
  for (float reference : {1e-6f, 0.37f, 1.0f, 5e4f}) {
    for (double octave = -4.0; octave <= 3.96; octave += 0.0031) {
      const float norm = static_cast<float>(reference * std::exp2(octave));
      const float back = DecodeLogNorm(EncodeLogNorm(norm, reference), reference);
      EXPECT_LE(std::fabs(std::log2(back / norm)), 1.0 / 64 + 1e-5) << octave;
    }
  }
}

TEST(LogNorm, EveryByteRoundTrips) {
  for (int b = 0; b < 256; ++b) {
    EXPECT_EQ(EncodeLogNorm(DecodeLogNorm(static_cast<uint8_t>(b), 3.7f), 3.7f), b);
  }
}

TEST(LogNorm, OutsideTheWindowClampsAndNothingIsUndefined) {
  EXPECT_EQ(EncodeLogNorm(0.0f, 1.0f), 0);
  EXPECT_EQ(EncodeLogNorm(1e-30f, 1.0f), 0);
  EXPECT_EQ(EncodeLogNorm(1e30f, 1.0f), 255);
  EXPECT_EQ(EncodeLogNorm(std::numeric_limits<float>::infinity(), 1.0f), 255);
  EXPECT_EQ(EncodeLogNorm(std::numeric_limits<float>::quiet_NaN(), 1.0f), 0);
}

double ClampingError(const std::vector<float>& norms, double reference) {
  const double low = reference * std::exp2(-4.0), high = reference * std::exp2(127.0 / 32);
  double error = 0;
  for (double n : norms) {
    const double clamped = std::fmin(std::fmax(n, low), high);
    if (n > 0) error += (n - clamped) * (n - clamped);
  }
  return error;
}

TEST(LogNorm, ReferenceHoldsNarrowSetsWithHalfAnOctaveAbove) {
  const std::vector<float> norms = {2.0f, 3.0f, 8.0f, 0.0f};
  const float reference = ChooseNormReference(norms);
  EXPECT_EQ(ClampingError(norms, reference), 0.0);
  EXPECT_NEAR(std::log2(reference) + 127.0 / 32 - std::log2(8.0), 0.5, 1e-5);
}

TEST(LogNorm, ReferenceGivesUpHeadroomBeforeTheSmallestNorm) {
  const std::vector<float> norms = {1.0f, static_cast<float>(std::exp2(7.8))};
  EXPECT_LT(ClampingError(norms, ChooseNormReference(norms)), 1e-9);
}

TEST(LogNorm, ReferenceOfWideSetsIsTheLeastClampingError) {
  std::mt19937 rng(9);
  for (double spread : {3.0, 6.0}) {
    for (int trial = 0; trial < 20; ++trial) {
      std::normal_distribution<double> octaves(0.0, spread);
      std::vector<float> norms(60);
      for (float& n : norms) n = static_cast<float>(std::exp2(octaves(rng)));
      double best = std::numeric_limits<double>::infinity();
      for (double r = -30; r <= 30; r += 1.0 / 64) best = std::fmin(best, ClampingError(norms, std::exp2(r)));
      // The search steps by 1/32 octave: at most a small excess over a twice finer one.
      EXPECT_LE(ClampingError(norms, ChooseNormReference(norms)), 1.02 * best + 1e-9);
    }
  }
}

TEST(LogNorm, ReferenceOfNothingIsOne) {
  EXPECT_EQ(ChooseNormReference({}), 1.0f);
  EXPECT_EQ(ChooseNormReference(std::vector<float>{0.0f, -1.0f, std::nanf("")}), 1.0f);
}

}  // namespace
}  // namespace blockgtq
