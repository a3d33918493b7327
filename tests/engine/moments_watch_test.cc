// Running moments: what is looked at, what they say of a plan, and the plan that is made of them.
#include "src/engine/moments_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/cache/session.h"
#include "src/codec/logit_error.h"
#include "src/codec/record.h"
#include "src/engine/calibration.h"
#include "tests/codec/codec_fixtures.h"
#include "tests/engine/test_models.h"
#include "tests/formats/files.h"

namespace blockgtq {
namespace {

using test::MakeContext;
using test::OpenModel;
using test::TinyModelPath;
using testing::HasSubstr;

std::vector<Token> Tokens(size_t count, Token first) {
  std::vector<Token> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<Token>(i * 37 % 150);
  return tokens;
}

/// Statistics of every head.
struct Recorder : AttentionObserver {
  explicit Recorder(const ModelConfig& config) : config(config) {
    statistics.assign(static_cast<size_t>(config.layers * config.kv_heads),
                      StatisticsAccumulator(config.head_dim));
  }
  void Observe(int layer, int64_t rows, const float* queries, const float* keys, const float*) override {
    const int dim = config.head_dim, group = config.heads / config.kv_heads;
    for (int64_t t = 0; t < rows; ++t) {
      for (int h = 0; h < config.heads; ++h)
        Of(layer, h / group).AddQuery(queries + (t * config.heads + h) * dim);
      for (int h = 0; h < config.kv_heads; ++h) Of(layer, h).AddKey(keys + (t * config.kv_heads + h) * dim);
    }
  }
  StatisticsAccumulator& Of(int layer, int head) {
    return statistics[static_cast<size_t>(layer * config.kv_heads + head)];
  }
  const ModelConfig& config;
  std::vector<StatisticsAccumulator> statistics;
};

class MomentsWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    ASSERT_NE(model_, nullptr);
    cache_.kind = CacheKind::kFloat;
    cache_.max_tokens = 512;
  }
  std::unique_ptr<MomentsWatch> Watch(const Plan* plan = nullptr) {
    auto watch = MomentsWatch::Open(*model_, plan, false, folder_.File("moments"));
    EXPECT_TRUE(watch.ok()) << watch.status().message();
    return watch.ok() ? std::move(watch).value() : nullptr;
  }
  void Run(Context& context, SequenceId sequence, const std::vector<Token>& tokens) {
    const SequenceTokens item{sequence, tokens};
    ASSERT_TRUE(context.Run({&item, 1}).ok());
  }

  std::unique_ptr<LoadedModel> model_;
  CacheOptions cache_;
  TemporaryFolder folder_;
};

TEST_F(MomentsWatchTest, MomentsAreThoseOfTheTokensLookedAt) {
  const std::vector<Token> prompt = Tokens(200, 3);
  Recorder recorder(model_->config());
  {
    const auto context = MakeContext(*model_, cache_);
    const SequenceTokens item{*context->cache().AddSequence(), prompt};
    ASSERT_TRUE(context->Run({&item, 1}, {.observer = &recorder}).ok());
  }
  const auto watch = Watch();
  const auto context = MakeContext(*model_, cache_);
  context->Watch(watch.get());
  const SequenceId sequence = *context->cache().AddSequence();
  Run(*context, sequence, prompt);
  for (int i = 0; i < MomentsWatch::kPassesALook - 1; ++i) Run(*context, sequence, {5});  // not looked at
  EXPECT_EQ(watch->state().seen, 200);
  ASSERT_TRUE(watch->Save().ok());

  const Result<ModelMoments> moments = LoadMoments(folder_.File("moments"));
  ASSERT_TRUE(moments.ok()) << moments.status().message();
  ASSERT_EQ(moments->heads.size(), recorder.statistics.size());
  for (size_t h = 0; h < moments->heads.size(); ++h) {
    const HeadStatistics a = moments->heads[h].statistics, b = recorder.statistics[h].Finish();
    EXPECT_EQ(a.tokens, 200);
    for (size_t i = 0; i < b.query_energy.size(); ++i) {
      EXPECT_NEAR(a.query_energy[i] / b.query_energy[i], 1, 1e-6);
      EXPECT_NEAR(a.centred_key_energy[i] / b.centred_key_energy[i], 1, 1e-6);
      EXPECT_NEAR(a.key_mean[i], b.key_mean[i], 1e-6);
    }
    const size_t vectors = moments->heads[h].keys.size() / b.key_mean.size();
    EXPECT_EQ(vectors, 1 + MomentsWatch::kKeptVectors);  // the first token's apart
  }

  Run(*context, sequence, {6});  // the next that is looked at
  EXPECT_EQ(watch->state().seen, 201);
}

