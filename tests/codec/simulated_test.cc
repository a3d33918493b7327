// Simulated recipes: each format against an independent implementation (tests/data/codec/make_simulated.py),
// what the stored bytes are, and the rules that a cache relies on.
#include "src/codec/simulated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/codec/recipe.h"
#include "src/codec/record.h"
#include "src/codec/reference_codec.h"
#include "src/codec/simulated_parts.h"
#include "tests/codec/codec_fixtures.h"

namespace blockgtq {
namespace {

constexpr int kDim = 64, kTokens = 72, kCalibrationTokens = 48;

std::shared_ptr<const RopeTable> Rope(int dim) {
  RopeConfig config;
  config.head_dim = config.rotary_dims = dim;
  config.pairing = RopePairing::kNeox;
  return std::make_shared<RopeTable>(config);
}

// Statistics that Simulate accepts; what these recipes read is keys and values.
HeadCalibration Calibration(std::vector<float> keys, std::vector<float> values, int dim) {
  StatisticsAccumulator accumulator(dim);
  for (size_t i = 0; i < keys.size(); i += static_cast<size_t>(dim)) {
    accumulator.AddKey(&keys[i]);
    accumulator.AddQuery(&keys[i]);
  }
  return {accumulator.Finish(), std::move(keys), std::move(values)};
}

HeadCalibration RandomCalibration(int dim) {
  return Calibration(test::Normals(64 * dim, 5), test::Normals(64 * dim, 6), dim);
}

const Recipe& Named(std::string_view name) { return **FindRecipe(name); }

RecipeOptions OwnBits(const Recipe& recipe, double others) {
  RecipeOptions options;
  options.k_bits = recipe.k_bits > 0 ? recipe.k_bits : others;
  options.v_bits = recipe.v_bits > 0 ? recipe.v_bits : others;
  return options;
}

/// Six layers of one head; layer 2 is one that no recipe treats apart.
constexpr int kLayers = 6, kMiddle = 2;
Result<SimulatedHeads> SimulateSix(const Recipe& recipe, const RecipeOptions& options,
                                   const HeadCalibration& calibration, int dim) {
  const std::vector<HeadCalibration> heads(kLayers, calibration);
  return Simulate(recipe, {kLayers, 1, Rope(dim), heads}, options);
}

/// The arrays of simulated.bin.
struct Reference {
  std::vector<float> keys, values, calibration_keys, calibration_values;
  std::vector<std::vector<float>> read;  // keys and values of each case

