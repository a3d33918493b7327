// MatMul against plain double-precision loops, for every weight type on every SIMD target this machine has,
// and its promises: no dependence on threads, on how tokens are split over calls, or on the outputs' company.
#include "src/cpu/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/cpu/simd_targets.h"
//
#include "hwy/targets.h"

namespace blockgtq::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool IsFloatType(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

// Bytes of a block at which its half-precision scales lie.
std::vector<int> HalfFields(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
    case TensorType::kQ8_0:
      return {0};
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {0, 2};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

struct Weights {
  std::vector<std::byte> bytes;
  TensorView view;
};

// Every code bit random; scales of both signs, some of them subnormal halves.
Weights RandomWeights(TensorType type, int64_t rows, int64_t cols, uint32_t seed) {
  const TensorTypeInfo& info = GetTensorType(type);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Weights weights;
  weights.view = {type, nullptr, rows, cols};
  const int64_t blocks = rows * (cols / info.block_elements);
  weights.bytes.resize(static_cast<size_t>(blocks * info.block_bytes));
  for (int64_t b = 0; b < blocks; ++b) {
    std::byte* block = weights.bytes.data() + b * info.block_bytes;
    if (type == TensorType::kF32) {
      const float value = normal(random);
      std::memcpy(block, &value, 4);
    } else if (IsFloatType(type)) {
      const float value = normal(random);
      const uint16_t bits = type == TensorType::kF16 ? FloatToHalf(value) : FloatToBf16(value);
      std::memcpy(block, &bits, 2);
    } else {
      for (int i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::byte>(random() & 255);
      for (int field : HalfFields(type)) {
        const uint16_t bits = FloatToHalf(normal(random) * (random() % 16 == 0 ? 1e-5f : 0.02f));
        std::memcpy(block + field, &bits, 2);
      }
    }
  }
  weights.view.data = weights.bytes.data();
  return weights;
}

std::vector<float> RandomActivations(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random) * (random() % 64 == 0 ? 20.0f : 1.0f);
  if (count >= 64) std::fill_n(x.begin() + 32, 32, 0.0f);  // a block of zeros has no scale
  return x;
}

// What kInt8 documents: 32 elements share amax / 127, codes rounded to nearest even.
std::vector<double> RoundToInt8(const float* x, int64_t cols) {
  std::vector<double> rounded(static_cast<size_t>(cols));
  for (int64_t first = 0; first < cols; first += 32) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[first + i]));
    if (amax == 0) continue;
    const float scale = amax / 127.0f, inverse = 127.0f / amax;
    for (int i = 0; i < 32; ++i) {
      rounded[static_cast<size_t>(first + i)] = double{scale} * std::nearbyint(x[first + i] * inverse);
    }
  }
  return rounded;
}

struct Expected {
  double value;
  double magnitude;  // sum of |terms|: what rounding errors scale with
};

// [tokens, rows] in double.
std::vector<Expected> Reference(ActivationMode mode, const TensorView& weight, const std::vector<float>& x,
                                int64_t tokens) {
  const bool int8 = mode == ActivationMode::kInt8 && !IsFloatType(weight.type);
  std::vector<Expected> y(static_cast<size_t>(tokens * weight.rows));
  std::vector<std::vector<double>> inputs;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = x.data() + t * weight.cols;
    inputs.push_back(int8 ? RoundToInt8(row, weight.cols) : std::vector<double>(row, row + weight.cols));
  }
  std::vector<float> w(static_cast<size_t>(weight.cols));
  for (int64_t r = 0; r < weight.rows; ++r) {
    DequantizeRow(weight, r, w.data());
    for (int64_t t = 0; t < tokens; ++t) {
      Expected sum{0, 0};
      for (size_t k = 0; k < w.size(); ++k) {
        const double term = w[k] * inputs[static_cast<size_t>(t)][k];
        sum.value += term;
        sum.magnitude += std::fabs(term);
      }
      y[static_cast<size_t>(t * weight.rows + r)] = sum;
    }
  }
  return y;
}

std::vector<float> Multiply(ThreadPool& pool, ActivationMode mode, const TensorView& weight,
                            const std::vector<float>& x, int64_t tokens) {
  std::vector<float> y(static_cast<size_t>(tokens * weight.rows), kNan);
  MatMulScratch scratch;
  const MatMulOutput output{weight, nullptr, y.data(), weight.rows, false};
  MatMul(pool, mode, {&output, 1}, x.data(), tokens, weight.cols, scratch);
  return y;
}

