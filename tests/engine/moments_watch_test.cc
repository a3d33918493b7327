// Running moments: what is looked at, what they say of a plan, and the plan that is made of them.
#include "src/engine/moments_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <random>
#include <set>

#include "src/cache/session.h"
#include "src/engine/calibration.h"
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
  std::string File() const { return folder_.File("moments"); }
  std::unique_ptr<MomentsWatch> Watch(MomentsOptions options = {}) {
    if (options.file.empty()) options.file = File();
    auto watch = MomentsWatch::Open(*model_, std::move(options));
    EXPECT_TRUE(watch.ok()) << watch.status().message();
    return watch.ok() ? std::move(watch).value() : nullptr;
  }
  static void Run(Context& context, std::span<const SequenceTokens> items,
                  AttentionObserver* observer = nullptr) {
    ASSERT_TRUE(context.Run(items, {.observer = observer}).ok());
  }
  static void Run(Context& context, SequenceId sequence, const std::vector<Token>& tokens,
                  AttentionObserver* observer = nullptr) {
    const SequenceTokens item{sequence, tokens};
    Run(context, {&item, 1}, observer);
  }

  /// A pass without a model, of the sequence's tokens from `first` on: entries are +-size. Whether it was
  /// looked at. fails: it ends before its last layer.
  bool Pass(MomentsWatch& watch, int64_t first, int64_t rows, float size = 1, bool fails = false) {
    const BatchSlice slice{0, 0, rows, first, false};
    const bool looked_at = watch.BeginPass({&slice, 1});
    const ModelConfig& c = model_->config();
    std::mt19937 rng(static_cast<uint32_t>(first + 1));
    const auto entries = [&](int64_t heads) {
      std::vector<float> x(static_cast<size_t>(rows * heads * c.head_dim));
      for (float& entry : x) entry = rng() % 2 == 0 ? size : -size;
      return x;
    };
    for (int l = 0; looked_at && l < c.layers - (fails ? 1 : 0); ++l) {
      const std::vector<float> q = entries(c.heads), k = entries(c.kv_heads), v = entries(c.kv_heads);
      watch.Observe(l, rows, q.data(), k.data(), v.data());
    }
    if (!fails) watch.EndPass();
    return looked_at;
  }

  std::unique_ptr<LoadedModel> model_;
  CacheOptions cache_;
  TemporaryFolder folder_;
};

// A pass over two sequences, then decoded tokens: those of every pass until 256 are seen.
TEST_F(MomentsWatchTest, MomentsAreThoseOfTheTokensLookedAt) {
  Recorder recorder(model_->config());
  const auto watch = Watch({.seed = 1});
  for (const bool watched : {false, true}) {
    AttentionObserver* const observer = watched ? nullptr : &recorder;
    const auto context = MakeContext(*model_, cache_);
    const SequenceId a = *context->cache().AddSequence(), b = *context->cache().AddSequence();
    Run(*context, b, {9});
    if (watched) context->Watch(watch.get());
    const std::vector<Token> of_a = Tokens(200, 3), of_b = Tokens(40, 60);
    const std::vector<SequenceTokens> both = {{a, of_a}, {b, of_b}};
    Run(*context, both, observer);
    for (Token t = 0; t < 16; ++t) Run(*context, t % 2 == 0 ? a : b, {t}, observer);
  }
  EXPECT_EQ(watch->state().seen, 256);
  ASSERT_TRUE(watch->Save().ok());

  const Result<ModelMoments> moments = LoadMoments(File());
  ASSERT_TRUE(moments.ok()) << moments.status().message();
  ASSERT_EQ(moments->heads.size(), recorder.statistics.size());
  for (size_t h = 0; h < moments->heads.size(); ++h) {
    const HeadStatistics a = moments->heads[h].statistics, b = recorder.statistics[h].Finish();
    EXPECT_EQ(a.tokens, 256);
    for (size_t i = 0; i < b.query_energy.size(); ++i) {
      EXPECT_NEAR(a.query_energy[i] / b.query_energy[i], 1, 1e-6);
      EXPECT_NEAR(a.centred_key_energy[i] / b.centred_key_energy[i], 1, 1e-6);
      EXPECT_NEAR(a.key_mean[i], b.key_mean[i], 1e-6);
    }
    const size_t vectors = moments->heads[h].keys.size() / b.key_mean.size();
    EXPECT_EQ(vectors, 1 + MomentsWatch::kKeptVectors);  // the first token's apart
  }
}