  static Reference Load() {
    std::ifstream file(std::string(BGTQ_TEST_DATA) + "/codec/simulated.bin", std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    size_t at = 0;
    const auto take = [&](int rows) {
      std::vector<float> out(static_cast<size_t>(rows) * kDim);
      const size_t size = out.size() * sizeof(float);
      if (at + size > bytes.size()) return std::vector<float>();
      std::memcpy(out.data(), bytes.data() + at, size);
      at += size;
      return out;
    };
    Reference r{take(kTokens), take(kTokens), take(kCalibrationTokens), take(kCalibrationTokens), {}};
    while (at < bytes.size()) r.read.push_back(take(kTokens));
    return r;
  }
};

// The cases of make_simulated.py, in order.
constexpr std::string_view kCases[] = {"kivi",
                                       "kivi-scale-only",
                                       "q8_0",
                                       "q4_0",
                                       "fp8",
                                       "turboquant-k8v4",
                                       "turboquant-4bit",
                                       "turboquant-k3v4",
                                       "turboquant-3bit"};

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

TEST(SimulatedFormats, ReadBackWhatAnIndependentImplementationReads) {
  const Reference reference = Reference::Load();
  ASSERT_EQ(reference.read.size(), 2 * std::size(kCases));
  const HeadCalibration calibration =
      Calibration(reference.calibration_keys, reference.calibration_values, kDim);
  for (size_t i = 0; i < std::size(kCases); ++i) {
    SCOPED_TRACE(kCases[i]);
    const Recipe& recipe = Named(kCases[i]);
    const Result<SimulatedHeads> heads = SimulateSix(recipe, OwnBits(recipe, 2), calibration, kDim);
    ASSERT_TRUE(heads.ok()) << heads.status().message();
    std::vector<float> keys = reference.keys, values = reference.values;
    heads->head(kMiddle, 0).RoundTripKeys({}, keys, 0);
    heads->head(kMiddle, 0).RoundTripValues(values, 0);
    // Elements are of size 1 to 30, steps of these formats of 0.01 and more; the other side finds its
    // Lloyd-Max centroids on a grid.
    EXPECT_LT(LargestDifference(keys, reference.read[2 * i]), 3e-4);
    EXPECT_LT(LargestDifference(values, reference.read[2 * i + 1]), 2e-5);
    // The formats are lossy: comparing a copy with itself would pass too.
    EXPECT_GT(LargestDifference(keys, reference.keys), 1e-3);
  }
}

TEST(SimulatedFormats, StoreTheBytesOfTheirLayouts) {
  struct Case {
    std::string_view recipe;
    double bits, bytes, key_bytes;  // of a head of 128 dims
  };
  for (const Case& c : std::vector<Case>{
           {"kivi", 2, 32 + 16 + 32 + 16, 48},  // codes; fp16 scale and zero a 32 tokens a channel, a 32 dims
           {"kivi-scale-only", 3, 48 + 16 + 48 + 16, 64},
           {"pmkvq", 4, 64 + 4 + 64 + 4, 68},
           {"q8_0", 0, 2 * 4 * 34, 4 * 34},
           {"q4_0", 0, 2 * 4 * 18, 4 * 18},
           {"fp8", 0, 256, 128},
           {"turboquant-k8v4", 0, 128 + 64 + 4, 128},
           {"turboquant-4bit", 0, 64 + 2 + 64 + 4, 66},
           {"turboquant-k3v4", 0, 48 + 2 + 64 + 4, 50},
           {"turboquant-3bit", 0, 48 + 2 + 48 + 4, 50}}) {
    SCOPED_TRACE(c.recipe);
    const Recipe& recipe = Named(c.recipe);
    const Result<SimulatedHeads> heads =
        SimulateSix(recipe, OwnBits(recipe, c.bits), RandomCalibration(128), 128);
    ASSERT_TRUE(heads.ok()) << heads.status().message();
    EXPECT_DOUBLE_EQ(heads->head(kMiddle, 0).bytes_per_token(), c.bytes);
    EXPECT_DOUBLE_EQ(heads->head(kMiddle, 0).key_bytes_per_token(), c.key_bytes);
  }
}

TEST(SimulatedFormats, TurboQuantKeepsTheOuterLayersInBf16) {
  const Recipe& recipe = Named("turboquant-3bit");
  const Result<SimulatedHeads> heads = SimulateSix(recipe, OwnBits(recipe, 0), RandomCalibration(64), 64);
  ASSERT_TRUE(heads.ok());
  for (int layer : {0, 1, 4, 5}) EXPECT_EQ(heads->head(layer, 0).bytes_per_token(), 256) << layer;
  EXPECT_DOUBLE_EQ(heads->bytes_per_token_per_head(), (4 * 256 + 2 * (24 + 2 + 24 + 4)) / 6.0);
  std::vector<float> key = test::Normals(64, 1), read = key;
  heads->head(0, 0).RoundTripKeys({}, read, 0);
  for (int d = 0; d < 64; ++d) EXPECT_NEAR(read[d], key[d], std::abs(key[d]) / 256);
}

// A cache passes a range in pieces: what it gets must not depend on where it cuts, as far as units allow.
TEST(SimulatedFormats, APieceReadsAsItDoesWithinTheWhole) {
  constexpr int kLength = 150;
  for (const Recipe& recipe : Recipes()) {
    if (recipe.kind != CacheKind::kSimulated) continue;
    SCOPED_TRACE(recipe.name);
    const Result<SimulatedHeads> heads =
        SimulateSix(recipe, OwnBits(recipe, 3), RandomCalibration(kDim), kDim);
    ASSERT_TRUE(heads.ok()) << heads.status().message();
    const SimulatedHead& head = heads->head(kMiddle, 0);
    const std::vector<float> keys = test::Normals(kLength * kDim, 8),
                             values = test::Normals(kLength * kDim, 9);
    std::vector<float> whole_keys = keys, whole_values = values, piece_keys = keys, piece_values = values;
    head.RoundTripKeys({}, whole_keys, 0);
    head.RoundTripValues(whole_values, 0);
    const int unit = head.token_unit();
    for (int begin = 0, step = unit; begin < kLength; begin += step, step = unit * (1 + begin % 3)) {
      const int end = std::min(begin + step, kLength), before = std::min(head.history_tokens(), begin);
      const std::span<const float> history(&keys[static_cast<size_t>(begin - before) * kDim],
                                           static_cast<size_t>(before) * kDim);
      const size_t first = static_cast<size_t>(begin) * kDim, size = static_cast<size_t>(end - begin) * kDim;
      head.RoundTripKeys(history, {&piece_keys[first], size}, begin);
      head.RoundTripValues({&piece_values[first], size}, begin);
    }
    EXPECT_EQ(piece_keys, whole_keys);
    EXPECT_EQ(piece_values, whole_values);
  }
}

TEST(SimulatedFormats, KiviScaleOnlyClipsToTheGroupBefore) {
  const Result<SimulatedHeads> heads =
      SimulateSix(Named("kivi-scale-only"), {.k_bits = 4, .v_bits = 4}, RandomCalibration(kDim), kDim);
  ASSERT_TRUE(heads.ok());
  std::vector<float> keys(64 * kDim, 0.0f);  // group 0 spans [-1, 1], group 1 holds 5
  for (int t = 0; t < 32; ++t) std::fill_n(&keys[t * kDim], kDim, t % 2 == 0 ? -1.0f : 1.0f);
  std::fill(keys.begin() + 32 * kDim, keys.end(), 5.0f);
  heads->head(0, 0).RoundTripKeys({}, keys, 0);
  for (size_t i = 32 * kDim; i < keys.size(); ++i) ASSERT_NEAR(keys[i], 1.0f, 1e-3);
}

TEST(SimulatedFormats, OnlyKiviCodesTokensTogether) {
  for (const Recipe& recipe : Recipes()) {
    if (recipe.kind != CacheKind::kSimulated) continue;
    const Result<SimulatedHeads> heads =
        SimulateSix(recipe, OwnBits(recipe, 3), RandomCalibration(kDim), kDim);
    ASSERT_TRUE(heads.ok()) << heads.status().message();
    EXPECT_EQ(heads->token_unit(), recipe.name == "kivi" ? 32 : 1) << recipe.name;
  }
}

TEST(PmKvq, HalvedCodesAreTheNearest) {
  for (int bits : {16, 8, 4}) {
    const double range = (1 << bits) - 1, half_range = (1 << (bits / 2)) - 1;
    for (int code = 0; code < 1 << bits; ++code) {
      ASSERT_EQ(HalveCode(code, bits), std::lround(code / range * half_range)) << code << " of " << bits;
    }
  }
}

TEST(PmKvq, WidthsAreTheBestOfAllWithinTheBudget) {
  constexpr int kCount = 5;
  const std::vector<int> widths = {2, 4, 8};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<float> size = test::Normals(2 * kCount, seed);
    std::vector<std::vector<double>> cost;
    for (int l = 0; l < kCount; ++l) {  // not always falling by the same factor
      const double whole = std::exp(2 * size[2 * l]), ratio = 0.3 + 0.2 * std::tanh(size[2 * l + 1]);
      cost.push_back({whole, whole * ratio, whole * ratio * ratio});
    }
    for (double mean : {2.0, 2.8, 3.0, 4.0, 5.5, 8.0}) {
      double least = INFINITY;
      for (int code = 0; code < 243; ++code) {
        int bits = 0, rest = code;
        double total = 0;
        for (int l = 0; l < kCount; ++l, rest /= 3) {
          bits += widths[rest % 3];
          total += cost[l][rest % 3];
        }
        if (bits <= mean * kCount) least = std::min(least, total);
      }
      const std::vector<int> chosen = ChooseLayerWidths(cost, widths, mean);
      ASSERT_EQ(chosen.size(), static_cast<size_t>(kCount));
      double total = 0, bits = 0;
      for (int l = 0; l < kCount; ++l) {
        total += cost[l][chosen[l]];
        bits += widths[chosen[l]];
      }
      EXPECT_LE(bits, mean * kCount);
      EXPECT_DOUBLE_EQ(total, least) << "seed " << seed << ", mean width " << mean;
    }
  }
}

TEST(PmKvq, SensitiveLayersGetTheWiderCodes) {
  std::vector<HeadCalibration> heads(4, RandomCalibration(kDim));
  for (double& energy : heads[2].statistics.query_energy) energy *= 100;
  const Result<SimulatedHeads> simulated =
      Simulate(Named("pmkvq"), {4, 1, Rope(kDim), heads}, {.k_bits = 2.5, .v_bits = 4});
  ASSERT_TRUE(simulated.ok()) << simulated.status().message();
  std::vector<double> key_bytes;
  for (int layer = 0; layer < 4; ++layer)
    key_bytes.push_back(simulated->head(layer, 0).key_bytes_per_token());
  EXPECT_EQ(key_bytes, (std::vector<double>{16 + 4, 16 + 4, 32 + 4, 16 + 4}));
}

// With one width in the paper's group of one head, against the plain quantiser: an error of at most half a
// step, and a little for the bf16 scale.
TEST(PmKvq, ValuesReadWithinHalfAStep) {
  const Result<SimulatedHeads> heads =
      SimulateSix(Named("pmkvq"), {.k_bits = 4, .v_bits = 4}, RandomCalibration(kDim), kDim);
  ASSERT_TRUE(heads.ok()) << heads.status().message();
  std::vector<float> values = test::Normals(kDim, 11), read = values;
  heads->head(0, 0).RoundTripValues(read, 0);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double step = (*high - *low) / 15;
  EXPECT_LT(LargestDifference(values, read), 0.56 * step);
  EXPECT_GT(LargestDifference(values, read), 0.4 * step);
}

/// PM-KVQ's memory of one vector as codes that are narrowed in place, in double but for what is stored in
/// bf16: scale, zero point and what is read.
class NarrowedVector {
 public:
  explicit NarrowedVector(const std::vector<float>& x) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    zero_ = Bf16(*low);
    scale_ = Bf16((double{*high} - *low) / 65535);
    for (const float v : x) codes_.push_back(std::clamp(std::round((v - zero_) / scale_), 0.0, 65535.0));
  }
  void Halve() {
    const double range = std::exp2(bits_) - 1, narrow = std::exp2(bits_ / 2) - 1;
    for (double& code : codes_) code = std::round(code / range * narrow);
    scale_ = Bf16(scale_ * (range / narrow));
    bits_ /= 2;
  }
  int bits() const { return bits_; }
  float Read(size_t i) const { return Bf16(codes_[i] * scale_ + zero_); }