TEST_F(MomentsWatchTest, AFileIsTakenUpAndAnotherModelsIsRefused) {
  for (const int64_t seen : {100, 199}) {  // a first token counts once in 2,048
    const auto watch = Watch();
    const auto context = MakeContext(*model_, cache_);
    context->Watch(watch.get());
    Run(*context, *context->cache().AddSequence(), Tokens(100, 3));
    EXPECT_EQ(watch->state().seen, seen);
    ASSERT_TRUE(watch->Save().ok());
    EXPECT_EQ(LoadMoments(folder_.File("moments"))->tokens(), seen);
  }
  const auto other = OpenModel(TinyModelPath("qwen2"));
  const auto refused = MomentsWatch::Open(*other, nullptr, false, folder_.File("moments"));
  EXPECT_EQ(refused.status().code(), ErrorCode::kMismatch);
  EXPECT_THAT(refused.status().message(), HasSubstr("moments of another model"));
}

// The plan in use goes on; what is kept with it is refused under the plan that was made of the moments.
TEST_F(MomentsWatchTest, ASequenceKeepsThePlanThatItsPagesWereCodedWith) {
  cache_.kind = CacheKind::kPacked;
  const std::vector<Token> measured_on = Tokens(128, 40), prompt = Tokens(200, 3);
  const auto measured = Measure(*model_, measured_on, nullptr);
  ASSERT_TRUE(measured.ok());
  const Result<Plan> plan = MakePlan(*model_, *measured, "aligned", {3, 3, 2});
  ASSERT_TRUE(plan.ok());
  const auto watch = Watch(&*plan);
  const auto context = MakeContext(*model_, cache_, &*plan), unwatched = MakeContext(*model_, cache_, &*plan);
  context->Watch(watch.get());
  const SequenceId sequence = *context->cache().AddSequence(), same = *unwatched->cache().AddSequence();
  Run(*context, sequence, prompt);
  Run(*unwatched, same, prompt);
  ASSERT_TRUE(watch->Save().ok());
  const Result<Plan> adapted = AdaptPlan(*plan, *LoadMoments(folder_.File("moments")), false);
  ASSERT_TRUE(adapted.ok()) << adapted.status().message();
  EXPECT_NE(adapted->Hash(), plan->Hash());
  EXPECT_EQ(adapted->calibration.corpus_hash, kMomentsSource);
  ASSERT_TRUE(watch->state().drift.has_value());
  EXPECT_GT(watch->state().drift->mean, 1);

  Run(*context, sequence, {7});
  Run(*unwatched, same, {7});
  const std::vector<int64_t> row = {0};
  const std::span<const float> logits = *context->Logits(row), expected = *unwatched->Logits(row);
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin(), expected.end()));

  std::vector<Token> all = prompt;
  all.push_back(7);
  ASSERT_TRUE(SaveSession(context->cache(), sequence, all, folder_.File("session")).ok());
  const auto renewed = MakeContext(*model_, cache_, &*adapted);
  EXPECT_EQ(LoadSession(renewed->cache(), folder_.File("session")).status().code(), ErrorCode::kMismatch);
}

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
