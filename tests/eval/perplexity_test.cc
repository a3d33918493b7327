// Perplexity against transformers in float32 on the same windows (tests/data/llama_cpp/*/exact.json), and its
// bookkeeping on a tiny model.
#include "src/eval/perplexity.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/engine/bundled_text.h"
#include "src/engine/calibration.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

std::unique_ptr<Context> ContextOf(LoadedModel& model, CacheKind kind, int64_t tokens,
                                   const Plan* plan = nullptr) {
  CacheOptions options;
  options.kind = kind;
  options.max_tokens = tokens;
  return MakeContext(model, options, plan);
}

TEST(Perplexity, OfSmolLm2EqualsTransformersOnTheSameWindows) {
#ifdef BGTQ_SANITIZED
  GTEST_SKIP() << "takes minutes under a sanitizer; engine_tests run the same model there";
#endif
  const std::string path = RealModelPath(kSmolLm2);
  if (path.empty()) GTEST_SKIP() << kSmolLm2 << " is not here: scripts/fetch_models.sh smollm2-135m";
  std::ifstream stream(std::string(BGTQ_TEST_DATA) + "/llama_cpp/smollm2-135m/exact.json");
  const nlohmann::json exact = nlohmann::json::parse(stream)["perplexity"];
  const auto model = OpenModel(path);
  const std::vector<Token> tokens = model->tokenizer().Encode(BundledScoringText(), false);
  const auto context = ContextOf(*model, CacheKind::kHalf, 512);
  PerplexityOptions options;
  options.chunks = 8;
  // float activations: 0.1% in all; int8: 0.5% in all, 1.5% a window
  for (const auto& [precision, total, window] :
       {std::tuple{Precision::kFloat, 0.001, 0.002}, std::tuple{Precision::kFast, 0.005, 0.015}}) {
    model->backend().SetPrecision(precision);
    const auto result = Perplexity(*context, nullptr, tokens, options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->tokens, exact["tokens"].get<int64_t>());
    EXPECT_NEAR(result->ppl / exact["ppl"].get<double>(), 1.0, total);
    EXPECT_NEAR(result->ppl_se / exact["ppl_se"].get<double>(), 1.0, 0.02);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(result->window_ppl[i] / exact["ppl_per_window"][i].get<double>(), 1.0, window)
          << "window " << i;
    }
  }
}

class PerplexityOfATinyModel : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    for (int i = 0; i < 400; ++i) tokens_.push_back(static_cast<Token>((i * i + 7 * i) % 251));
  }
  std::unique_ptr<LoadedModel> model_;
  std::vector<Token> tokens_;
};

TEST_F(PerplexityOfATinyModel, IsTheMeanOverTheScoredPositions) {
  const auto context = ContextOf(*model_, CacheKind::kFloat, 128);
  PerplexityOptions options;
  options.window = 128;
  for (bool all : {false, true}) {
    options.score_all = all;
    const auto result = Perplexity(*context, nullptr, tokens_, options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->windows, 3);
    EXPECT_EQ(result->tokens, 3 * (all ? 127 : 63));
    double sum = 0;  // the same from the logits
    for (int64_t w = 0; w < 3; ++w) {
      const std::span<const Token> window =
          std::span<const Token>(tokens_).subspan(static_cast<size_t>(w * 128), 128);
      const std::vector<float> logits = RunAll(*context, window, {}, 128);
      for (size_t i = all ? 0 : 64; i < 127; ++i) {
        double mass = 0;
        for (size_t v = 0; v < 256; ++v) mass += std::exp(static_cast<double>(logits[i * 256 + v]));
        sum += std::log(mass) - logits[i * 256 + static_cast<size_t>(window[i + 1])];
      }
    }
    EXPECT_NEAR(result->ppl, std::exp(sum / static_cast<double>(result->tokens)), 1e-3 * result->ppl);
  }
}