// Traffic of any period is looked at evenly, and runs look at other passes than each other.
TEST_F(MomentsWatchTest, OnePassInSixteenIsDrawn) {
  std::set<std::vector<bool>> of_runs;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto watch = Watch({.file = folder_.File(std::to_string(seed)), .seed = seed});
    EXPECT_TRUE(Pass(*watch, 0, MomentsWatch::kFirstTokens));
    std::vector<bool> drawn;
    int of_phase[16] = {}, all = 0;
    for (int i = 0; i < 3200; ++i) {
      drawn.push_back(Pass(*watch, 256 + i, 1));
      of_phase[i % 16] += drawn.back() ? 1 : 0;
      all += drawn.back() ? 1 : 0;
    }
    EXPECT_NEAR(all, 200, 4 * std::sqrt(200.0));
    for (const int of_one : of_phase) EXPECT_TRUE(of_one >= 1 && of_one <= 30) << of_one;
    EXPECT_EQ(watch->state().seen, MomentsWatch::kFirstTokens + all);
    of_runs.insert(drawn);
  }
  EXPECT_EQ(of_runs.size(), 3);
}

TEST_F(MomentsWatchTest, APassThatFailedOrIsNotFiniteLeavesNothing) {
  std::vector<ModelMoments> saved;
  for (const bool with_bad : {false, true}) {
    const std::string file = folder_.File(with_bad ? "bad" : "good");
    const auto watch = Watch({.file = file, .seed = 1});
    const auto bad = [&](int64_t first) {
      if (!with_bad) return;
      const int64_t seen = watch->state().seen;
      Pass(*watch, first, 40, 1, true);
      Pass(*watch, first, 40, std::numeric_limits<float>::infinity());
      EXPECT_EQ(watch->state().seen, seen);
    };
    bad(0);
    Pass(*watch, 0, 60);
    bad(60);
    Pass(*watch, 60, 50);
    EXPECT_EQ(watch->state().seen, 110);
    ASSERT_TRUE(watch->Save().ok());
    saved.push_back(*LoadMoments(file));
  }
  EXPECT_EQ(saved[0].tokens(), saved[1].tokens());
  for (size_t h = 0; h < saved[0].heads.size(); ++h) {
    EXPECT_EQ(saved[0].heads[h].statistics.query_energy, saved[1].heads[h].statistics.query_energy);
    EXPECT_EQ(saved[0].heads[h].statistics.key_mean, saved[1].heads[h].statistics.key_mean);
    EXPECT_EQ(saved[0].heads[h].keys, saved[1].heads[h].keys);
    EXPECT_EQ(saved[0].heads[h].values, saved[1].heads[h].values);
  }
}

// Twice the window: all of it counts half beside what comes.
TEST_F(MomentsWatchTest, OldTokensFade) {
  const auto watch = Watch({.seed = 1});
  constexpr int64_t kWindow = MomentsWatch::kWindowTokens;
  ASSERT_TRUE(Pass(*watch, 0, 2 * kWindow));  // energies of 2
  int64_t at = 2 * kWindow;
  while (!Pass(*watch, at, kWindow / 2, 2)) ++at;  // of 8
  ASSERT_TRUE(watch->Save().ok());
  const ModelMoments moments = *LoadMoments(File());
  EXPECT_EQ(moments.seen, 2 * kWindow + kWindow / 2);
  EXPECT_EQ(moments.tokens(), kWindow + kWindow / 2);
  for (const HeadCalibration& head : moments.heads) {
    for (const double energy : head.statistics.query_energy) EXPECT_NEAR(energy, 4, 1e-9);
    for (const double energy : head.statistics.key_energy) EXPECT_NEAR(energy, 4, 1e-9);
  }
}

