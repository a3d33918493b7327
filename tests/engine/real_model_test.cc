// SmolLM2-135M and the Qwen2.5 models against independent results: transformers in float32 on the same
// dequantised weights (tests/data/llama_cpp/*/exact.json; how it was made: its `what` and `versions`).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "src/core/thread_pool.h"
#include "src/engine/calibration.h"
#include "src/engine/generator.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

struct RealModel {
  const char* name;
  const char* file;
};

class RealModels : public testing::TestWithParam<RealModel> {
 protected:
  void SetUp() override {
    const std::string path = RealModelPath(GetParam().file);
    if (path.empty())
      GTEST_SKIP() << GetParam().file << " is not here: scripts/fetch_models.sh " << GetParam().name;
    std::ifstream stream(std::string(BGTQ_TEST_DATA) + "/llama_cpp/" + GetParam().name + "/exact.json");
    ASSERT_TRUE(stream);
    exact_ = nlohmann::json::parse(stream);
    model_ = OpenModel(path);
    ASSERT_NE(model_, nullptr);
  }

  std::vector<double> LogProbabilities(std::span<const float> logits) {
    const float top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
    std::vector<double> result;
    for (float x : logits) result.push_back(x - top - std::log(sum));
    return result;
  }

  /// Logits after `ids`, in one batch.
  std::vector<float> LastLogits(Context& context, SequenceId sequence, std::span<const Token> ids) {
    int64_t row = 0;
    const Status status = context.Append(sequence, ids, {}, [&](int64_t, int64_t rows) {
      row = rows - 1;
      return Status::Ok();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    const std::span<const float> logits = *context.Logits({&row, 1});
    return {logits.begin(), logits.end()};
  }

  double WorstTop20(CacheKind kind) {
    CacheOptions options;
    options.kind = kind;
    options.max_tokens = 512;
    const auto context = MakeContext(*model_, options);
    double worst = 0;
    for (const nlohmann::json& prompt : exact_["prompts"]) {
      const std::vector<Token> ids = prompt["ids"];
      const SequenceId sequence = *context->cache().AddSequence();
      const std::vector<double> mine = LogProbabilities(LastLogits(*context, sequence, ids));
      for (const nlohmann::json& entry : prompt["top20"]) {
        worst = std::max(worst, std::abs(mine[entry[0].get<size_t>()] - entry[1].get<double>()));
      }
      context->cache().RemoveSequence(sequence);
    }
    return worst;
  }

  nlohmann::json exact_;
  std::unique_ptr<LoadedModel> model_;
};

TEST_P(RealModels, Top20LogProbabilitiesEqualTransformersInFloat) {
  EXPECT_LT(WorstTop20(CacheKind::kFloat), 1e-3);
  EXPECT_LT(WorstTop20(CacheKind::kHalf), 0.05);
}

TEST_P(RealModels, Top20LogProbabilitiesAreCloseWithInt8Activations) {
  model_->backend().SetPrecision(Precision::kFast);
  EXPECT_LT(WorstTop20(CacheKind::kHalf), 0.5);
}

TEST_P(RealModels, GreedyStepsEqualTransformersWhereTheMarginIsClear) {
  for (Precision precision : {Precision::kFloat, Precision::kFast}) {
    model_->backend().SetPrecision(precision);
    const double clear = precision == Precision::kFloat ? 0.05 : 0.5;
    CacheOptions options;
    options.kind = CacheKind::kHalf;
    options.max_tokens = 1024;
    const auto context = MakeContext(*model_, options);
    for (const nlohmann::json& prompt : exact_["prompts"]) {
      const SequenceId sequence = *context->cache().AddSequence();
      std::vector<float> logits = LastLogits(*context, sequence, prompt["ids"].get<std::vector<Token>>());
      const nlohmann::json& forced = prompt["teacher_forced"];
      for (size_t step = 0; step < forced["ids"].size(); ++step) {
        const Token best =
            static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        if (forced["top2_margin"][step].get<double>() > clear) {
          EXPECT_EQ(best, forced["top1"][step].get<Token>()) << prompt["name"] << " step " << step;
        }
        const Token next = forced["ids"][step];
        logits = LastLogits(*context, sequence, {&next, 1});
      }
      context->cache().RemoveSequence(sequence);
    }
  }
}

TEST_P(RealModels, GreedyTextIsTheSameTwiceAndFromAPackedCacheReadsLikeALanguage) {
  model_->backend().SetPrecision(Precision::kFast);
  auto measured =
      Measure(*model_, model_->tokenizer().Encode(std::string(4000, 'a') + " The sea is wide.", false), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  auto plan = MakePlan(*model_, *measured, "aligned", {});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  CacheOptions options;
  options.max_tokens = 512;
  const auto context = MakeContext(*model_, options, &*plan);
  const std::vector<Token> prompt = exact_["prompts"][0]["ids"];
  std::vector<std::vector<Token>> texts;
  for (int run = 0; run < 2; ++run) {
    const SequenceId sequence = *context->cache().AddSequence();
    std::vector<Token> history;
    GenerateOptions generate;
    generate.max_new_tokens = 100;
    generate.sampler.temperature = 0;
    generate.ignore_end = true;
    const auto result = Generate(*context, sequence, history, prompt, generate);
    ASSERT_TRUE(result.ok()) << result.status().message();
    texts.push_back(result->tokens);
    context->cache().RemoveSequence(sequence);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0].size(), 100u);
}

INSTANTIATE_TEST_SUITE_P(Models, RealModels,
                         testing::Values(RealModel{"smollm2-135m", kSmolLm2},
                                         RealModel{"qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b.gguf"},
                                         RealModel{"qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b.gguf"}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace blockgtq::test
