// The scalar codec: error statistics against theory, the mean, partial writes, refusals, attention.
#include "src/codec/reference_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/codec/codec_fixtures.h"

namespace blockgtq {
namespace {

using reference::DecodeKey;
using reference::DecodeValue;
using reference::EncodeKeys;
using reference::EncodeValues;
using test::MakeHead;
using test::Normals;
using test::SetMean;

RopeConfig Rope(int head_dim) {
  return {.head_dim = head_dim, .rotary_dims = head_dim, .pairing = RopePairing::kNeox};
}

double Energy(const std::vector<float>& v) {
  double e = 0;
  for (double x : v) e += x * x;
  return e;
}

double ErrorEnergy(const std::vector<float>& a, const std::vector<float>& b) {
  double e = 0;
  for (size_t i = 0; i < a.size(); ++i) e += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return e;
}

std::vector<float> DecodeKeys(const HeadPlan& plan, const RopeTable& rope,
                              const std::vector<std::byte>& record, int64_t first, int count) {
  std::vector<float> out(count * plan.head_dim);
  for (int t = 0; t < count; ++t) {
    DecodeKey(plan, RecordLayout::For(plan), rope, record, first + t, &out[t * plan.head_dim]);
  }
  return out;
}

// E|x - x^|^2 / |x|^2 of a vector whose decoded length is corrected: 2 - 2 cos, with cos = E[x c(x)] /
// sqrt(E[c(x)^2]) over a coordinate x of a uniform direction in `dims` dimensions, density (1 - x^2 /
// dims)^((dims - 3) / 2).
double TheoreticalError(int width, int code_width, int dims) {
  double xc = 0, cc = 0, mass = 0;
  for (int i = -6000; i <= 6000; ++i) {
    const double x = i * 1e-3 + 1e-7;
    const double p = std::pow(1.0 - x * x / dims, 0.5 * (dims - 3));
    const int code = NearestCode(width, code_width, static_cast<float>(x));
    const double c = (CodebookInt(width, code) + CodebookHalf(width)) / CodebookScale(width);
    xc += p * x * c;
    cc += p * c * c;
    mass += p;
  }
  return 2 - 2 * (xc / mass) / std::sqrt(cc / mass);
}

TEST(ReferenceCodec, ErrorsAreThoseOfTheCodebookAtEveryWidth) {
  constexpr int kDim = 128, kPages = 12;
  const RopeTable rope(Rope(kDim));
  for (int code_width = 1; code_width <= 8; ++code_width) {
    const HeadPlan plan = MakeHead(kDim, {{code_width, kDim / 2}}, code_width, NormType::kHalf);
    const RecordLayout layout = RecordLayout::For(plan);
    double key_error = 0, value_error = 0, energy = 0;
    for (int page = 0; page < kPages; ++page) {
      const std::vector<float> x = Normals(64 * kDim, 100 * code_width + page);
      std::vector<std::byte> record(layout.bytes);
      ASSERT_TRUE(EncodeKeys(plan, layout, rope, x, 0, record).ok());
      ASSERT_TRUE(EncodeValues(plan, layout, x, 0, record).ok());
      std::vector<float> values(x.size());
      for (int t = 0; t < 64; ++t) DecodeValue(plan, layout, record, t, &values[t * kDim]);
      key_error += ErrorEnergy(x, DecodeKeys(plan, rope, record, 0, 64));
      value_error += ErrorEnergy(x, values);
      energy += Energy(x);
    }
    const double theory = TheoreticalError(StoredWidth(code_width), code_width, kDim);
    // At 8 bits a tenth of the error comes from a handful of clipped coordinates.
    const double tolerance = code_width == 8 ? 0.08 : 0.03;
    EXPECT_NEAR(key_error / energy / theory, 1.0, tolerance) << code_width;
    EXPECT_NEAR(value_error / energy / theory, 1.0, tolerance) << code_width;
  }
}

// The expected ratios come from an independent numpy simulation (nearest centroids at each scale, best cosine
// kept).
TEST(ReferenceCodec, SearchedRoundingLowersTheErrorOfEveryVector) {
  constexpr int kDim = 32, kPages = 12;
  const RopeTable rope(Rope(kDim));
  const double expected[] = {0, 1.0, 0.967, 0.846, 0.738};
  for (int width = 1; width <= 4; ++width) {
    HeadPlan plan = MakeHead(kDim, {{width, kDim / 2}}, width, NormType::kHalf);
    const RecordLayout layout = RecordLayout::For(plan);
    double nearest = 0, searched = 0;
    for (int page = 0; page < kPages; ++page) {
      const std::vector<float> x = Normals(64 * kDim, 300 * width + page);
      std::vector<std::vector<float>> decoded;
      for (Rounding rounding : {Rounding::kNearest, Rounding::kSearched}) {
        plan.rounding = rounding;
        std::vector<std::byte> record(layout.bytes);
        ASSERT_TRUE(EncodeKeys(plan, layout, rope, x, 0, record).ok());
        decoded.push_back(DecodeKeys(plan, rope, record, 0, 64));
      }
      for (int t = 0; t < 64; ++t) {
        const auto token = [&](const std::vector<float>& v) {
          return std::vector<float>(v.begin() + t * kDim, v.begin() + (t + 1) * kDim);
        };
        const double a = ErrorEnergy(token(x), token(decoded[0])),
                     b = ErrorEnergy(token(x), token(decoded[1]));
        EXPECT_LE(b, a * (1 + 1e-3) + 1e-3) << width;  // up to the rounding of the fp16 norm
        nearest += a;
        searched += b;
      }
    }
    EXPECT_NEAR(searched / nearest, expected[width], 0.02) << width;
  }
}

TEST(ReferenceCodec, DecodedGroupsHaveExactlyTheStoredNorm) {
  const HeadPlan plan = MakeHead(64, {{4, 8}, {2, 24}}, 3, NormType::kHalf);
  const RecordLayout layout = RecordLayout::For(plan);
  const RopeTable rope(Rope(64));
  const std::vector<float> keys = Normals(64, 5);
  std::vector<std::byte> record(layout.bytes);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, keys, 0, record).ok());
  const std::vector<float> decoded = DecodeKeys(plan, rope, record, 0, 1);
  // Without equalisation a group's norm is that of its own channels.
  const std::vector<float> a(keys.begin(), keys.begin() + 16), b(decoded.begin(), decoded.begin() + 16);
  EXPECT_NEAR(Energy(b) / Energy(a), 1.0, 2e-3);
  EXPECT_NEAR(Energy(decoded) / Energy(keys), 1.0, 2e-3);
}

