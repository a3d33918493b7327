// One budget over all heads: probes measure what a whole run would, the allocation is the cheapest for its
// model, and the plan keeps to its bytes.
#include "src/eval/joint_plan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>

#include "src/engine/bundled_text.h"
#include "src/eval/first_keys.h"
#include "src/eval/joint_allocation.h"
#include "src/eval/joint_text.h"
#include "src/eval/kld_probe.h"
#include "src/eval/logit_comparison.h"
#include "src/eval/partial_heads.h"
#include "src/eval/plan_check.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

/// Distortions of a quarter a bit, 10 bytes a bit.
std::vector<SideChoice> Choices(std::initializer_list<double> bits, double scale) {
  std::vector<SideChoice> choices;
  for (const double b : bits) choices.push_back({b, static_cast<int64_t>(10 * b), scale * std::exp2(-2 * b)});
  return choices;
}

HeadChoices Head(double scale = 1) {
  return {Choices({1, 1.5, 2, 2.5, 3, 4, 5, 8}, scale), Choices({1, 2, 3, 4, 5, 8}, scale)};
}

HeadProbe Probe(double key_kld, double value_kld, double scale = 1) {
  return {key_kld, value_kld, scale / 16, scale / 16};  // probed at 2 bits
}

TEST(AllocateJointly, EqualHeadsGetEqualBitsAndSensitiveOnesMore) {
  const std::vector<HeadChoices> heads = {Head(), Head(100)};  // the scale of a distortion cancels
  const JointAllocation equal =
      AllocateJointly(heads, std::vector{Probe(1, 1), Probe(1, 1, 100)}, {}, 4 * 30, 7);
  ASSERT_EQ(equal.bits.size(), 2u);
  for (const RecipeOptions& bits : equal.bits) {
    EXPECT_EQ(bits.k_bits, 3);
    EXPECT_EQ(bits.v_bits, 3);
    EXPECT_EQ(bits.seed, 7u);
  }
  EXPECT_NEAR(equal.predicted_kld, 4 * 0.25, 1e-12);  // a bit more than the probe: a quarter each

  // Sixteen times as sensitive: two bits more than the others, as four of any bits a quarter apart are worth.
  const JointAllocation skewed =
      AllocateJointly(heads, std::vector{Probe(16, 1), Probe(1, 1, 100)}, {}, 3 * 20 + 40, 7);
  EXPECT_EQ(skewed.bits[0].k_bits, 4);
  EXPECT_EQ(skewed.bits[0].v_bits, 2);
  EXPECT_EQ(skewed.bits[1].k_bits, 2);
  EXPECT_EQ(skewed.bits[1].v_bits, 2);
}

TEST(AllocateJointly, TheErrorModelBendsTheLaw) {
  const std::vector<HeadChoices> heads = {Head()};
  const std::vector<HeadProbe> probes = {Probe(1, 1)};
  EXPECT_NEAR(AllocateJointly(heads, probes, {.exponent = 0.5}, 60, 2).predicted_kld, 2 * 0.5, 1e-12);
}

// The text excited one head of three only, or none: the others keep usable widths.
TEST(AllocateJointly, HeadsThatDidNotMoveKeepAFloor) {
  const std::vector<HeadChoices> heads = {Head(), Head(), Head()};
  const JointAllocation some =
      AllocateJointly(heads, std::vector{Probe(1, 1), Probe(0, 0), Probe(0, 0)}, {}, 6 * 30, 2);
  for (const RecipeOptions& bits : some.bits) {
    EXPECT_GE(bits.k_bits, 2);
    EXPECT_GE(bits.v_bits, 2);
  }
  const JointAllocation none =
      AllocateJointly(heads, std::vector{Probe(0, 0), Probe(0, 0), Probe(0, 0)}, {}, 6 * 30, 2);
  for (const RecipeOptions& bits : none.bits) {
    EXPECT_EQ(bits.k_bits, 3);
    EXPECT_EQ(bits.v_bits, 3);
  }
}

TEST(AllocateJointly, TooFewBytesGiveNoAllocation) {
  EXPECT_TRUE(AllocateJointly(std::vector{Head()}, std::vector{Probe(1, 1)}, {}, 19, 2).bits.empty());
}