void ExpectClose(const std::vector<float>& y, const std::vector<Expected>& expected,
                 const std::string& what) {
  ASSERT_EQ(y.size(), expected.size());
  int failures = 0;
  for (size_t i = 0; i < y.size() && failures < 3; ++i) {
    const double tolerance = 4e-6 * expected[i].magnitude + 1e-30;
    if (std::fabs(y[i] - expected[i].value) <= tolerance) continue;
    ++failures;
    ADD_FAILURE() << what << ", element " << i << ": " << y[i] << ", expected " << expected[i].value
                  << " within " << tolerance;
  }
}

struct Target {
  int64_t bit;
  ActivationMode mode;
};

std::string TargetLabel(const testing::TestParamInfo<Target>& info) {
  return std::string(hwy::TargetName(info.param.bit)) +
         (info.param.mode == ActivationMode::kInt8 ? "_Int8" : "_Float");
}

std::vector<Target> AllTargets() {
  std::vector<Target> targets;
  for (int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    targets.push_back({bit, ActivationMode::kInt8});
    targets.push_back({bit, ActivationMode::kFloat});
  }
  return targets;
}

class MatMulOnTarget : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam().bit); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  ActivationMode mode() const { return GetParam().mode; }
  ThreadPool pool_{2};
};

TEST_P(MatMulOnTarget, AgreesWithDoubleLoopsForEveryType) {
  struct Shape {
    int64_t rows, cols, tokens;
  };
  // Row counts around the group sizes, K from one block to the widest models', batches around the tiles.
  const Shape shapes[] = {{1, 256, 1},    {3, 512, 2},   {16, 256, 1},  {17, 768, 7},
                          {37, 512, 3},   {70, 256, 33}, {5, 4864, 1},  {18, 4864, 2},
                          {33, 1536, 13}, {2, 11008, 2}, {20, 256, 512}};
  for (const TensorTypeInfo& info : TensorTypes()) {
    for (const Shape& shape : shapes) {
      const Weights weights = RandomWeights(info.type, shape.rows, shape.cols, 7);
      const auto x = RandomActivations(shape.tokens * shape.cols, 8);
      ExpectClose(Multiply(pool_, mode(), weights.view, x, shape.tokens),
                  Reference(mode(), weights.view, x, shape.tokens),
                  std::string(info.name) + " rows " + std::to_string(shape.rows) + " cols " +
                      std::to_string(shape.cols) + " tokens " + std::to_string(shape.tokens));
    }
  }
}

TEST_P(MatMulOnTarget, TakesOneBlockOf32AndAnyColumnsOfFloatWeights) {
  for (const TensorTypeInfo& info : TensorTypes()) {
    if (info.block_elements > 32) continue;
    for (int64_t cols : {1, 5, 31, 32, 45, 289}) {
      if (cols % info.block_elements != 0) continue;
      for (int64_t tokens : {1, 3, 14}) {
        const Weights weights = RandomWeights(info.type, 19, cols, 3);
        const auto x = RandomActivations(tokens * cols, 4);
        ExpectClose(Multiply(pool_, mode(), weights.view, x, tokens),
                    Reference(mode(), weights.view, x, tokens),
                    std::string(info.name) + " cols " + std::to_string(cols));
      }
    }
  }
}

TEST_P(MatMulOnTarget, GivesTheSameBitsHoweverTokensAreSplitAndThreadsAreCounted) {
  constexpr int64_t kRows = 51, kCols = 1280, kTokens = 300;
  ThreadPool one(1), three(3);
  for (const TensorTypeInfo& info : TensorTypes()) {
    const Weights weights = RandomWeights(info.type, kRows, kCols, 5);
    const auto x = RandomActivations(kTokens * kCols, 6);
    const auto whole = Multiply(pool_, mode(), weights.view, x, kTokens);
    EXPECT_EQ(Multiply(one, mode(), weights.view, x, kTokens), whole) << info.name;
    EXPECT_EQ(Multiply(three, mode(), weights.view, x, kTokens), whole) << info.name;
    int64_t first = 0;
    for (int64_t count : {1, 1, 2, 3, 5, 8, 11, 12, 13, 100, 144}) {
      const std::vector<float> part(x.begin() + first * kCols, x.begin() + (first + count) * kCols);
      const std::vector<float> expected(whole.begin() + first * kRows,
                                        whole.begin() + (first + count) * kRows);
      EXPECT_EQ(Multiply(three, mode(), weights.view, part, count), expected) << info.name << ", " << count;
      first += count;
    }
    ASSERT_EQ(first, kTokens);
  }
}