TEST(ReferenceCodec, AHugeMeanComesBackExactlyAndCostsNoError) {
  HeadPlan plan = MakeHead(64, {{4, 8}, {3, 16}, {2, 8}}, 3, NormType::kLog8);
  SetMean(plan, {1, 3}, 1000.0, 21);
  HeadPlan plain = plan;
  plain.mean_units.clear();
  plain.key_mean.clear();
  RopeConfig config = Rope(64);
  config.attention_factor = 1.25f;
  const RopeTable rope(config);
  const RecordLayout layout = RecordLayout::For(plan);
  constexpr int64_t kFirst = 64 * 1000;
  const std::vector<float> noise = Normals(64 * 64, 22);
  std::vector<float> keys = noise, mean(64);
  for (int t = 0; t < 64; ++t) {
    rope.Rotate(plan.key_mean.data(), kFirst + t, mean.data());
    for (int d = 0; d < 64; ++d) keys[t * 64 + d] += mean[d];
  }
  std::vector<std::byte> record(layout.bytes), plain_record(layout.bytes);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, keys, kFirst, record).ok());
  ASSERT_TRUE(EncodeKeys(plain, layout, rope, noise, kFirst, plain_record).ok());
  const double with_mean = ErrorEnergy(keys, DecodeKeys(plan, rope, record, kFirst, 64));
  const double without = ErrorEnergy(noise, DecodeKeys(plain, rope, plain_record, kFirst, 64));
  EXPECT_NEAR(with_mean / without, 1.0, 0.01);
  // Left in, a mean of a thousand deviations would drown the key.
  ASSERT_TRUE(EncodeKeys(plain, layout, rope, keys, kFirst, plain_record).ok());
  EXPECT_GT(ErrorEnergy(keys, DecodeKeys(plain, rope, plain_record, kFirst, 64)), 1000 * with_mean);
}