TEST_F(MomentsWatchTest, AFileThatCannotBeWrittenIsToldAndWrittenOnceItCan) {
  const std::string place = folder_.File("place"), file = place + "/moments";
  EXPECT_EQ(MomentsWatch::Open(*model_, {.file = file}).status().code(), ErrorCode::kIo);
  std::filesystem::create_directory(place);
  std::atomic<int> told = 0;
  const auto watch = Watch({.file = file, .seed = 1, .on_failure = [&](const Status&) { ++told; }});
  std::filesystem::remove_all(place);
  Pass(*watch, 0, 256);  // measured in the background from here on
  EXPECT_EQ(watch->Save().code(), ErrorCode::kIo);
  EXPECT_EQ(watch->state().failures, 1);
  EXPECT_EQ(told, 1);
  std::filesystem::create_directory(place);
  ASSERT_TRUE(watch->Save().ok());
  EXPECT_EQ(LoadMoments(file)->tokens(), 256);
}

// The moments are there even where drift cannot be measured.
TEST_F(MomentsWatchTest, MomentsAreWrittenWhereDriftIsAnError) {
  const auto measured = Measure(*model_, Tokens(128, 40), nullptr);
  ASSERT_TRUE(measured.ok());
  Plan plan = *MakePlan(*model_, *measured, "aligned", {3, 3, 2});
  plan.v_bits = 2.87;  // no width
  const auto watch = Watch({.plan = &plan, .seed = 1});
  Pass(*watch, 0, 100);
  const Status status = watch->Save();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("2.87"));
  EXPECT_EQ(LoadMoments(File())->tokens(), 100);
}

TEST_F(MomentsWatchTest, LatentsAreKeptAndMakeAPlan) {
  model_ = OpenModel(TinyModelPath("hf/deepseek_v2"));
  ASSERT_NE(model_, nullptr);
  const auto measured = Measure(*model_, Tokens(128, 40), nullptr);
  ASSERT_TRUE(measured.ok());
  const Plan plan = *MakePlan(*model_, *measured, "aligned", {3, 3, 2});
  for (const int64_t seen : {100, 199}) {
    const auto watch = Watch({.plan = &plan, .seed = 1});
    const auto context = MakeContext(*model_, cache_);
    context->Watch(watch.get());
    Run(*context, *context->cache().AddSequence(), Tokens(100, 3));
    const Status saved = watch->Save();
    ASSERT_TRUE(saved.ok()) << saved.message();
    EXPECT_TRUE(watch->state().drift.has_value());
    const ModelMoments moments = *LoadMoments(File());
    EXPECT_EQ(moments.tokens(), seen);
    EXPECT_EQ(moments.heads.front().latent_dims, model_->config().latent.rank);
    EXPECT_TRUE(moments.heads.front().values.empty());
    const Result<Plan> adapted = AdaptPlan(plan, moments, false);
    ASSERT_TRUE(adapted.ok()) << adapted.status().message();
    EXPECT_TRUE(adapted->has_latents());
  }
}

TEST_F(MomentsWatchTest, AFileIsTakenUpAndAnotherModelsIsRefused) {
  for (const int64_t seen : {100, 199}) {  // a first token counts once in 2,048
    const auto watch = Watch();
    const auto context = MakeContext(*model_, cache_);
    context->Watch(watch.get());
    Run(*context, *context->cache().AddSequence(), Tokens(100, 3));
    EXPECT_EQ(watch->state().seen, seen);
    ASSERT_TRUE(watch->Save().ok());
    EXPECT_EQ(LoadMoments(File())->tokens(), seen);
  }
  const auto other = OpenModel(TinyModelPath("qwen2"));
  const auto refused = MomentsWatch::Open(*other, {.file = File()});
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
  const auto watch = Watch({.plan = &*plan});
  const auto context = MakeContext(*model_, cache_, &*plan), unwatched = MakeContext(*model_, cache_, &*plan);
  context->Watch(watch.get());
  const SequenceId sequence = *context->cache().AddSequence(), same = *unwatched->cache().AddSequence();
  Run(*context, sequence, prompt);
  Run(*unwatched, same, prompt);
  ASSERT_TRUE(watch->Save().ok());
  const Result<Plan> adapted = AdaptPlan(*plan, *LoadMoments(File()), false);
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

}  // namespace
}  // namespace blockgtq
