// fp16 and bf16 conversions against the definition of the formats, in double precision.
#include "src/core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace blockgtq {
namespace {

// The value of a finite half's magnitude by IEEE 754's definition.
double HalfValue(int magnitude) {
  const int exponent = magnitude >> 10, fraction = magnitude & 1023;
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

// Round to nearest even by search over all finite magnitudes; 0x7c00 stands for 65536, the next value.
uint16_t NearestHalf(float f) {
  const double value = std::abs(static_cast<double>(f));
  const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  int low = 0, high = 0x7c00;  // HalfValue(low) <= value, or value is above every half
  if (value >= HalfValue(high)) return sign | 0x7c00;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (HalfValue(middle) <= value ? low : high) = middle;
  }
  const double below = value - HalfValue(low), above = HalfValue(high) - value;
  const bool take_low = below < above || (below == above && low % 2 == 0);
  return static_cast<uint16_t>(sign | (take_low ? low : high));
}

TEST(Half, EveryHalfWidensToItsValue) {
  for (int h = 0; h < 65536; ++h) {
    const float got = HalfToFloat(static_cast<uint16_t>(h));
    const int magnitude = h & 0x7fff;
    EXPECT_EQ(std::signbit(got), h >= 0x8000) << h;
    if (magnitude > 0x7c00) {
      EXPECT_TRUE(std::isnan(got)) << h;
    } else if (magnitude == 0x7c00) {
      EXPECT_TRUE(std::isinf(got)) << h;
    } else {
      EXPECT_EQ(std::abs(static_cast<double>(got)), HalfValue(magnitude)) << h;
    }
  }
}

TEST(Half, EveryHalfSurvivesARoundTrip) {
  for (int h = 0; h < 65536; ++h) {
    const uint16_t back = FloatToHalf(HalfToFloat(static_cast<uint16_t>(h)));
    if ((h & 0x7fff) > 0x7c00) {
      EXPECT_GT(back & 0x7fff, 0x7c00) << h;
      EXPECT_EQ(back & 0x8000, h & 0x8000) << h;
    } else {
      EXPECT_EQ(back, h);
    }
  }
}

TEST(Half, TiesAndTheirNeighboursRoundToNearestEven) {
  for (int h = 0; h < 0x7c00; ++h) {
    const float middle = static_cast<float>((HalfValue(h) + HalfValue(h + 1)) / 2);  // exact in float
    for (const float f : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      EXPECT_EQ(FloatToHalf(f), NearestHalf(f)) << f;
      EXPECT_EQ(FloatToHalf(-f), NearestHalf(-f)) << -f;
    }
  }
}

TEST(Half, RandomFloatsOfEveryExponentRoundToNearest) {
  std::mt19937 rng(1);
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (int i = 0; i < 2000; ++i) {
      const float f = std::bit_cast<float>(static_cast<uint32_t>(rng() & 0x807fffffu) | exponent << 23);
      EXPECT_EQ(FloatToHalf(f), NearestHalf(f)) << std::hexfloat << f;
    }
  }
}

TEST(Half, ExtremesAndNaN) {
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(Limits::max()), 0x7c00);
  EXPECT_EQ(FloatToHalf(-Limits::infinity()), 0xfc00);
  EXPECT_EQ(FloatToHalf(Limits::denorm_min()), 0);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t half = FloatToHalf(std::bit_cast<float>(bits));
    EXPECT_GT(half & 0x7fff, 0x7c00) << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
  }
}

TEST(Bf16, EveryValueIsTheUpperHalfOfItsFloatAndSurvivesARoundTrip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float widened = Bf16ToFloat(static_cast<uint16_t>(h));
    EXPECT_EQ(std::bit_cast<uint32_t>(widened), h << 16);
    const uint16_t back = FloatToBf16(widened);
    if ((h & 0x7fff) > 0x7f80) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(back))) << h;
      EXPECT_EQ(back & 0x8000u, h & 0x8000u);
    } else {
      EXPECT_EQ(back, h);
    }
  }
}

// Reference: the nearer of the two neighbours in double, ties to the even one; 2^128 follows the largest.
uint16_t NearestBf16(float f) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(f) & 0x7fffffffu;
  const uint32_t low = magnitude >> 16;
  const auto value = [](uint32_t h) {
    return h == 0x7f80 ? std::ldexp(1.0, 128) : static_cast<double>(std::bit_cast<float>(h << 16));
  };
  const double exact = std::abs(static_cast<double>(f));
  const double below = exact - value(low), above = value(low + 1) - exact;
  const bool take_low = below < above || (below == above && low % 2 == 0);
  return static_cast<uint16_t>((std::signbit(f) ? 0x8000u : 0u) | (take_low ? low : low + 1));
}

TEST(Bf16, RandomFloatsAndTiesOfEveryExponentRoundToNearestEven) {
  std::mt19937 rng(2);
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (int i = 0; i < 1000; ++i) {
      uint32_t bits = static_cast<uint32_t>(rng() & 0x807fffffu) | exponent << 23;
      if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // a tie
      const float f = std::bit_cast<float>(bits);
      EXPECT_EQ(FloatToBf16(f), NearestBf16(f)) << std::hexfloat << f;
    }
  }
}

TEST(Bf16, NaNStaysNaN) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t half = FloatToBf16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(Bf16ToFloat(half))) << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
  }
}

}  // namespace
}  // namespace blockgtq