// A head that no token moved has nothing to measure; its choices still differ by their bits.
TEST(HeadChoices, OfAnIdleHeadFollowTheBits) {
  constexpr int kDim = 32, kTokens = 8;
  HeadCalibration idle;
  StatisticsAccumulator accumulator(kDim);
  const std::vector<float> zero(kDim, 0.0f);
  for (int t = 0; t < kTokens; ++t) {
    accumulator.AddQuery(zero.data());
    accumulator.AddKey(zero.data());
  }
  idle.statistics = accumulator.Finish();
  idle.keys.assign(kDim * kTokens, 0.0f);
  idle.values = idle.keys;
  const Recipe& recipe = **FindRecipe("aligned");
  RopeConfig rope;
  rope.head_dim = kDim;
  rope.rotary_dims = kDim;
  const auto choices = MakeHeadChoices(idle, recipe, 2, std::make_shared<RopeTable>(rope), 0, 0);
  ASSERT_TRUE(choices.ok()) << choices.status().message();
  ASSERT_GE(choices->keys.size(), 3u);
  ASSERT_EQ(choices->values.size(), 6u);
  for (const auto* side : {&choices->keys, &choices->values}) {
    for (size_t i = 1; i < side->size(); ++i) {
      EXPECT_GT((*side)[i].bytes, (*side)[i - 1].bytes);
      EXPECT_LT((*side)[i].distortion, (*side)[i - 1].distortion);
    }
  }
}

class JointPlanTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    options_.protection = {0, 0};
    options_.tokens = 256;
    options_.probe_tokens = 96;
    options_.probe_positions = 96;
    options_.check_tokens = 1536;  // in three windows, two of which are what error models are tried on
  }
  Result<JointResult> Make(ResultsFile& results) {
    return CalibrateJointly(*model_, BundledCalibrationText(), options_, results);
  }
  int layers() const { return model_->config().layers; }
  /// On all of the text that plans are measured on, from outside.
  double CheckedKld(const Plan& plan) {
    const auto text = TakeJointText(*model_, BundledCalibrationText(), options_);
    const auto check = PlanCheck::Create(*model_, text->checked,
                                         {.window = text->check_window, .protection = options_.protection});
    return *(*check)->Kld(std::make_shared<const SimulatedHeads>(SimulatePlan(model_->config(), plan, "x")));
  }

  std::unique_ptr<LoadedModel> model_;
  JointOptions options_;
};

// Entering at a late layer is a shortcut: the divergence is that of two whole runs, taken from their logits.
TEST_F(JointPlanTest, AProbeFromALateLayerMeasuresAWholeRun) {
  const auto tokens = CalibrationTokens(*model_, BundledCalibrationText(), 160);
  ASSERT_TRUE(tokens.ok());
  const auto measured = Measure(*model_, *tokens, nullptr);
  ASSERT_TRUE(measured.ok());
  const int layer = layers() - 1;
  const size_t at = static_cast<size_t>(layer) * static_cast<size_t>(model_->config().kv_heads);
  const auto plan = (*FindRecipe("aligned"))->plan_head((*measured)[at], {2, 2, 2}, layer, 0);
  ASSERT_TRUE(plan.ok());
  const auto rope = std::make_shared<RopeTable>(model_->config().rope);
  for (const StoredSide side : {StoredSide::kKeys, StoredSide::kValues}) {
    const auto heads = OneSideStored(model_->config(), *plan, rope, layer, 0, side);
    const auto probe =
        KldProbe::Create(*model_, *tokens, {.window = 160, .positions = 160, .protection = {0, 0}});
    ASSERT_TRUE(probe.ok()) << probe.status().message();
    ASSERT_TRUE((*probe)->Enter(layer).ok());
    const auto late = (*probe)->Kld(heads);
    ASSERT_TRUE(late.ok()) << late.status().message();

    double sum = 0;
    std::vector<std::vector<float>> logits;
    for (const bool exact : {true, false}) {
      CacheOptions cache;
      cache.kind = exact ? CacheKind::kFloat : CacheKind::kSimulated;
      cache.sinks = cache.recent = 0;
      cache.max_tokens = 192;
      cache.simulated = exact ? nullptr : heads;
      const auto context = MakeContext(*model_, cache);
      const SequenceTokens item{*context->cache().AddSequence(), *tokens};
      ASSERT_TRUE(context->Run({&item, 1}, {.strict = true}).ok());
      std::vector<int64_t> rows(tokens->size());
      std::iota(rows.begin(), rows.end(), 0);
      const auto of_rows = context->Logits(rows);
      logits.emplace_back(of_rows->begin(), of_rows->end());
    }
    const size_t vocabulary = static_cast<size_t>(model_->config().vocabulary);
    for (size_t r = 0; r < tokens->size(); ++r) {
      sum += CompareLogits({&logits[0][r * vocabulary], vocabulary}, {&logits[1][r * vocabulary], vocabulary})
                 .kld;
    }
    EXPECT_GT(*late, 0);
    EXPECT_NEAR(*late / (sum / static_cast<double>(tokens->size())), 1.0, 1e-3);
    EXPECT_EQ((*probe)->Enter(layer - 1).code(), ErrorCode::kInvalidArgument);
  }
}