 private:
  static float Bf16(double x) {  // 8 bits of mantissa, ties to even
    int exponent = 0;
    const double m = std::frexp(x, &exponent);
    return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(m, 8)), exponent - 8));
  }
  int bits_ = 16;
  double zero_ = 0, scale_ = 0;
  std::vector<double> codes_;
};

// Keys of 2 bits and values of 4 at last, memory for 80 tokens: keys have room for 10 tokens of 16 bits, 20
// of 8, 40 of 4; values for 20 of 16, 40 of 8. Each token's codes are kept and narrowed as the sequence
// outgrows them.
TEST(PmKvq, CodesAreNarrowedInPlaceAsMemoryFills) {
  // Pairs of size 1: smoothing divides by 1, whatever its exponent.
  std::vector<float> unit(kCalibrationTokens * kDim, 0.0f);
  for (size_t i = 0; i < unit.size(); i += 2) unit[i] = 1;
  const Result<SimulatedHeads> heads =
      SimulateSix(Named("pmkvq"), {.k_bits = 2, .v_bits = 4, .memory_tokens = 80},
                  Calibration(unit, test::Normals(kCalibrationTokens * kDim, 6), kDim), kDim);
  ASSERT_TRUE(heads.ok()) << heads.status().message();
  const SimulatedHead& head = heads->head(kMiddle, 0);
  std::vector<std::vector<float>> vectors;
  std::vector<NarrowedVector> keys, values;
  int key_bits = 16, value_bits = 16;
  for (int count = 1; count <= 100; ++count) {
    vectors.push_back(test::Normals(kDim, 100 + count));
    for (auto [side, bits, last] : {std::tuple{&keys, &key_bits, 2}, {&values, &value_bits, 4}}) {
      side->emplace_back(vectors.back());
      while (side->back().bits() > *bits) side->back().Halve();
      if (count * *bits <= 80 * last || *bits == last) continue;
      *bits /= 2;
      for (NarrowedVector& v : *side) v.Halve();
    }
    const SimulatedHead& now = head.At(count);
    EXPECT_EQ(now.bytes_per_token(), kDim * (key_bits + value_bits) / 8 + 2 * 4) << count;
    for (const int t : {0, count / 2, count - 1}) {
      std::vector<float> key = vectors[t], value = key;
      now.RoundTripKeys({}, key, t);
      now.RoundTripValues(value, t);
      for (size_t d = 0; d < kDim; ++d) {
        ASSERT_EQ(key[d], keys[t].Read(d)) << "key " << t << " of " << count << ", dim " << d;
        ASSERT_EQ(value[d], values[t].Read(d)) << "value " << t << " of " << count << ", dim " << d;
      }
    }
  }
  const std::vector<std::pair<int64_t, double>> steps = {
      {0, 128 + 128 + 8}, {11, 64 + 128 + 8}, {21, 32 + 64 + 8}, {41, 16 + 32 + 8}};
  EXPECT_EQ(heads->BytesByLength(), steps);
  EXPECT_EQ(heads->bytes_per_token_per_head(), 16 + 32 + 8);  // of full memory
}