TEST(ReferenceCodec, TokenByTokenGivesTheBytesOfAPageAtOnce) {
  HeadPlan plan = MakeHead(80, {{8, 5}, {7, 8}, {5, 3}, {3, 16}, {1, 8}}, 6, NormType::kHalf);
  SetMean(plan, {0, 4}, 3.0, 31);
  const RopeTable rope(Rope(80));
  const RecordLayout layout = RecordLayout::For(plan);
  const std::vector<float> keys = Normals(64 * 80, 32), values = Normals(64 * 80, 33);
  std::vector<std::byte> page(layout.bytes), appended(layout.bytes);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, keys, 128, page).ok());
  ASSERT_TRUE(EncodeValues(plan, layout, values, 128, page).ok());
  for (int t = 0; t < 64; ++t) {
    const std::span<const float> key(&keys[t * 80], 80), value(&values[t * 80], 80);
    ASSERT_TRUE(EncodeKeys(plan, layout, rope, key, 128 + t, appended).ok());
    ASSERT_TRUE(EncodeValues(plan, layout, value, 128 + t, appended).ok());
  }
  EXPECT_EQ(page, appended);
}

TEST(ReferenceCodec, EncodingLeavesOtherTokensBitsAlone) {
  const HeadPlan plan = MakeHead(64, {{5, 8}, {3, 16}, {2, 8}}, 4, NormType::kLog8);
  const RopeTable rope(Rope(64));
  const RecordLayout layout = RecordLayout::For(plan);
  const std::vector<float> old_vectors = Normals(64 * 64, 41), new_vectors = Normals(64 * 64, 42);
  std::vector<std::byte> record(layout.bytes), only_new(layout.bytes);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, old_vectors, 0, record).ok());
  ASSERT_TRUE(EncodeValues(plan, layout, old_vectors, 0, record).ok());
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, new_vectors, 0, only_new).ok());
  const std::vector<float> before = DecodeKeys(plan, rope, record, 0, 64);
  const std::vector<float> replaced = DecodeKeys(plan, rope, only_new, 0, 64);
  const std::span<const float> middle(&new_vectors[20 * 64], 9 * 64);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, middle, 20, record).ok());
  const std::vector<float> after = DecodeKeys(plan, rope, record, 0, 64);
  for (int t = 0; t < 64; ++t) {
    const std::vector<float>& expected = t >= 20 && t < 29 ? replaced : before;
    for (int d = 0; d < 64; ++d) ASSERT_EQ(after[t * 64 + d], expected[t * 64 + d]) << "token " << t;
  }
}

TEST(ReferenceCodec, ErasingTokensIsAsIfTheyWereNeverEncoded) {
  const HeadPlan plan = MakeHead(72, {{8, 3}, {3, 20}, {2, 13}}, 5, NormType::kLog8);
  const RopeTable rope(Rope(72));
  const RecordLayout layout = RecordLayout::For(plan);
  const std::vector<float> x = Normals(64 * 72, 51);
  std::vector<std::byte> all(layout.bytes), some(layout.bytes);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, x, 0, all).ok());
  ASSERT_TRUE(EncodeValues(plan, layout, x, 0, all).ok());
  EraseTokens(layout, plan, 23, all);
  const std::span<const float> first(x.data(), 23 * 72);
  ASSERT_TRUE(EncodeKeys(plan, layout, rope, first, 0, some).ok());
  ASSERT_TRUE(EncodeValues(plan, layout, first, 0, some).ok());
  EXPECT_EQ(all, some);
}

TEST(ReferenceCodec, BadInputIsRefusedAndTheRecordUntouched) {
  const HeadPlan plan = MakeHead(64, {{3, 32}}, 3, NormType::kLog8);
  const RopeTable rope(Rope(64)), wrong_rope(Rope(128));
  const RecordLayout layout = RecordLayout::For(plan);
  const std::vector<std::byte> original(layout.bytes, std::byte{0x5a});
  std::vector<std::byte> record = original, small(layout.bytes - 16);
  std::vector<float> x = Normals(4 * 64, 61);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    std::vector<float> y = x;
    y[3 * 64 + 5] = bad;
    const Status keys = EncodeKeys(plan, layout, rope, y, 0, record);
    EXPECT_EQ(keys.code(), ErrorCode::kNonFinite);
    EXPECT_NE(keys.message().find("dim 5 of the token at position 3"), std::string::npos) << keys.message();
    EXPECT_EQ(EncodeValues(plan, layout, y, 0, record).code(), ErrorCode::kNonFinite);
  }
  const auto refused = [&](const Status& s) {
    EXPECT_EQ(s.code(), ErrorCode::kInvalidArgument) << s.message();
  };
  refused(EncodeKeys(plan, layout, rope, x, 61, record));
  refused(EncodeKeys(plan, layout, rope, x, -1, record));
  refused(EncodeKeys(plan, layout, rope, {x.data(), 63}, 0, record));
  refused(EncodeKeys(plan, layout, rope, x, 0, small));
  refused(EncodeKeys(plan, layout, wrong_rope, x, 0, record));
  refused(EncodeValues(plan, layout, x, 61, record));
  EXPECT_EQ(record, original);
  EXPECT_TRUE(EncodeKeys(plan, layout, rope, {}, 0, record).ok());
  EXPECT_EQ(record, original);
}