// Layers behind the one whose codes are probed may run exactly, since its other heads and theirs are exact.
TEST_F(JointPlanTest, AProbeOfOneLayerMeasuresWhatAWholeSimulatedCacheDoes) {
  const auto tokens = CalibrationTokens(*model_, BundledCalibrationText(), 160);
  ASSERT_TRUE(tokens.ok());
  const auto measured = Measure(*model_, *tokens, nullptr);
  ASSERT_TRUE(measured.ok());
  const auto rope = std::make_shared<RopeTable>(model_->config().rope);
  const size_t kv_heads = static_cast<size_t>(model_->config().kv_heads);
  for (const Protection& protection : {Protection{0, 0}, Protection{2, 64}}) {
    const auto probe =
        KldProbe::Create(*model_, *tokens, {.window = 160, .positions = 160, .protection = protection});
    ASSERT_TRUE(probe.ok()) << probe.status().message();
    for (int layer = 0; layer < layers(); ++layer) {
      const auto plan =
          (*FindRecipe("aligned"))
              ->plan_head((*measured)[static_cast<size_t>(layer) * kv_heads], {2, 2, 2}, layer, 0);
      ASSERT_TRUE(plan.ok());
      ASSERT_TRUE((*probe)->Enter(layer).ok());
      const auto heads = OneSideStored(model_->config(), *plan, rope, layer, 0, StoredSide::kValues);
      for (int again = 0; again < 2; ++again) {  // the stream into the layer stays as it was
        const auto whole = (*probe)->Kld(heads), alone = (*probe)->KldOfLayer(heads);
        ASSERT_TRUE(whole.ok() && alone.ok());
        EXPECT_GT(*whole, 1e-6);
        EXPECT_NEAR(*alone / *whole, 1.0, 1e-3) << "layer " << layer;
      }
    }
  }
}

TEST_F(JointPlanTest, ThreadsMakeTheSamePlanAndNameTheSameHead) {
  const auto tokens = CalibrationTokens(*model_, BundledCalibrationText(), 128);
  ASSERT_TRUE(tokens.ok());
  auto measured = Measure(*model_, *tokens, nullptr);
  ASSERT_TRUE(measured.ok());
  const RecipeOptions bits{3, 2, 5};
  const auto one = MakePlan(*model_, *measured, "aligned", bits, 1),
             three = MakePlan(*model_, *measured, "aligned", bits, 3);
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_EQ(one->Hash(), three->Hash());
  (*measured)[1].keys[0] = (*measured)[2].keys[0] = NAN;
  const Status status = MakePlan(*model_, *measured, "aligned", bits, 3).status();
  EXPECT_EQ(status.code(), ErrorCode::kNonFinite);
  EXPECT_EQ(status.message().find("layer 0 KV head 1: "), 0u) << status.message();
}

/// Hands on what enters each layer's attention.
class Onlooker : public AttentionObserver {
 public:
  void Observe(int, int64_t, const float* queries, const float* keys, const float*) override {
    on_layer(queries, keys);
  }
  std::function<void(const float* queries, const float* keys)> on_layer;
};