TEST(PmKvq, MemoryForTokensIsItsAlone) {
  for (const char* name : {"kivi", "q4_0", "sim:aligned"}) {
    RecipeOptions options = OwnBits(Named(name), 4);
    options.memory_tokens = 100;
    const Status refused = SimulateSix(Named(name), options, RandomCalibration(kDim), kDim).status();
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument) << name;
    EXPECT_THAT(refused.message(), testing::HasSubstr("only pmkvq narrows"));
  }
  EXPECT_FALSE(CheckMemoryTokens(Named("pmkvq"), -1).ok());
  EXPECT_FALSE(CheckMemoryTokens(Named("pmkvq"), std::numeric_limits<int64_t>::max()).ok());
  EXPECT_TRUE(CheckMemoryTokens(Named("pmkvq"), 1).ok());
}

TEST(SimulatedTwin, ReadsWhatTheRecordsDecodeTo) {
  const HeadCalibration calibration = RandomCalibration(kDim);
  for (std::string_view name : {"aligned", "paper", "uniform"}) {
    SCOPED_TRACE(name);
    const Result<SimulatedHeads> twins =
        SimulateSix(Named("sim:" + std::string(name)), {}, calibration, kDim);
    ASSERT_TRUE(twins.ok()) << twins.status().message();
    const HeadPlan plan = *Named(name).plan_head(calibration, {}, kMiddle, 0);
    const RecordLayout layout = RecordLayout::For(plan);
    const auto rope = Rope(kDim);
    constexpr int kFirst = 128 + 10, kCount = 20;
    std::vector<float> keys = test::Normals(kCount * kDim, 3), values = test::Normals(kCount * kDim, 4);
    std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
    ASSERT_TRUE(reference::EncodeKeys(plan, layout, *rope, keys, kFirst, record).ok());
    ASSERT_TRUE(reference::EncodeValues(plan, layout, values, kFirst, record).ok());
    twins->head(kMiddle, 0).RoundTripKeys({}, keys, kFirst);
    twins->head(kMiddle, 0).RoundTripValues(values, kFirst);
    std::vector<float> key(kDim), value(kDim);
    for (int t = 0; t < kCount; ++t) {
      reference::DecodeKey(plan, layout, *rope, record, kFirst + t, key.data());
      reference::DecodeValue(plan, layout, record, (kFirst + t) % 64, value.data());
      EXPECT_TRUE(std::equal(key.begin(), key.end(), &keys[t * kDim])) << t;
      EXPECT_TRUE(std::equal(value.begin(), value.end(), &values[t * kDim])) << t;
    }
    EXPECT_DOUBLE_EQ(twins->head(kMiddle, 0).bytes_per_token(), layout.bytes / 64.0);
  }
}