TEST(ReferenceCodec, ZeroAndHugeVectorsStayFinite) {
  for (NormType type : {NormType::kLog8, NormType::kHalf}) {
    for (int width : {1, 3, 5, 7, 8}) {
      const HeadPlan plan = MakeHead(64, {{width, 32}}, width, type);
      const RopeTable rope(Rope(64));
      const RecordLayout layout = RecordLayout::For(plan);
      std::vector<std::byte> record(layout.bytes);
      std::vector<float> x(2 * 64, 0.0f);
      for (int d = 0; d < 64; ++d) x[64 + d] = d % 2 ? 3e38f : -3e38f;
      ASSERT_TRUE(EncodeKeys(plan, layout, rope, x, 0, record).ok());
      const std::vector<float> decoded = DecodeKeys(plan, rope, record, 0, 2);
      for (float v : decoded) EXPECT_TRUE(std::isfinite(v));
      // fp16 holds zero; a log norm's smallest byte is 2^-4 of the reference.
      const double zero_norm = std::sqrt(Energy({decoded.begin(), decoded.begin() + 64}));
      EXPECT_LE(zero_norm, type == NormType::kHalf ? 0.0 : 8.0 / 16 + 1e-5);
    }
  }
}

TEST(ReferenceCodec, AttentionIsTheSoftmaxOverDecodedTokens) {
  HeadPlan plan =
      MakeHead(64, {{8, 8}, {3, 16}, {1, 8}}, 4, NormType::kLog8, 3, std::vector<double>(32, 1.7));
  SetMean(plan, {0, 2}, 2.0, 71);
  RopeConfig config = Rope(64);
  config.attention_factor = 1.1f;
  const RopeTable rope(config);
  const RecordLayout layout = RecordLayout::For(plan);
  std::vector<std::vector<std::byte>> records(3, std::vector<std::byte>(layout.bytes));
  std::vector<const std::byte*> pointers;
  std::vector<float> keys, values;
  for (int j = 0; j < 3; ++j) {
    const std::vector<float> k = Normals(64 * 64, 72 + j), v = Normals(64 * 64, 82 + j);
    ASSERT_TRUE(EncodeKeys(plan, layout, rope, k, 64 * j, records[j]).ok());
    ASSERT_TRUE(EncodeValues(plan, layout, v, 64 * j, records[j]).ok());
    pointers.push_back(records[j].data());
  }
  const std::vector<float> query = Normals(64, 91);
  for (const auto& [begin, end] : {std::pair{0, 192}, {5, 6}, {60, 130}, {64, 128}}) {
    std::vector<double> expected(64, 0.0);
    double sum = 0;
    for (int t = begin; t < end; ++t) {
      float key[64], value[64];
      DecodeKey(plan, layout, rope, records[t / 64], t, key);
      DecodeValue(plan, layout, records[t / 64], t % 64, value);
      double logit = 0;
      for (int d = 0; d < 64; ++d) logit += double{query[d]} * key[d];
      const double p = std::exp(logit / 8);
      sum += p;
      for (int d = 0; d < 64; ++d) expected[d] += p * value[d];
    }
    float out[64], lse;
    reference::Attention(plan, layout, rope, query.data(), pointers, begin, end, 0.125f, out, &lse);
    EXPECT_NEAR(lse, std::log(sum), 1e-5);
    for (int d = 0; d < 64; ++d) EXPECT_NEAR(out[d], expected[d] / sum, 1e-5) << d;
  }
}

TEST(ReferenceCodec, AttentionOverNothingIsZeroWithMinusInfinity) {
  const HeadPlan plan = MakeHead(64, {{3, 32}}, 3, NormType::kLog8);
  float out[64], lse = 0;
  std::fill(out, out + 64, 7.0f);
  reference::Attention(plan, RecordLayout::For(plan), RopeTable(Rope(64)), Normals(64, 1).data(), {}, 9, 9,
                       0.125f, out, &lse);
  EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
  for (float v : out) EXPECT_EQ(v, 0.0f);
}

}  // namespace
}  // namespace blockgtq