TEST_F(JointPlanTest, FirstKeysAndQueryMomentsAreThoseOfAPlainSum) {
  constexpr int64_t kWindow = 64, kWindows = 2;
  const auto tokens = CalibrationTokens(*model_, BundledCalibrationText(), kWindow * kWindows);
  ASSERT_TRUE(tokens.ok());
  const ModelConfig& config = model_->config();
  const size_t dim = static_cast<size_t>(config.head_dim), heads = static_cast<size_t>(config.heads),
               kv_heads = static_cast<size_t>(config.kv_heads), group = heads / kv_heads;
  const RopeTable rope(config.rope);
  std::vector<FirstKeys> expected(static_cast<size_t>(layers()) * kv_heads);
  for (FirstKeys& head : expected) head.query_moment.assign(dim * dim, 0);
  for (int64_t w = 0; w < kWindows; ++w) {
    CacheOptions cache;
    cache.kind = CacheKind::kFloat;
    cache.max_tokens = kWindow;
    const auto context = MakeContext(*model_, cache);
    std::vector<Token> window(tokens->begin() + w * kWindow, tokens->begin() + (w + 1) * kWindow);
    const std::vector<Token> start = model_->PromptStart(nullptr);
    std::copy(start.begin(), start.end(), window.begin());
    Onlooker onlooker;
    size_t layer = 0;
    onlooker.on_layer = [&](const float* queries, const float* keys) {
      for (size_t h = 0; h < kv_heads; ++h) {
        FirstKeys& head = expected[layer * kv_heads + h];
        std::vector<float> turned(dim);
        rope.Rotate(keys + h * dim, 0, turned.data());
        head.keys.insert(head.keys.end(), turned.begin(), turned.end());
        for (size_t t = 0; t < kWindow; ++t) {
          for (size_t g = 0; g < group; ++g) {
            rope.Rotate(queries + (t * heads + h * group + g) * dim, static_cast<int64_t>(t), turned.data());
            for (size_t i = 0; i < dim; ++i)
              for (size_t j = 0; j < dim; ++j)
                head.query_moment[i * dim + j] +=
                    double{turned[i]} * turned[j] / static_cast<double>(kWindow * kWindows * group);
          }
        }
      }
      ++layer;
    };
    const SequenceTokens item{*context->cache().AddSequence(), window};
    ASSERT_TRUE(context->Run({&item, 1}, {.observer = &onlooker}).ok());
  }
  const auto found = MeasureFirstKeys(*model_, *tokens, kWindow, 2);
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->size(), expected.size());
  for (size_t h = 0; h < expected.size(); ++h) {
    ASSERT_EQ((*found)[h].keys.size(), expected[h].keys.size());
    for (size_t i = 0; i < expected[h].keys.size(); ++i)
      ASSERT_NEAR((*found)[h].keys[i], expected[h].keys[i], 1e-4) << "head " << h;
    double size = 0;
    for (const double m : expected[h].query_moment) size = std::max(size, std::abs(m));
    for (size_t i = 0; i < dim * dim; ++i)
      ASSERT_NEAR((*found)[h].query_moment[i], expected[h].query_moment[i], 1e-5 * size) << "head " << h;
  }
}

TEST_F(JointPlanTest, APlanKeepsToItsBytesAndMeasuresNoWorseThanAFlatOne) {
  const auto tokens = CalibrationTokens(*model_, BundledCalibrationText(), options_.tokens);
  const auto measured = Measure(*model_, *tokens, nullptr);
  const auto flat = MakePlan(*model_, *measured, "aligned", RecipeOptions{3, 3, 2});
  ASSERT_TRUE(flat.ok());
  options_.bytes = flat->bytes_per_token_per_head();
  ResultsFile memory = ResultsFile::InMemory();
  const auto joint = Make(memory);
  ASSERT_TRUE(joint.ok()) << joint.status().message();
  EXPECT_LE(joint->plan.bytes_per_token_per_head(), options_.bytes);
  EXPECT_GT(joint->plan.bytes_per_token_per_head(), 0.97 * options_.bytes);
  EXPECT_TRUE(joint->plan.Validate().ok());
  EXPECT_EQ(joint->budget.probes, 2 * layers() * model_->config().kv_heads);
  EXPECT_EQ(memory.samples().size(), static_cast<size_t>(joint->budget.probes));

  EXPECT_NEAR(CheckedKld(joint->plan) / joint->budget.measured_kld, 1.0, 1e-4);
  EXPECT_LE(joint->budget.measured_kld, CheckedKld(*flat) * (1 + 1e-6));

  // Taken up from the same probes, the same plan comes out without running one.
  const auto again = Make(memory);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->probes_found, joint->budget.probes);
  EXPECT_EQ(again->plan.Hash(), joint->plan.Hash());
}

