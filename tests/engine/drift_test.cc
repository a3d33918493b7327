// Drift of a plan under moments, and the plan that is made of them.
#include "src/engine/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "src/codec/logit_error.h"
#include "src/codec/record.h"
#include "src/engine/calibration.h"
#include "src/formats/plan_file.h"
#include "tests/codec/codec_fixtures.h"
#include "tests/formats/files.h"

namespace blockgtq {
namespace {

using testing::HasSubstr;

/// Moments of two layers of one head each.
ModelMoments MomentsOf(uint64_t seed) {
  ModelMoments moments;
  moments.model = {"llama", 2, 1, 1, 64, 10000, 64, "neox", "", ""};
  for (const uint64_t layer : {0, 1})
    moments.heads.push_back(test::SyntheticHead(64, 1.5, 3.0, seed + layer).Calibrate(512, 7));
  return moments;
}

TEST(Drift, IsOneForThePlanOfTheMomentsAndMoreForOthers) {
  const ModelMoments before = MomentsOf(1), after = MomentsOf(50);
  const RecipeOptions bits{3, 3, 2};
  const Plan plan = *MakePlanFor(before.model, before.heads, "aligned", {&bits, 1});
  const Result<Drift> none = MeasureDrift(plan, before, false), drift = MeasureDrift(plan, after, false);
  ASSERT_TRUE(none.ok() && drift.ok());
  EXPECT_NEAR(none->mean, 1, 1e-6);
  EXPECT_NEAR(none->worst, 1, 1e-6);
  EXPECT_GT(drift->mean, 2);  // all energies are others
  EXPECT_GE(drift->worst, drift->mean);
  EXPECT_NEAR(std::log(drift->mean), (std::log(drift->heads[0]) + std::log(drift->heads[1])) / 2, 1e-12);
  const Plan adapted = *AdaptPlan(plan, after, false);
  EXPECT_NEAR(MeasureDrift(adapted, after, false)->mean, 1, 1e-6);
  EXPECT_NEAR(PredictedLogitError(plan.heads[0], after.heads[0].statistics) /
                  PredictedLogitError(adapted.heads[0], after.heads[0].statistics),
              drift->heads[0], 1e-9);
}

TEST(Drift, AdaptedHeadsOfABudgetKeepTheirBytes) {
  const ModelMoments before = MomentsOf(1), after = MomentsOf(50);
  const std::vector<RecipeOptions> bits = {{2, 4, 2}, {4.5, 2, 2}};
  const Plan plan = *MakePlanFor(before.model, before.heads, "aligned", bits);
  const Result<Plan> adapted = AdaptPlan(plan, after, true);
  ASSERT_TRUE(adapted.ok()) << adapted.status().message();
  for (size_t h = 0; h < 2; ++h) {
    const int was = RecordLayout::For(plan.heads[h]).bytes, is = RecordLayout::For(adapted->heads[h]).bytes;
    EXPECT_LE(is, was);
    EXPECT_GT(is, was - 64 * 64 / 8);  // less than half a bit a dim is left over
    EXPECT_EQ(adapted->heads[h].value.code_width, bits[h].v_bits);
  }
}

// Bits, bytes and rotations of heads go through files, as often as a plan is adapted.
TEST(Drift, APlanOfABudgetIsAdaptedSavedAndAdaptedAgain) {
  const TemporaryFolder folder;
  const std::vector<RecipeOptions> bits = {{2, 4, 2}, {4.5, 3, 9}};  // 9: a rotation that a budget chose
  const ModelMoments first = MomentsOf(1);
  Plan plan = *MakePlanFor(first.model, first.heads, "aligned", bits);
  ASSERT_TRUE(SavePlan(plan, folder.File("0"), PlanBudget{}).ok());
  for (const uint64_t round : {0, 1, 2}) {
    const std::string file = folder.File(std::to_string(round));
    const Result<bool> by_head = LoadPlanBitsByHead(file);
    ASSERT_TRUE(by_head.ok() && *by_head);
    const Plan loaded = *LoadPlan(file);
    const ModelMoments moments = MomentsOf(50 + 7 * round);
    const Result<Drift> drift = MeasureDrift(loaded, moments, *by_head);
    ASSERT_TRUE(drift.ok()) << drift.status().message();
    EXPECT_GT(drift->mean, 1.1);
    const Result<Plan> adapted = AdaptPlan(loaded, moments, *by_head);
    ASSERT_TRUE(adapted.ok()) << adapted.status().message();
    EXPECT_NEAR(MeasureDrift(*adapted, moments, true)->mean, 1, 1e-6);
    EXPECT_EQ(adapted->v_bits, 3.5);
    EXPECT_EQ(adapted->seed, 2);
    for (size_t h = 0; h < 2; ++h) {
      EXPECT_LE(RecordLayout::For(adapted->heads[h]).bytes, RecordLayout::For(plan.heads[h]).bytes);
      EXPECT_EQ(adapted->heads[h].value.code_width, bits[h].v_bits);
      EXPECT_EQ(adapted->heads[h].value_transform, plan.heads[h].value_transform);
    }
    ASSERT_TRUE(SavePlan(*adapted, folder.File(std::to_string(round + 1)), std::nullopt, true).ok());
  }
  const RecipeOptions equal{3, 3, 2};
  ASSERT_TRUE(
      SavePlan(*MakePlanFor(first.model, first.heads, "aligned", {&equal, 1}), folder.File("equal")).ok());
  EXPECT_FALSE(*LoadPlanBitsByHead(folder.File("equal")));
}

TEST(Drift, TooFewTokensAndOtherModelsAreRefused) {
  ModelMoments moments = MomentsOf(1);
  const RecipeOptions bits{3, 3, 2};
  const Plan plan = *MakePlanFor(moments.model, moments.heads, "aligned", {&bits, 1});
  for (HeadCalibration& head : moments.heads) head.statistics.tokens = 63;
  EXPECT_THAT(AdaptPlan(plan, moments, false).status().message(), HasSubstr("63 tokens are too few"));
  moments.model.layers = 3;
  EXPECT_EQ(MeasureDrift(plan, moments, false).status().code(), ErrorCode::kMismatch);
}

}  // namespace
}  // namespace blockgtq
