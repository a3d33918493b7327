// Recipes: stored bytes, error predictions, mean choice, norm references, seeds, degenerate heads, refusals.
#include "src/codec/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "src/codec/head_builder.h"
#include "src/codec/logit_error.h"
#include "src/codec/record.h"
#include "src/codec/reference_codec.h"
#include "src/core/allocator.h"
#include "src/core/lloyd_max.h"
#include "tests/codec/codec_fixtures.h"

namespace blockgtq {
namespace {

using test::SyntheticHead;

HeadPlan MustPlan(const char* name, const HeadCalibration& calibration, double k_bits, double v_bits,
                  uint64_t seed = 1, int layer = 0, int kv_head = 0) {
  const Result<const Recipe*> recipe = FindRecipe(name);
  EXPECT_TRUE(recipe.ok());
  Result<HeadPlan> head =
      (*recipe)->plan_head(calibration, {.k_bits = k_bits, .v_bits = v_bits, .seed = seed}, layer, kv_head);
  EXPECT_TRUE(head.ok()) << head.status().message();
  return head.ok() ? *head : HeadPlan();
}

Status Validity(const HeadPlan& head) {
  Plan plan;
  plan.recipe = "x";
  plan.k_bits = plan.v_bits = 3;
  plan.model = {"llama", 1, 1, 1, head.head_dim, 10000.0, head.head_dim, "neox", "", ""};
  plan.heads = {head};
  return plan.Validate();
}

double BytesPerToken(const HeadPlan& head) { return RecordLayout::For(head).bytes / 64.0; }

TEST(Recipe, RegistryHasTheDocumentedRows) {
  std::vector<std::string_view> names;
  for (const Recipe& recipe : Recipes()) {
    names.push_back(recipe.name);
    EXPECT_EQ(recipe.kind == CacheKind::kPacked, recipe.plan_head != nullptr);
    EXPECT_EQ(recipe.kind == CacheKind::kSimulated, !recipe.twin_of.empty() || recipe.simulate != nullptr);
    EXPECT_FALSE(recipe.summary.empty());
  }
  EXPECT_EQ(names, (std::vector<std::string_view>{
                       "aligned", "paper", "uniform", "fp16", "fp32", "sim:aligned", "sim:paper",
                       "sim:uniform", "kivi", "kivi-scale-only", "pmkvq", "q8_0", "q4_0", "fp8",
                       "turboquant-k8v4", "turboquant-4bit", "turboquant-k3v4", "turboquant-3bit"}));
  const Result<const Recipe*> unknown = FindRecipe("alinged");
  EXPECT_EQ(unknown.status().code(), ErrorCode::kNotFound);
  EXPECT_NE(unknown.status().message().find("aligned, paper, uniform, fp16, fp32"), std::string::npos);
}

TEST(Recipe, AlignedKeepsItsStoredBytes) {
  struct Case {
    int head_dim;
    double bits, bytes;
  };
  for (const Case& c :
       {Case{64, 2, 36}, {64, 3, 52}, {64, 4, 68}, {128, 2, 69}, {128, 3, 101}, {128, 4, 133}}) {
    for (double octaves : {0.0, 0.5, 1.5, 3.0}) {
      const HeadCalibration calibration = SyntheticHead(c.head_dim, octaves, 4.0, 3).Calibrate(256, 4);
      const HeadPlan head = MustPlan("aligned", calibration, c.bits, c.bits);
      EXPECT_LE(BytesPerToken(head), c.bytes);
      EXPECT_GE(BytesPerToken(head), c.bytes - 4);  // and spends them
      EXPECT_TRUE(Validity(head).ok()) << Validity(head).message();
    }
  }
}

// MLA: a rope key of 32 dims and a latent of 64, planned together.
TEST(LatentHead, RopeKeyAndLatentHaveGroupsOfTheirOwn) {
  HeadCalibration calibration = SyntheticHead(96, 1.5, 4.0, 3).Calibrate(256, 4);
  calibration.latent_dims = 64;
  calibration.values.clear();
  for (const char* name : {"aligned", "paper", "uniform"}) {
    const Result<const Recipe*> recipe = FindRecipe(name);
    ASSERT_TRUE(recipe.ok());
    const Result<HeadPlan> head = PlanHead(**recipe, calibration, {3, 3, 1}, 0, 0);
    ASSERT_TRUE(head.ok()) << name << ": " << head.status().message();
    EXPECT_TRUE(Validity(*head).ok()) << name << ": " << Validity(*head).message();
    EXPECT_EQ(head->latent_dims, 64);
    EXPECT_EQ(head->value_units(), 0);
    int rope_dims = 0;
    for (const GroupPlan& group : head->groups) {
      double energy[2] = {0, 0};  // of T's rows on the rope key, on the latent
      for (int r = 0; r < group.dims; ++r) {
        for (int d = 0; d < 96; ++d) {
          const size_t row = static_cast<size_t>(kUnitDims * group.first_unit + r);
          energy[d < 32 ? 0 : 1] += std::abs(head->key_transform[row * 96 + static_cast<size_t>(d)]);
        }
      }
      EXPECT_TRUE(energy[0] == 0 || energy[1] == 0) << name;
      if (energy[0] > 0) rope_dims += group.dims;
    }
    EXPECT_EQ(rope_dims, 32) << name;
    if (std::string_view(name) == "paper") continue;  // its narrow groups are padded
    // Nothing is stored twice: 96 dims at 3 bits, and norms.
    EXPECT_GE(BytesPerToken(*head), 36) << name;
    EXPECT_LE(BytesPerToken(*head), 36 + 2.0 * static_cast<double>(head->groups.size()) + 6) << name;
  }
}

TEST(LatentHead, TheLatentTakesTheLargerOfBothBudgets) {
  HeadCalibration calibration = SyntheticHead(96, 0.0, 0.0, 3).Calibrate(256, 4);
  calibration.latent_dims = 64;
  calibration.values.clear();
  const Result<const Recipe*> recipe = FindRecipe("uniform");
  ASSERT_TRUE(recipe.ok());
  for (const auto& [k_bits, v_bits] : {std::pair{2.0, 4.0}, std::pair{4.0, 2.0}}) {
    const Result<HeadPlan> head = PlanHead(**recipe, calibration, {k_bits, v_bits, 1}, 0, 0);
    ASSERT_TRUE(head.ok()) << head.status().message();
    for (const GroupPlan& group : head->groups) EXPECT_EQ(group.width, group.dims == 64 ? 4 : k_bits);
  }
}

TEST(Recipe, AlignedHonoursFractionalKeyBits) {
  const HeadCalibration calibration = SyntheticHead(128, 1.5, 0.0, 3).Calibrate(256, 4);
  double previous = 0;
  for (double bits : {1.0, 1.5, 2.25, 2.5, 3.5, 6.0, 8.0}) {
    const HeadPlan head = MustPlan("aligned", calibration, bits, 2);
    EXPECT_LE(BytesPerToken(head), bits * 16 + 4 + 33);
    EXPECT_GT(BytesPerToken(head), previous);
    previous = BytesPerToken(head);
  }
}

// Mean squared logit error of decoded keys, RoPE at position 0 and far away.
double LogitError(const HeadPlan& head, const SyntheticHead& source, double* logit_energy = nullptr) {
  const int dim = head.head_dim;
  const RopeTable rope({.head_dim = dim, .rotary_dims = dim, .pairing = RopePairing::kNeox});
  const RecordLayout layout = RecordLayout::For(head);
  double error = 0, energy = 0;
  int pairs = 0;
  for (int64_t first : {0, 6400}) {
    std::vector<std::byte> record(layout.bytes);
    const std::vector<float> pre = source.Keys(64, 100 + first), queries = source.Queries(64, 101 + first);
    std::vector<float> keys(pre.size()), q(dim), decoded(dim);
    for (int t = 0; t < 64; ++t) rope.Rotate(&pre[t * dim], first + t, &keys[t * dim]);
    EXPECT_TRUE(reference::EncodeKeys(head, layout, rope, keys, first, record).ok());
    for (int t = 0; t < 64; ++t) {
      reference::DecodeKey(head, layout, rope, record, first + t, decoded.data());
      for (int s = 0; s < 64; ++s) {
        rope.Rotate(&queries[s * dim], first + 64, q.data());
        double e = 0, l = 0;
        for (int d = 0; d < dim; ++d) {
          e += double{q[d]} * (double{decoded[d]} - keys[t * dim + d]);
          l += double{q[d]} * keys[t * dim + d];
        }
        error += e * e;
        energy += l * l;
        ++pairs;
      }
    }
  }
  if (logit_energy) *logit_energy = energy / pairs;
  return error / pairs;
}

// With isotropic blocks a group's logit error is (sum w)^2 / (2 n) times the codebook's error.
TEST(Recipe, AlignedLogitErrorIsTheObjectiveThatTheAllocatorMinimises) {
  for (double bias : {0.0, 20.0}) {
    const SyntheticHead source(128, 1.0, bias, 8);
    const HeadCalibration calibration = source.Calibrate(2048, 9);
    HeadPlan head = MustPlan("aligned", calibration, 3, 3);
    EXPECT_EQ(head.rounding, Rounding::kSearched);
    const double searched = LogitError(head, source);
    head.rounding = Rounding::kNearest;  // what the error law describes
    const HeadStatistics& s = calibration.statistics;
    double predicted = 0;
    std::vector<double> w;
    for (int i = 0; i < 64; ++i) w.push_back(std::sqrt(s.query_energy[i] * s.centred_key_energy[i]));
    std::sort(w.begin(), w.end(), std::greater<>());
    size_t next = 0;
    for (const GroupPlan& group : head.groups) {
      double sum = 0;
      for (int i = 0; i < group.dims / 2; ++i) sum += w[next++];
      const double d = Distortion(group.width);
      predicted += sum * sum / group.dims * (2 - 2 * std::sqrt(1 - d));
    }
    const double nearest = LogitError(head, source);
    EXPECT_NEAR(nearest / predicted, 1.0, 0.15) << "bias " << bias;
    EXPECT_LT(searched, nearest) << "bias " << bias;
  }
}

// The prediction for any plan under any statistics is the error that the codes make: of a plan used on the
// head that it was made for, and on one of other energies and another mean.
TEST(Recipe, PredictedLogitErrorIsThatOfTheCodes) {
  const SyntheticHead source(64, 1.0, 2.0, 8), other(64, 1.5, 6.0, 21);
  const HeadCalibration made_from = source.Calibrate(2048, 9);
  // paper has groups of one block, whose direction is no normal vector: its codes do a little better.
  for (const auto& [name, tolerance] : {std::pair{"aligned", 0.15}, {"uniform", 0.15}, {"paper", 0.3}}) {
    HeadPlan head = MustPlan(name, made_from, 3, 3);
    head.rounding = Rounding::kNearest;
    head.norm_type = NormType::kHalf;  // the windows of norms are not what is predicted
    for (const SyntheticHead* used_on : {&source, &other}) {
      const HeadStatistics used = used_on->Calibrate(2048, 10).statistics;
      EXPECT_NEAR(LogitError(head, *used_on) / PredictedLogitError(head, used), 1.0, tolerance)
          << name << (used_on == &source ? "" : ", another head");
    }
  }
}

TEST(Recipe, AlignedBeatsPaperBeatsUniformOnUnevenBlocks) {
  const SyntheticHead source(128, 1.0, 0.0, 18);
  const HeadCalibration calibration = source.Calibrate(2048, 9);
  const double aligned = LogitError(MustPlan("aligned", calibration, 3, 3), source);
  const double paper = LogitError(MustPlan("paper", calibration, 3, 3), source);
  const double uniform = LogitError(MustPlan("uniform", calibration, 3, 3), source);
  EXPECT_LT(aligned, 0.7 * paper);
  EXPECT_LT(paper, 0.7 * uniform);
}

TEST(Recipe, AlignedRemovesTheMeanOfTheUnitsThatHoldIt) {
  const HeadPlan biased = MustPlan("aligned", SyntheticHead(64, 0.3, 10.0, 5).Calibrate(1024, 6), 3, 3);
  EXPECT_EQ(biased.mean_units, (std::vector<int>{0}));
  ASSERT_EQ(biased.key_mean.size(), 64u);
  for (int d = 0; d < 64; ++d) EXPECT_EQ(biased.key_mean[d] != 0.0f, d < 16) << d;
  const HeadPlan centred = MustPlan("aligned", SyntheticHead(64, 0.3, 0.0, 5).Calibrate(1024, 6), 3, 3);
  EXPECT_TRUE(centred.mean_units.empty());
  EXPECT_TRUE(centred.key_mean.empty());
}

TEST(Recipe, KeyAndQueryTransformsKeepDotProducts) {
  const SyntheticHead source(96, 1.5, 0.0, 12);
  const HeadCalibration calibration = source.Calibrate(512, 13);
  for (const char* name : {"aligned", "paper", "uniform"}) {
    const HeadPlan head = MustPlan(name, calibration, 3, 3);
    const std::vector<float> q = source.Queries(1, 14), k = source.Keys(1, 15);
    double direct = 0, transformed = 0, size = 0;
    for (int d = 0; d < 96; ++d) direct += double{q[d]} * k[d], size += std::fabs(double{q[d]} * k[d]);
    for (int r = 0; r < 16 * head.key_units(); ++r) {
      double a = 0, b = 0;
      for (int d = 0; d < 96; ++d) {
        a += double{head.query_transform[r * 96 + d]} * q[d];
        b += double{head.key_transform[r * 96 + d]} * k[d];
      }
      transformed += a * b;
    }
    EXPECT_NEAR(direct, transformed, 1e-5 * size) << name;
    EXPECT_TRUE(Validity(head).ok()) << name << ": " << Validity(head).message();
  }
}

TEST(Recipe, NormReferencesHoldThePostRopeNormsOfTheGroups) {
  const SyntheticHead source(64, 1.0, 5.0, 22);
  const HeadCalibration calibration = source.Calibrate(512, 23);
  const HeadPlan head = MustPlan("aligned", calibration, 3, 3);
  const RopeTable rope({.head_dim = 64, .rotary_dims = 64, .pairing = RopePairing::kNeox});
  std::vector<float> key(64), mean(64);
  for (int t = 0; t < 512; ++t) {
    rope.Rotate(&calibration.keys[t * 64], t, key.data());
    if (!head.key_mean.empty()) rope.Rotate(head.key_mean.data(), t, mean.data());
    for (const GroupPlan& group : head.groups) {
      double energy = 0;
      for (int r = 16 * group.first_unit; r < 16 * group.first_unit + group.dims; ++r) {
        double y = 0;
        for (int d = 0; d < 64; ++d) y += double{head.key_transform[r * 64 + d]} * (key[d] - mean[d]);
        energy += y * y;
      }
      const double octaves = std::log2(std::sqrt(energy) / group.norm_reference);
      ASSERT_GT(octaves, -4.0);
      ASSERT_LT(octaves, 127.0 / 32 - 0.49);  // half an octave of headroom
    }
  }
}

TEST(Recipe, PaperSpendsItsBitsGreedilyAndGroupsByWidth) {
  const HeadCalibration calibration = SyntheticHead(128, 1.5, 0.0, 32).Calibrate(512, 33);
  const HeadPlan head = MustPlan("paper", calibration, 3, 2);
  EXPECT_EQ(head.norm_type, NormType::kHalf);
  EXPECT_TRUE(head.mean_units.empty());
  int bits = 0, dims = 0, last = 9;
  for (const GroupPlan& group : head.groups) {
    EXPECT_LT(group.code_width, last);
    last = group.code_width;
    EXPECT_EQ(group.width, group.code_width == 6 || group.code_width == 7 ? 8 : group.code_width);
    bits += group.code_width * group.dims;
    dims += group.dims;
  }
  EXPECT_EQ(dims, 128);
  EXPECT_EQ(bits, 3 * 128);
  EXPECT_EQ(head.value.width, 2);
  for (int i = 0; i < 64; ++i) {
    const HeadStatistics& s = calibration.statistics;
    EXPECT_FLOAT_EQ(head.score[i], static_cast<float>(0.5 * (s.query_energy[i] + s.key_energy[i])));
  }
}

TEST(Recipe, UniformIsOneGroup) {
  const HeadCalibration calibration = SyntheticHead(64, 1.0, 0.0, 42).Calibrate(64, 43);
  for (int width = 1; width <= 8; ++width) {
    const HeadPlan head = MustPlan("uniform", calibration, width, width);
    ASSERT_EQ(head.groups.size(), 1u);
    EXPECT_EQ(head.groups[0].dims, 64);
    EXPECT_EQ(head.groups[0].code_width, width);
    EXPECT_EQ(head.groups[0].width, StoredWidth(width));
    EXPECT_EQ(head.value.width, StoredWidth(width));
    EXPECT_TRUE(Validity(head).ok()) << Validity(head).message();
  }
  EXPECT_EQ(BytesPerToken(MustPlan("uniform", calibration, 3, 3)), 52);
}

TEST(Recipe, RotationsDependOnSeedLayerHeadAndStream) {
  std::set<uint64_t> seeds;
  for (uint64_t seed : {0, 1}) {
    for (int layer = 0; layer < 8; ++layer) {
      for (int head = 0; head < 8; ++head) {
        for (int stream = 0; stream < 8; ++stream) seeds.insert(RotationSeed(seed, layer, head, stream));
      }
    }
  }
  EXPECT_EQ(seeds.size(), 2u * 512);
  const HeadCalibration calibration = SyntheticHead(64, 1.0, 0.0, 52).Calibrate(64, 53);
  const HeadPlan base = MustPlan("aligned", calibration, 3, 3, 1, 2, 3);
  EXPECT_EQ(base.key_transform, MustPlan("aligned", calibration, 3, 3, 1, 2, 3).key_transform);
  for (const HeadPlan& other :
       {MustPlan("aligned", calibration, 3, 3, 2, 2, 3), MustPlan("aligned", calibration, 3, 3, 1, 1, 3),
        MustPlan("aligned", calibration, 3, 3, 1, 2, 0)}) {
    EXPECT_EQ(base.groups.size(), other.groups.size());
    EXPECT_NE(base.key_transform, other.key_transform);
    EXPECT_NE(base.value_transform, other.value_transform);
  }
}

TEST(Recipe, DegenerateHeadsGiveValidPlans) {
  const auto with = [](auto change) {
    HeadCalibration c = SyntheticHead(64, 1.0, 3.0, 62).Calibrate(64, 63);
    change(c.statistics);
    return c;
  };
  const auto zero = [](std::vector<double>& v) { std::fill(v.begin(), v.end(), 0.0); };
  const std::vector<HeadCalibration> calibrations = {
      with([&](HeadStatistics& s) {
        zero(s.query_energy), zero(s.key_energy), zero(s.centred_key_energy), zero(s.key_mean);
      }),
      with([&](HeadStatistics& s) { zero(s.query_energy); }),
      with([&](HeadStatistics& s) { zero(s.centred_key_energy); }),
      with([&](HeadStatistics& s) { zero(s.key_energy), zero(s.centred_key_energy), zero(s.key_mean); }),
      with([&](HeadStatistics& s) { s.query_energy[5] = s.key_energy[5] = s.centred_key_energy[5] = 0; }),
      with([&](HeadStatistics& s) { zero(s.query_energy), s.query_energy[0] = 1e30; }),
      with([&](HeadStatistics& s) { s.key_energy[3] = s.centred_key_energy[3] = 1e-40; })};
  for (size_t i = 0; i < calibrations.size(); ++i) {
    for (const char* name : {"aligned", "paper", "uniform"}) {
      const HeadPlan head = MustPlan(name, calibrations[i], 3, 3);
      const Status status = Validity(head);
      EXPECT_TRUE(status.ok()) << name << " " << i << ": " << status.message();
    }
  }
  // A head without any energy: one group at the asked width.
  for (const char* name : {"aligned", "paper"}) {
    const HeadPlan head = MustPlan(name, calibrations[0], 3, 3);
    ASSERT_EQ(head.groups.size(), 1u) << name;
    EXPECT_EQ(head.groups[0].width, 3) << name;
  }
}

// Calibration saw nothing in half of the blocks; a text that excites them as much as the others finds codes
// there, in the narrowest group at worst, whose window of norms holds them.
TEST(Recipe, BlocksThatCalibrationNeverExcitedAreCodedAllTheSame) {
  constexpr int kDim = 64, kTokens = 256;
  for (const double size : {1e-3, 1.0, 1e3}) {
    HeadCalibration calibration;
    StatisticsAccumulator accumulator(kDim);
    calibration.keys = test::Normals(kTokens * kDim, 3, size);
    calibration.values = test::Normals(kTokens * kDim, 4);
    std::vector<float> queries = test::Normals(kTokens * kDim, 5, size);
    for (int t = 0; t < kTokens; ++t) {
      std::fill_n(&calibration.keys[t * kDim + kDim / 2], kDim / 2, 0.0f);
      std::fill_n(&queries[t * kDim + kDim / 2], kDim / 2, 0.0f);
      accumulator.AddKey(&calibration.keys[t * kDim]);
      accumulator.AddQuery(&queries[t * kDim]);
    }
    calibration.statistics = accumulator.Finish();
    for (const char* name : {"aligned", "paper", "uniform"}) {
      const HeadPlan head = MustPlan(name, calibration, 3, 3);
      const RopeTable rope({.head_dim = kDim, .rotary_dims = kDim, .pairing = RopePairing::kNeox});
      const RecordLayout layout = RecordLayout::For(head);
      std::vector<std::byte> record(layout.bytes);
      const std::vector<float> keys = test::Normals(64 * kDim, 6, size);
      ASSERT_TRUE(reference::EncodeKeys(head, layout, rope, keys, 0, record).ok()) << name;
      double error[2] = {}, energy[2] = {};  // of the excited half, and of the other
      std::vector<float> decoded(kDim);
      for (int t = 0; t < 64; ++t) {
        reference::DecodeKey(head, layout, rope, record, t, decoded.data());
        for (int d = 0; d < kDim; ++d) {
          const double x = keys[t * kDim + d], e = decoded[d] - x;
          error[d >= kDim / 2] += e * e;
          energy[d >= kDim / 2] += x * x;
        }
      }
      EXPECT_LT(error[0] / energy[0], 0.1) << name << " " << size;
      EXPECT_LT(error[1] / energy[1], 0.6) << name << " " << size;  // 1 bit leaves 0.40
    }
  }
}

TEST(Recipe, HeadDimsThatAreNoWholeUnitsArePadded) {
  const HeadCalibration calibration = SyntheticHead(72, 1.0, 3.0, 72).Calibrate(128, 73);
  for (const char* name : {"aligned", "paper", "uniform"}) {
    const HeadPlan head = MustPlan(name, calibration, 3, 3);
    EXPECT_TRUE(Validity(head).ok()) << name << ": " << Validity(head).message();
    EXPECT_EQ(head.value.units, 5);
  }
}

TEST(Recipe, BitsThatCannotBeHonouredAreRefusedByName) {
  const HeadCalibration calibration = SyntheticHead(64, 1.0, 0.0, 82).Calibrate(64, 83);
  struct Case {
    const char* recipe;
    double k_bits, v_bits;
    const char* says;
  };
  for (const Case& c : {Case{"aligned", 3, 2.5, "V bits 2.5 must be one of 1, 2, 3, 4, 5, 8"},
                        {"aligned", 3, 6, "V bits 6 must be one of"},
                        {"aligned", 0.5, 3, "K bits 0.5 must lie within 1..8"},
                        {"aligned", 9, 3, "K bits 9"},
                        {"aligned", std::nan(""), 3, "K bits nan"},
                        {"paper", 0, 3, "K bits 0"},
                        {"paper", 3, 2.5, "V bits 2.5"},
                        {"uniform", 2.5, 3, "K bits 2.5 must be one of 1, 2, 3, 4, 5, 6, 7, 8"},
                        {"uniform", 3, 0, "V bits 0"}}) {
    const Result<HeadPlan> head =
        (*FindRecipe(c.recipe))->plan_head(calibration, {.k_bits = c.k_bits, .v_bits = c.v_bits}, 0, 0);
    ASSERT_FALSE(head.ok()) << c.recipe;
    EXPECT_EQ(head.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(head.status().message().find(c.says), std::string::npos) << head.status().message();
  }
}

TEST(Recipe, BadCalibrationIsRefused) {
  const HeadCalibration good = SyntheticHead(64, 1.0, 0.0, 92).Calibrate(64, 93);
  const auto code = [](const HeadCalibration& c) {
    return (*FindRecipe("aligned"))->plan_head(c, {}, 0, 0).status().code();
  };
  HeadCalibration c = good;
  EXPECT_EQ(code(c), ErrorCode::kOk);
  c.statistics.key_energy.pop_back();
  EXPECT_EQ(code(c), ErrorCode::kInvalidArgument);
  c = good;
  c.keys.pop_back();
  EXPECT_EQ(code(c), ErrorCode::kInvalidArgument);
  c = good;
  c.values.clear();
  EXPECT_EQ(code(c), ErrorCode::kInvalidArgument);
  c = good;
  c.statistics.query_energy[3] = std::nan("");
  EXPECT_EQ(code(c), ErrorCode::kNonFinite);
  c = good;
  c.keys[9] = std::nanf("");
  EXPECT_EQ(code(c), ErrorCode::kNonFinite);
}

}  // namespace
}  // namespace blockgtq