TEST_P(MatMulOnTarget, OutputsOfOneCallEqualThoseOfSeparateCalls) {
  constexpr int64_t kCols = 512;
  const TensorType types[] = {TensorType::kQ4_K, TensorType::kF16,  TensorType::kQ8_0, TensorType::kQ6_K,
                              TensorType::kF32,  TensorType::kQ5_0, TensorType::kQ4_0, TensorType::kQ4_1,
                              TensorType::kBF16, TensorType::kQ5_1};
  for (int64_t tokens : {1, 9}) {
    const auto x = RandomActivations(tokens * kCols, 2);
    std::vector<Weights> weights;
    std::vector<std::vector<float>> results;
    int64_t rows = 6;
    for (TensorType type : types) {
      rows += 11;
      weights.push_back(RandomWeights(type, rows, kCols, static_cast<uint32_t>(rows)));
      results.emplace_back(static_cast<size_t>(tokens * rows), kNan);
    }
    std::vector<MatMulOutput> outputs;
    for (size_t i = 0; i < weights.size(); ++i) {
      outputs.push_back({weights[i].view, nullptr, results[i].data(), weights[i].view.rows, false});
    }
    MatMulScratch scratch;
    MatMul(pool_, mode(), outputs, x.data(), tokens, kCols, scratch);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(results[i], Multiply(pool_, mode(), weights[i].view, x, tokens)) << i;
    }
  }
}

TEST_P(MatMulOnTarget, AddsBiasAndAccumulatesAndKeepsToItsStrides) {
  constexpr int64_t kRows = 21, kCols = 64, kTokens = 5, kXStride = 70, kYStride = 30;
  const Weights weights = RandomWeights(TensorType::kQ8_0, kRows, kCols, 1);
  const auto packed = RandomActivations(kTokens * kCols, 2);
  std::vector<float> x(kTokens * kXStride, kNan);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::copy_n(packed.begin() + t * kCols, kCols, x.begin() + t * kXStride);
  }
  const auto product = Multiply(pool_, mode(), weights.view, packed, kTokens);
  const auto bias = RandomActivations(kRows, 3);
  for (const bool use_bias : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const auto before = RandomActivations(kTokens * kYStride, 4);
      auto y = before;
      MatMulScratch scratch;
      const MatMulOutput output{weights.view, use_bias ? bias.data() : nullptr, y.data(), kYStride,
                                accumulate};
      MatMul(pool_, mode(), {&output, 1}, x.data(), kTokens, kXStride, scratch);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t r = 0; r < kYStride; ++r) {
          const size_t at = static_cast<size_t>(t * kYStride + r);
          float expected = before[at];
          if (r < kRows) {
            expected = product[static_cast<size_t>(t * kRows + r)];
            if (use_bias) expected += bias[static_cast<size_t>(r)];
            if (accumulate) expected += before[at];
          }
          EXPECT_EQ(y[at], expected) << t << ", " << r;
        }
      }
    }
  }
}

TEST_P(MatMulOnTarget, ANonFiniteActivationShowsInItsTokenOnly) {
  for (float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    for (TensorType type : {TensorType::kQ4_1, TensorType::kQ8_0, TensorType::kQ6_K, TensorType::kF16}) {
      const Weights weights = RandomWeights(type, 20, 256, 9);
      auto x = RandomActivations(3 * 256, 10);
      x[256 + 100] = bad;
      const auto y = Multiply(pool_, mode(), weights.view, x, 3);
      for (size_t r = 0; r < 20; ++r) {
        EXPECT_TRUE(std::isfinite(y[r]));
        EXPECT_FALSE(std::isfinite(y[20 + r]));
        EXPECT_TRUE(std::isfinite(y[40 + r]));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MatMulOnTarget, testing::ValuesIn(AllTargets()), TargetLabel);

TEST(MatMul, DoesNothingForNoOutputsNoTokensOrNoRows) {
  ThreadPool pool(2);
  MatMulScratch scratch;
  const float x[32] = {};
  MatMul(pool, ActivationMode::kInt8, {}, x, 1, 32, scratch);
  const Weights weights = RandomWeights(TensorType::kQ4_0, 0, 32, 1);
  float y = 5;
  const MatMulOutput output{weights.view, nullptr, &y, 1, false};
  MatMul(pool, ActivationMode::kInt8, {&output, 1}, x, 1, 32, scratch);
  MatMul(pool, ActivationMode::kFloat, {&output, 1}, x, 0, 32, scratch);
  EXPECT_EQ(y, 5);
}

}  // namespace
}  // namespace blockgtq::cpu