// What is promised is the divergence on all check tokens, and the promise is what was asked for.
TEST_F(JointPlanTest, ATargetIsMetOnAllCheckTokens) {
  const auto tokens = CalibrationTokens(*model_, BundledCalibrationText(), options_.tokens);
  const auto measured = Measure(*model_, *tokens, nullptr);
  const auto flat = MakePlan(*model_, *measured, "aligned", RecipeOptions{3, 3, 2});
  ASSERT_TRUE(flat.ok());
  options_.target_kld = CheckedKld(*flat);
  ResultsFile memory = ResultsFile::InMemory();
  const auto joint = Make(memory);
  ASSERT_TRUE(joint.ok()) << joint.status().message();
  EXPECT_EQ(joint->budget.check_tokens, options_.check_tokens);
  EXPECT_FALSE(joint->short_text);
  EXPECT_NEAR(CheckedKld(joint->plan) / joint->budget.measured_kld, 1.0, 1e-4);
  EXPECT_NEAR(joint->budget.measured_kld / options_.target_kld, 1.0, 0.1);
}

TEST(TargetMissed, SaysHowFarOffAPlanIs) {
  PlanBudget budget;
  budget.measured_kld = 0.02;
  EXPECT_EQ(TargetMissed(budget), "");  // bytes decided
  budget.target_kld = 0.0195;
  EXPECT_EQ(TargetMissed(budget), "");
  budget.target_kld = 0.016;
  EXPECT_NE(TargetMissed(budget).find("+25% off"), std::string::npos) << TargetMissed(budget);
  budget.target_kld = 0.04;
  EXPECT_NE(TargetMissed(budget).find("-50% off"), std::string::npos) << TargetMissed(budget);
}

TEST_F(JointPlanTest, SettingsThatDecideProbesAreInTheirFile) {
  const auto settings = [&] { return *JointSettings(*model_, BundledCalibrationText(), options_); };
  const nlohmann::json before = settings();
  EXPECT_EQ(settings(), before);
  options_.target_kld = 1;  // what probes are for does not decide them
  EXPECT_EQ(settings(), before);
  options_.check_tokens += 512;  // nor what runs behind them
  EXPECT_EQ(settings(), before);
  options_.check_tokens -= 512;
  for (int64_t JointOptions::*field :
       {&JointOptions::tokens, &JointOptions::probe_tokens, &JointOptions::probe_positions}) {
    ++(options_.*field);
    EXPECT_NE(settings(), before);
    --(options_.*field);
  }
}

TEST_F(JointPlanTest, ATargetBelowTheLargestCodesIsNamed) {
  options_.target_kld = 1e-4;
  ResultsFile memory = ResultsFile::InMemory();
  const Status status = Make(memory).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("0.0001"), std::string::npos) << status.message();
}

// Nothing is coded within the recent window, so probes there say nothing.
TEST_F(JointPlanTest, ProbesWithinTheRecentWindowAreRefused) {
  options_.bytes = 1000;
  options_.protection.recent = 256;
  ResultsFile memory = ResultsFile::InMemory();
  const Status status = Make(memory).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("256 recent"), std::string::npos) << status.message();
}

TEST_F(JointPlanTest, WhatCannotBeHonouredIsNamed) {
  ResultsFile memory = ResultsFile::InMemory();
  EXPECT_EQ(Make(memory).status().code(), ErrorCode::kInvalidArgument);  // neither
  options_.bytes = options_.target_kld = 1;
  EXPECT_EQ(Make(memory).status().code(), ErrorCode::kInvalidArgument);  // both
  options_.target_kld = 0;
  const Status few = Make(memory).status();  // one byte a token a head
  EXPECT_EQ(few.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(few.message().find("too few"), std::string::npos) << few.message();
  std::atomic<bool> stop{true};
  options_.stop = &stop;
  ResultsFile fresh = ResultsFile::InMemory();
  EXPECT_EQ(Make(fresh).status().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace blockgtq::test
