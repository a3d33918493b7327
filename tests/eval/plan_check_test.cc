// The divergence of a plan is the mean over every position of whole runs, window by window.
#include "src/eval/plan_check.h"

#include <gtest/gtest.h>

#include <numeric>

#include "src/engine/bundled_text.h"
#include "src/engine/calibration.h"
#include "src/eval/logit_comparison.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

constexpr size_t kWindow = 128, kTokens = 300;  // two windows and a shorter one
constexpr Protection kProtection{2, 0};

class PlanCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    tokens_ = *CalibrationTokens(*model_, BundledCalibrationText(), kTokens);
    const auto measured = Measure(*model_, tokens_, nullptr);
    const auto plan = MakePlan(*model_, *measured, "aligned", RecipeOptions{2, 2, 2});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    heads_ = std::make_shared<const SimulatedHeads>(SimulatePlan(model_->config(), *plan, "aligned"));
  }

  Result<std::unique_ptr<PlanCheck>> Make(int64_t window = kWindow) {
    return PlanCheck::Create(*model_, tokens_, {.window = window, .protection = kProtection, .threads = 2});
  }

  std::vector<float> Logits(std::span<const Token> window, bool exact) {
    CacheOptions cache;
    cache.kind = exact ? CacheKind::kFloat : CacheKind::kSimulated;
    cache.sinks = exact ? 0 : kProtection.sinks;
    cache.recent = 0;
    cache.max_tokens = kWindow + kPageTokens;
    cache.simulated = exact ? nullptr : heads_;
    const auto context = MakeContext(*model_, cache);
    const SequenceTokens item{*context->cache().AddSequence(), window};
    EXPECT_TRUE(context->Run({&item, 1}, {.strict = true}).ok());
    std::vector<int64_t> rows(window.size());
    std::iota(rows.begin(), rows.end(), 0);
    const auto logits = context->Logits(rows);
    return {logits->begin(), logits->end()};
  }

  /// Of all positions of the windows, summed.
  double Sum(std::initializer_list<size_t> windows) {
    const size_t vocabulary = static_cast<size_t>(model_->config().vocabulary);
    double sum = 0;
    for (const size_t w : windows) {
      const auto window = std::span<const Token>(tokens_)
                              .subspan(w * kWindow)
                              .first(std::min(kWindow, kTokens - w * kWindow));
      const std::vector<float> exact = Logits(window, true), stored = Logits(window, false);
      for (size_t r = 0; r < window.size(); ++r) {
        sum += CompareLogits({&exact[r * vocabulary], vocabulary}, {&stored[r * vocabulary], vocabulary}).kld;
      }
    }
    return sum;
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<Token> tokens_;
  std::shared_ptr<const SimulatedHeads> heads_;
};

TEST_F(PlanCheckTest, EveryPositionOfEveryWindowCountsOnce) {
  const auto check = Make();
  ASSERT_TRUE(check.ok()) << check.status().message();
  ASSERT_EQ((*check)->windows(), 3);
  EXPECT_EQ((*check)->tokens(3), static_cast<int64_t>(kTokens));
  for (int again = 0; again < 2; ++again) {  // nothing of a run is left behind
    const auto kld = (*check)->Kld(heads_);
    ASSERT_TRUE(kld.ok()) << kld.status().message();
    EXPECT_GT(*kld, 1e-6);
    EXPECT_NEAR(*kld / (Sum({0, 1, 2}) / kTokens), 1.0, 1e-4);
  }
  EXPECT_NEAR(*(*check)->Kld(heads_, 1) / (Sum({1}) / kWindow), 1.0, 1e-4);
  EXPECT_NEAR(*(*check)->Kld(heads_, 2) / (Sum({0, 2}) / (kTokens - kWindow)), 1.0, 1e-4);
}

TEST_F(PlanCheckTest, ABackendsPrecisionComesBack) {
  model_->backend().SetPrecision(Precision::kFast);
  {
    const auto check = Make();
    EXPECT_EQ(model_->backend().precision(), Precision::kFloat);
  }
  EXPECT_EQ(model_->backend().precision(), Precision::kFast);
}

TEST_F(PlanCheckTest, WhatCannotBeHonouredIsNamed) {
  EXPECT_EQ(Make(1).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Make(model_->config().context_length + 1).status().code(), ErrorCode::kInvalidArgument);
  const auto check = Make();
  ASSERT_TRUE(check.ok());
  for (const int64_t windows : {0, 4})
    EXPECT_EQ((*check)->Kld(heads_, windows).status().code(), ErrorCode::kInvalidArgument);
  tokens_.clear();
  EXPECT_EQ(Make().status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockgtq::test
