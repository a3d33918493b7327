// The depth study against plain loops over a tiny model, and its bookkeeping.
#include "src/eval/depth_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "src/engine/bundled_text.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

/// Mean of sum p (log p - log q) over rows, in double precision from the definition.
double PlainDivergence(std::span<const float> base, std::span<const float> test, size_t vocabulary) {
  double sum = 0;
  for (size_t row = 0; row * vocabulary < base.size(); ++row) {
    double base_mass = 0, test_mass = 0;
    for (size_t v = 0; v < vocabulary; ++v) {
      base_mass += std::exp(static_cast<double>(base[row * vocabulary + v]));
      test_mass += std::exp(static_cast<double>(test[row * vocabulary + v]));
    }
    for (size_t v = 0; v < vocabulary; ++v) {
      const double p = std::exp(static_cast<double>(base[row * vocabulary + v])) / base_mass,
                   q = std::exp(static_cast<double>(test[row * vocabulary + v])) / test_mass;
      sum += p * std::log(p / q);
    }
  }
  return sum / (static_cast<double>(base.size()) / static_cast<double>(vocabulary));
}

class DepthStudyTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    tokens_ = model_->tokenizer().Encode(BundledScoringText().substr(0, 4000), false);
    ASSERT_GE(tokens_.size(), 640u);
    const auto measured = Measure(*model_, std::span(tokens_).first(400), {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    for (const char* recipe : {"aligned", "uniform"}) {
      Result<TestedCache> cache = MakeTestedCache(*model_, *measured, recipe, {3, 3, 2});
      ASSERT_TRUE(cache.ok()) << cache.status().message();
      tested_.push_back(std::move(cache).value());
    }
    for (const TestedCache& cache : tested_)
      for (const Protection& protection : {Protection{0, 0}, Protection{4, 64}})
        caches_.push_back({&cache, protection});
    options_.depths = {100, 320};
    options_.span = 40;
    options_.texts = 2;
    options_.threads = 2;
    path_ = testing::TempDir() + "depth_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  DepthStudy Run() {
    ResultsFile memory = ResultsFile::InMemory();
    const auto study = RunDepthStudy(*model_, caches_, tokens_, options_, memory);
    EXPECT_TRUE(study.ok()) << study.status().message();
    return study.ok() ? *study : DepthStudy{};
  }
  Status Fails() {
    ResultsFile memory = ResultsFile::InMemory();
    return RunDepthStudy(*model_, caches_, tokens_, options_, memory).status();
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<Token> tokens_;
  std::vector<TestedCache> tested_;
  std::vector<StudiedCache> caches_;
  DepthStudyOptions options_;
  std::string path_;
};

TEST_F(DepthStudyTest, DivergenceIsThatOfTheLogitsOfTheBandsPositions) {
  const DepthStudy study = Run();
  ASSERT_EQ(study.caches.size(), 4u);
  const size_t vocabulary = static_cast<size_t>(model_->config().vocabulary);
  const auto half = MakeHalfContext(*model_, 320);
  ASSERT_TRUE(half.ok());
  for (size_t c = 0; c < caches_.size(); ++c) {
    const auto context = MakeTestedContext(*model_, *caches_[c].cache, caches_[c].protection, 320);
    ASSERT_TRUE(context.ok()) << context.status().message();
    double divergence[2] = {0, 0};
    for (size_t text = 0; text < 2; ++text) {
      const std::span<const Token> own = std::span<const Token>(tokens_).subspan(text * 320, 320);
      const std::vector<float> exact = RunAll(**half, own, {.strict = true}, 320),
                               coded = RunAll(**context, own, {.strict = true}, 320);
      for (size_t b = 0; b < 2; ++b) {
        const size_t begin = static_cast<size_t>(options_.depths[b] - 40) * vocabulary;
        divergence[b] += PlainDivergence(std::span(exact).subspan(begin, 40 * vocabulary),
                                         std::span(coded).subspan(begin, 40 * vocabulary), vocabulary) /
                         2;
      }
    }
    for (size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(study.caches[c][b].positions, 80);
      EXPECT_NEAR(study.caches[c][b].kld, divergence[b], 1e-5 + 1e-3 * divergence[b])
          << caches_[c].Name() << " at " << options_.depths[b];
    }
  }
  EXPECT_GT(study.caches[0][1].kld, 0.01);
  // 100 tokens are all in a window of 64 to 128; at 320 most are codes.
  EXPECT_LT(study.caches[1][0].kld, 1e-6);
  EXPECT_EQ(study.caches[1][0].top1, 1);
  EXPECT_GT(study.caches[1][1].kld, 0.001);
}

// At 60 of 320 tokens codes of 2 bits at last still have 8, others more; at 320 it is the cache of full
// memory.
TEST_F(DepthStudyTest, ANarrowingCacheIsJudgedAsItIsAtEachDepth) {
  const auto measured = Measure(*model_, std::span(tokens_).first(400), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  tested_.clear();
  for (const int64_t memory : {0, 320}) {
    Result<TestedCache> cache = MakeTestedCache(*model_, *measured, "pmkvq", {4, 4, 2, memory});
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    tested_.push_back(std::move(cache).value());
  }
  EXPECT_EQ(tested_[1].Name(), "pmkvq K4V4 in 320 tokens");
  caches_ = {{&tested_[0], {}}, {&tested_[1], {}}};
  options_.depths = {60, 320};
  options_.texts = 1;
  const DepthStudy study = Run();
  EXPECT_LT(study.caches[1][0].attention_mean(), 0.1 * study.caches[0][0].attention_mean());
  EXPECT_LT(study.caches[1][0].kld, 0.1 * study.caches[0][0].kld);
  EXPECT_NEAR(study.caches[1][1].attention_mean() / study.caches[0][1].attention_mean(), 1, 1e-3);
  const nlohmann::json rows = DepthJson(caches_, study)["rows"];
  const double full = tested_[0].bytes_per_token_per_head();
  EXPECT_FALSE(rows[0].contains("bytes_at_depth"));
  EXPECT_GT(rows[2]["bytes_at_depth"].get<double>(), 2 * full);
  EXPECT_EQ(rows[3]["bytes_at_depth"].get<double>(), full);
  EXPECT_EQ(rows[3]["bytes_per_token_per_head"].get<double>(), full);
}

TEST_F(DepthStudyTest, AttentionsErrorIsThatOfOutputsOnTheExactRunsInputs) {
  options_.texts = 1;
  const DepthStudy study = Run();
  // The same by hand, one cache at a time and in one pass.
  for (size_t c : {size_t{0}, size_t{3}}) {
    const auto half = MakeHalfContext(*model_, 320);
    const auto coded = MakeTestedContext(*model_, *caches_[c].cache, caches_[c].protection, 320);
    ASSERT_TRUE(half.ok() && coded.ok());
    ASSERT_TRUE((*half)->cache().AddSequence().ok() && (*coded)->cache().AddSequence().ok());
    std::vector<double> errors;  // [layers], at 280..319
    Context* other = coded->get();
    const ContextProbe probe{{&other, 1}, [&](int, std::span<const Activations* const> outputs) {
                               double sum = 0;
                               std::vector<float> a(static_cast<size_t>(outputs[0]->cols())), b(a.size());
                               for (int64_t row = 280; row < 320; ++row) {
                                 EXPECT_TRUE(model_->backend().ReadRow(*outputs[0], row, a.data()).ok());
                                 EXPECT_TRUE(model_->backend().ReadRow(*outputs[1], row, b.data()).ok());
                                 double difference = 0, size = 0;
                                 for (size_t i = 0; i < a.size(); ++i) {
                                   difference += std::pow(static_cast<double>(b[i]) - a[i], 2);
                                   size += std::pow(static_cast<double>(a[i]), 2);
                                 }
                                 sum += std::sqrt(difference / size) / 40;
                               }
                               errors.push_back(sum);
                               return Status::Ok();
                             }};
    const SequenceTokens item{0, std::span<const Token>(tokens_).first(320)};
    ASSERT_TRUE((*half)->Run({&item, 1}, {.strict = true, .probe = &probe}).ok());
    ASSERT_EQ(errors.size(), study.caches[c][1].attention.size());
    for (size_t l = 0; l < errors.size(); ++l) {
      EXPECT_GT(errors[l], 0.01);
      EXPECT_NEAR(study.caches[c][1].attention[l] / errors[l], 1, 1e-5) << "layer " << l;
    }
  }
  EXPECT_LT(study.caches[1][0].attention_mean(), 1e-4);  // all in the window
  EXPECT_GT(study.caches[0][1].attention_mean(), study.caches[1][1].attention_mean());
}

TEST_F(DepthStudyTest, FiguresAreMeansOverAllTextsPositions) {
  const nlohmann::json bands = {
      {{"depth", 100}, {"kld", {1, 2}}, {"top1", {1, 0}}, {"overlap", {0.5, 1}}, {"attention", {0.1, 0.3}}}};
  nlohmann::json other = bands;
  other[0]["kld"] = {3, 6};
  other[0]["attention"] = {0.3, 0.3};
  const nlohmann::json a = {{"id", "a"}, {"bands", bands}}, b = {{"id", "b"}, {"bands", other}};
  options_.span = 2;
  const std::array<const nlohmann::json*, 2> samples = {&a, &b};
  const auto f = DepthFiguresOf(samples, 0, options_, 2);
  ASSERT_TRUE(f.ok()) << f.status().message();
  EXPECT_EQ(f->positions, 4);
  EXPECT_DOUBLE_EQ(f->kld, 3);
  EXPECT_DOUBLE_EQ(f->kld_median, 2.5);
  EXPECT_NEAR(f->kld_se, std::sqrt(14.0 / 3 / 4), 1e-12);  // deviations -2, -1, 0, 3
  EXPECT_DOUBLE_EQ(f->top1, 0.5);
  EXPECT_DOUBLE_EQ(f->top10_overlap, 0.75);
  EXPECT_DOUBLE_EQ(f->attention[0], 0.2);
  EXPECT_DOUBLE_EQ(f->attention_mean(), 0.25);
  EXPECT_EQ(DepthFiguresOf(samples, 0, options_, 3).status().code(), ErrorCode::kCorruptFile);
  options_.span = 3;
  EXPECT_EQ(DepthFiguresOf(samples, 0, options_, 2).status().code(), ErrorCode::kCorruptFile);
}

TEST_F(DepthStudyTest, BosTakesTheFirstPlaceOfEachText) {
  const nlohmann::json plain = DepthJson(caches_, Run());
  options_.bos = 77;
  const nlohmann::json with_bos = DepthJson(caches_, Run());
  EXPECT_NE(with_bos, plain);
  options_.bos = -1;
  tokens_[0] = tokens_[320] = 77;
  EXPECT_EQ(DepthJson(caches_, Run()), with_bos);
}

TEST_F(DepthStudyTest, AStoppedStudyContinuesToTheSameFile) {
  const auto run = [&](bool stop_early) {
    std::atomic<bool> stop{false};
    options_.stop = &stop;
    options_.progress = [&](double done, const std::string&) { stop = stop_early && done > 0.5; };
    Result<ResultsFile> file = ResultsFile::Open(path_, {{"a", 1}});
    EXPECT_TRUE(file.ok()) << file.status().message();
    const auto study = RunDepthStudy(*model_, caches_, tokens_, options_, *file);
    EXPECT_TRUE(study.ok()) << study.status().message();
    return *study;
  };
  const auto content = [&] {
    std::ifstream stream(path_);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const DepthStudy whole = run(false);
  const std::string expected = content();
  std::filesystem::remove(path_);
  const DepthStudy part = run(true);
  EXPECT_TRUE(part.stopped);
  EXPECT_GT(part.samples, 0u);
  EXPECT_LT(part.samples, 8u);
  const DepthStudy rest = run(false);
  EXPECT_FALSE(rest.stopped);
  EXPECT_EQ(content(), expected);
  EXPECT_EQ(DepthJson(caches_, rest), DepthJson(caches_, whole));
}

TEST_F(DepthStudyTest, WhatCannotBeIsRefused) {
  const auto good = options_;
  options_.depths = {30};  // 40 positions before it
  EXPECT_EQ(Fails().code(), ErrorCode::kInvalidArgument);
  options_.depths = {100, 120};
  EXPECT_THAT(Fails().message(), testing::HasSubstr("--span"));
  options_.depths = {320, 100};
  EXPECT_EQ(Fails().code(), ErrorCode::kInvalidArgument);
  options_.depths = {513};  // the model has 512
  EXPECT_THAT(Fails().message(), testing::HasSubstr("512"));
  options_ = good;
  options_.texts = 100;
  EXPECT_THAT(Fails().message(), testing::HasSubstr("longer text"));
  options_ = good;
  caches_.push_back(caches_[0]);
  EXPECT_THAT(Fails().message(), testing::HasSubstr(caches_[0].Name()));
}

TEST(Protections, AreNamedAndParsed) {
  EXPECT_EQ(ParseProtection("none")->Name(), "no buffer");
  EXPECT_EQ(ParseProtection("sinks")->Name(), "4 sinks");
  EXPECT_EQ(ParseProtection("window")->Name(), "4 sinks + 64 recent");
  EXPECT_EQ(ParseProtection("0+128")->Name(), "128 recent");
  for (const char* wrong : {"", "some", "4", "4+", "+4", "-1+4", "65+0", "4+64x"})
    EXPECT_EQ(ParseProtection(wrong).status().code(), ErrorCode::kInvalidArgument) << wrong;
}

TEST(Budgets, AreTakenInPairsUnlessTheFormatHasOneWidth) {
  const std::vector<double> k = {3, 2}, v = {3, 4}, one = {3};
  const auto pairs = BudgetsOf("aligned", k, v, 7);
  ASSERT_TRUE(pairs.ok());
  ASSERT_EQ(pairs->size(), 2u);
  EXPECT_EQ(((*pairs)[1].k_bits == 2 && (*pairs)[1].v_bits == 4 && (*pairs)[1].seed == 7), true);
  const auto fixed = BudgetsOf("q4_0", k, v, 7);
  ASSERT_EQ(fixed->size(), 1u);
  EXPECT_EQ((*fixed)[0].k_bits, 4);
  EXPECT_EQ(BudgetsOf("aligned", k, one, 7).status().code(), ErrorCode::kInvalidArgument);
  const std::vector<double> twice = {3, 3};
  EXPECT_EQ(BudgetsOf("aligned", twice, twice, 7).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(BudgetsOf("fp16", k, v, 7).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockgtq::test