TEST_F(PerplexityOfATinyModel, AnHalfCacheIsAtDistanceZeroFromItselfAndAPackedOneIsNot) {
  const auto base = ContextOf(*model_, CacheKind::kHalf, 128),
             same = ContextOf(*model_, CacheKind::kHalf, 128);
  PerplexityOptions options;
  options.window = 128;
  options.strict = true;
  const auto none = Perplexity(*same, base.get(), tokens_, options);
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->kld_mean, 0);
  EXPECT_EQ(none->top1, 1);
  EXPECT_EQ(none->top10_overlap, 1);
  EXPECT_EQ(none->ppl, none->base_ppl);

  auto measured = Measure(*model_, tokens_, {});
  ASSERT_TRUE(measured.ok());
  const auto plan = MakePlan(*model_, *measured, "aligned", {2, 2, 1});
  ASSERT_TRUE(plan.ok());
  CacheOptions cache;
  cache.sinks = cache.recent = 0;
  cache.max_tokens = 128;
  const auto packed = MakeContext(*model_, cache, &*plan);
  const auto some = Perplexity(*packed, base.get(), tokens_, options);
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_GT(some->kld_mean, 0.001);
  EXPECT_GE(some->kld_p99, some->kld_median);
  EXPECT_LT(some->top1, 1);
}

class PerplexityOfAFamily : public testing::TestWithParam<std::string> {};

TEST_P(PerplexityOfAFamily, APackedCacheOfThreeBitsIsNearTheHalfCacheAndFourAreNearer) {
  const auto model = OpenModel(TinyModelPath(GetParam()));
  ASSERT_NE(model, nullptr);
  std::vector<Token> tokens;
  for (int i = 0; i < 400; ++i) tokens.push_back(static_cast<Token>((i * i + 7 * i) % 251));
  PerplexityOptions options;
  options.window = 128;
  options.strict = true;
  const auto base = ContextOf(*model, CacheKind::kHalf, 128);
  const auto measured = Measure(*model, tokens, {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  double before = 1.0;  // nats
  for (double bits : {3.0, 4.0, 8.0}) {
    const auto plan = MakePlan(*model, *measured, "aligned", {bits, bits, 1});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    CacheOptions cache;
    cache.max_tokens = 128;
    cache.recent = 0;
    const auto result = Perplexity(*MakeContext(*model, cache, &*plan), base.get(), tokens, options);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_GT(result->kld_mean, 0);
    EXPECT_LT(result->kld_mean, before) << bits << " bits";
    before = result->kld_mean;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PerplexityOfAFamily, testing::ValuesIn(FamilyModels()),
                         [](const auto& info) { return TestName(info.param); });

TEST_F(PerplexityOfATinyModel, BosTakesTheFirstPlaceOfEachWindow) {
  const auto context = ContextOf(*model_, CacheKind::kFloat, 128);
  PerplexityOptions options;
  options.window = 128;
  options.chunks = 2;
  const double plain = Perplexity(*context, nullptr, tokens_, options)->ppl;
  options.bos = 77;
  const double with_bos = Perplexity(*context, nullptr, tokens_, options)->ppl;
  EXPECT_NE(plain, with_bos);
  tokens_[0] = tokens_[128] = 77;
  options.bos = -1;
  EXPECT_EQ(Perplexity(*context, nullptr, tokens_, options)->ppl, with_bos);
}

TEST_F(PerplexityOfATinyModel, WindowsThatCannotBeAreRefused) {
  const auto context = ContextOf(*model_, CacheKind::kHalf, 512);
  PerplexityOptions options;
  options.window = 401;  // longer than the text
  EXPECT_EQ(Perplexity(*context, nullptr, tokens_, options).status().code(), ErrorCode::kInvalidArgument);
  options.window = 513;  // longer than the model's context
  EXPECT_EQ(Perplexity(*context, nullptr, tokens_, options).status().code(), ErrorCode::kInvalidArgument);
  options.window = 100;
  options.chunks = 5;  // the text has four
  EXPECT_EQ(Perplexity(*context, nullptr, tokens_, options).status().code(), ErrorCode::kInvalidArgument);
  const std::atomic<bool> stop{true};
  options.chunks = 1;
  options.stop = &stop;
  EXPECT_EQ(Perplexity(*context, nullptr, tokens_, options).status().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace blockgtq::test