TEST(Simulate, RefusesWhatAFormatHasNotByName) {
  const auto message = [](std::string_view name, const RecipeOptions& options, int dim) {
    return SimulateSix(Named(name), options, RandomCalibration(dim), dim).status().message();
  };
  EXPECT_EQ(message("q8_0", {.k_bits = 3, .v_bits = 3}, 64),
            "recipe q8_0: K bits 3 and V bits 3 asked for, it has 8 and 8");
  EXPECT_EQ(message("turboquant-k3v4", {.k_bits = 4, .v_bits = 4}, 64),
            "recipe turboquant-k3v4: K bits 4 and V bits 4 asked for, it has 3 and 4");
  EXPECT_THAT(message("kivi", {.k_bits = 2.5, .v_bits = 2}, 64),
              testing::HasSubstr("1, 2, 3, 4, 5, 6, 7, 8"));
  EXPECT_THAT(message("pmkvq", {.k_bits = 1.5, .v_bits = 2}, 64), testing::HasSubstr("2, 4 or 8"));
  EXPECT_THAT(message("turboquant-3bit", {.k_bits = 3, .v_bits = 3}, 96), testing::HasSubstr("head dim 96"));
  EXPECT_THAT(message("q4_0", {.k_bits = 4, .v_bits = 4}, 80), testing::HasSubstr("head dim 80"));
  EXPECT_THAT(message("fp16", {}, 64), testing::HasSubstr("nothing to simulate"));
}

