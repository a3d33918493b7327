// The calibration study: each plan's scores are those of that plan alone, and groups are means over plans.
#include "src/eval/calibration_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "src/engine/bundled_text.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

/// Tasks a (one sample, score 1) and b (two samples, scores 0 and 0.5): 62.5 percent, whatever the answers.
class KnownSuite : public TaskSuite {
 public:
  size_t size() const override { return 3; }
  std::string id(size_t i) const override { return "s" + std::to_string(i); }
  std::string task(size_t i) const override { return i == 0 ? "a" : "b"; }
  double work(size_t) const override { return 1; }
  int64_t context_tokens() const override { return 64; }
  Result<TaskPrompt> Prompt(size_t) const override { return TaskPrompt{{1, 2, 3}, 2, 1}; }
  Result<nlohmann::json> Judge(size_t i, const std::string&) const override {
    constexpr double kScores[] = {1, 0, 0.5};
    return nlohmann::json{{"score", kScores[i]}};
  }
};

class CalibrationStudyTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    scored_ = model_->tokenizer().Encode(BundledScoringText().substr(0, 4000), false);
    options_.texts = {{"train", std::string(BundledCalibrationText())},
                      {"novel", std::string(BundledHaystackText())}};
    options_.lengths = {64, 256};
    options_.offsets = {0, 500};
    options_.k_bits = options_.v_bits = {3, 2};
    options_.protection = {0, 0};
    options_.scoring.window = 128;
    options_.scoring.chunks = 2;
    options_.scoring.strict = true;
    options_.scoring.threads = 2;
    path_ =
        testing::TempDir() + "calibration_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  CalibrationStudy Run() {
    ResultsFile memory = ResultsFile::InMemory();
    const auto study = RunCalibrationStudy(*model_, scored_, options_, memory);
    EXPECT_TRUE(study.ok()) << study.status().message();
    return study.ok() ? *study : CalibrationStudy{};
  }
  Status Fails() {
    ResultsFile memory = ResultsFile::InMemory();
    return RunCalibrationStudy(*model_, scored_, options_, memory).status();
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<Token> scored_;
  CalibrationStudyOptions options_;
  KnownSuite suite_;
  std::string path_;
};