TEST(Simulate, RefusesACalibrationThatIsNotTheModels) {
  const std::vector<HeadCalibration> two(2, RandomCalibration(kDim));
  const auto code = [&](std::string_view name, const SimulationInput& input) {
    return Simulate(Named(name), input, OwnBits(Named(name), 3)).status().code();
  };
  EXPECT_EQ(code("fp8", {2, 1, Rope(kDim), two}), ErrorCode::kOk);
  EXPECT_EQ(code("fp8", {3, 1, Rope(kDim), two}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("fp8", {2, 1, Rope(128), two}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("fp8", {2, 1, Rope(kDim), {}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("aligned", {2, 1, Rope(kDim), {}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("q8_0", {2, 1, Rope(kDim), {}}), ErrorCode::kOk);
  EXPECT_EQ(code("q8_0", {2, 1, nullptr, {}}), ErrorCode::kInvalidArgument);
}

TEST(SimulatedParts, E4m3RoundsToItsGridAndSaturates) {
  for (float exact : {0.0f, 448.0f, -448.0f, 1.0f, 1.125f, 0.015625f, 0.001953125f}) {
    EXPECT_EQ(RoundToE4m3(exact), exact);
  }
  EXPECT_EQ(RoundToE4m3(1.0625f), 1.0f);  // ties go to the even mantissa
  EXPECT_EQ(RoundToE4m3(1.1875f), 1.25f);
  EXPECT_EQ(RoundToE4m3(1e9f), 448.0f);
  EXPECT_EQ(RoundToE4m3(-470.0f), -448.0f);
  EXPECT_EQ(RoundToE4m3(0.0008f), 0.0f);
  EXPECT_EQ(RoundToE4m3(0.0011f), 0.001953125f);
}

TEST(SimulatedParts, ARangeWithoutWidthReadsBackItsValue) {
  std::vector<float> x(40, 0.75f);
  RoundTripGroups(x, 32, 2);
  EXPECT_EQ(x, std::vector<float>(40, 0.75f));
}

}  // namespace
}  // namespace blockgtq