TEST_F(CalibrationStudyTest, EachPlansScoresAreThoseOfThePlanMadeAlone) {
  const CalibrationStudy study = Run();
  ASSERT_EQ(study.cases.size(), 16u);
  for (size_t i = 0; i < study.cases.size(); ++i) {
    const CalibrationCase& c = study.cases[i];
    const std::vector<Token> text = model_->tokenizer().Encode(options_.texts[c.text].text, false);
    const auto measured = Measure(
        *model_,
        std::span<const Token>(text).subspan(static_cast<size_t>(c.offset), static_cast<size_t>(c.length)),
        {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    const auto plan = MakePlan(*model_, *measured, "aligned", c.bits);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    CacheOptions packed, half;
    packed.sinks = packed.recent = 0;
    half.kind = CacheKind::kHalf;
    packed.max_tokens = half.max_tokens = 128;
    const auto test = MakeContext(*model_, packed, &*plan), base = MakeContext(*model_, half);
    const auto alone = Perplexity(*test, base.get(), scored_, options_.scoring);
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    ASSERT_TRUE(study.scores[i].has_value());
    EXPECT_EQ(study.scores[i]->kld, alone->kld_mean) << i;
    EXPECT_EQ(study.scores[i]->ppl, alone->ppl) << i;
    EXPECT_EQ(study.scores[i]->ppl_fp16, alone->base_ppl) << i;
    EXPECT_EQ(study.scores[i]->bytes, plan->bytes_per_token_per_head()) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(study.scores[i]->kld, study.scores[j]->kld) << i << ", " << j;
  }
}

TEST_F(CalibrationStudyTest, GroupsAreMeansAndDeviationsOverTheirPlans) {
  CalibrationStudy study;
  study.cases = *CalibrationCases(options_);
  for (size_t i = 0; i < study.cases.size(); ++i) {
    CalibrationScores s;
    s.kld = static_cast<double>(i);
    s.ppl = 10 * static_cast<double>(i);
    study.scores.emplace_back(s);
  }
  study.scores[0].reset();  // not finished
  const std::vector<CalibrationGroup> groups = CalibrationGroups(options_, study);
  // All, two lengths, two texts, two offsets for each budget; one seed makes no group.
  ASSERT_EQ(groups.size(), 14u);
  const auto find = [&](double bits, const std::string& factor, const std::string& value) {
    for (const CalibrationGroup& g : groups)
      if (g.k_bits == bits && g.factor == factor && g.value == value) return g;
    ADD_FAILURE() << factor << " " << value;
    return CalibrationGroup{};
  };
  // Cases run text, offset, length, bits: K2V2 are the odd ones, of the novel 9, 11, 13, 15.
  const CalibrationGroup novel = find(2, "text", "novel");
  EXPECT_EQ(novel.kld.count, 4u);
  EXPECT_DOUBLE_EQ(novel.kld.mean, 12);
  EXPECT_NEAR(novel.kld.sd, std::sqrt((9 + 1 + 1 + 9) / 3.0), 1e-12);
  EXPECT_DOUBLE_EQ(novel.ppl.mean, 120);
  // K3V3 after 256 tokens: 2, 6, 10, 14; at offset 0: 2, 8, 10 (0 is missing); all: 2, 4, ... 14.
  EXPECT_DOUBLE_EQ(find(3, "tokens", "256").kld.mean, 8);
  EXPECT_DOUBLE_EQ(find(3, "offset", "0").kld.mean, 20.0 / 3);
  EXPECT_EQ(find(3, "offset", "0").kld.count, 3u);
  EXPECT_DOUBLE_EQ(find(3, "all", "").kld.mean, 8);
  EXPECT_EQ(find(3, "all", "").kld.count, 7u);
}

TEST_F(CalibrationStudyTest, NeedleScoresAreTheMeanOverTasksAndTheYardsticksToo) {
  options_.needle = &suite_;
  options_.lengths = {64};
  options_.offsets = {0};
  const CalibrationStudy study = Run();
  ASSERT_TRUE(study.needle_fp16.has_value());
  EXPECT_DOUBLE_EQ(*study.needle_fp16, 62.5);
  for (const auto& s : study.scores) EXPECT_DOUBLE_EQ(s->needle, 62.5);
  EXPECT_THAT(CalibrationTables(options_, study), testing::HasSubstr("needle 62.5"));
  EXPECT_DOUBLE_EQ(CalibrationJson(options_, study)["fp16"]["needle"].get<double>(), 62.5);
}

TEST_F(CalibrationStudyTest, AStoppedStudyContinuesToTheSameFile) {
  options_.needle = &suite_;
  options_.texts.resize(1);
  const auto run = [&](bool stop_early) {
    std::atomic<bool> stop{false};
    options_.stop = &stop;
    options_.progress = [&](double done, const std::string&) { stop = stop_early && done > 0.4; };
    Result<ResultsFile> file = ResultsFile::Open(path_, {{"a", 1}});
    EXPECT_TRUE(file.ok()) << file.status().message();
    const auto study = RunCalibrationStudy(*model_, scored_, options_, *file);
    EXPECT_TRUE(study.ok()) << study.status().message();
    return *study;
  };
  const auto content = [&] {
    std::ifstream stream(path_);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const CalibrationStudy whole = run(false);
  const std::string expected = content();
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 10);  // settings, fp16, 8 plans
  std::filesystem::remove(path_);
  EXPECT_TRUE(run(true).stopped);
  EXPECT_LT(content().size(), expected.size());
  const CalibrationStudy rest = run(false);
  EXPECT_FALSE(rest.stopped);
  EXPECT_EQ(content(), expected);
  EXPECT_EQ(CalibrationJson(options_, rest), CalibrationJson(options_, whole));
}

TEST_F(CalibrationStudyTest, WhatCannotBeIsRefusedBeforeAnythingRuns) {
  const auto good = options_;
  const auto refuses = [&](const char* need) {
    const Status status = Fails();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << need;
    EXPECT_THAT(status.message(), testing::HasSubstr(need));
    options_ = good;
  };
  options_.progress = [](double, const std::string&) { ADD_FAILURE() << "something ran"; };
  options_.lengths = {63};
  refuses("--lengths");
  options_.lengths = {513};
  refuses("512");
  options_.lengths = {64, 64};
  refuses("twice");
  options_.offsets = {};
  refuses("--offsets");
  options_.offsets = {10000000};
  refuses("longer text");
  options_.offsets = {std::numeric_limits<int64_t>::max() - 20};
  refuses("must lie within");
  options_.texts[1].name = "train";
  refuses("--texts");
  options_.recipe = "fp16";
  refuses("uncompressed");
  options_.k_bits = {3};
  refuses("pairs");
  options_.recipe = "q8_0";
  refuses("q8_0");
}

}  // namespace
}  // namespace blockgtq::test
