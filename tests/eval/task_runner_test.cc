// The runner: samples run alone, end in the results file, and a run that was cut goes on to the same results.
#include "src/eval/tasks/task_runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "src/engine/calibration.h"
#include "src/eval/tasks/aime.h"
#include "src/eval/tasks/longbench.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

/// Three tasks of two samples with prompts of ASCII text; an answer's score is whether its byte sum is even.
class SumSuite : public TaskSuite {
 public:
  explicit SumSuite(const LoadedModel& model) : model_(model) {}
  size_t size() const override { return 6; }
  std::string id(size_t i) const override { return "s" + std::to_string(i); }
  std::string task(size_t i) const override { return std::string(1, static_cast<char>('a' + i / 2)); }
  double work(size_t) const override { return 1; }
  int64_t context_tokens() const override { return 128; }
  Result<TaskPrompt> Prompt(size_t i) const override {
    const std::string text = "prompt number " + std::to_string(i * i) + std::string(i * 7, 'x');
    return TaskPrompt{model_.tokenizer().Encode(text, false), 12, i + 1};
  }
  Result<nlohmann::json> Judge(size_t, const std::string& answer) const override {
    int sum = 0;
    for (const char c : answer) sum += static_cast<unsigned char>(c);
    return nlohmann::json{{"score", sum % 2 == 0 ? 1 : 0}};
  }

 private:
  const LoadedModel& model_;
};

class RunnerTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"), 1);
    CacheOptions options;
    options.kind = CacheKind::kHalf;
    options.max_tokens = 128;
    context_ = MakeContext(*model_, options);
    path_ = testing::TempDir() + "runner_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
    run_.sampler.temperature = 1.5f;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<TaskRun> Run() {
    Result<ResultsFile> file = ResultsFile::Open(path_, {{"a", 1}});
    EXPECT_TRUE(file.ok()) << file.status().message();
    return RunTasks(*context_, SumSuite(*model_), *file, run_);
  }
  std::string Content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<Context> context_;
  std::string path_;
  TaskRunOptions run_;
};

TEST_F(RunnerTest, ARunThatWasCutAnywhereGoesOnToTheSameResults) {
  ASSERT_TRUE(Run().ok());
  const std::string whole = Content();
  for (size_t cut = 0; cut < whole.size(); cut += 37) {
    std::ofstream(path_, std::ios::binary) << whole.substr(0, cut);
    const Result<TaskRun> run = Run();
    ASSERT_TRUE(run.ok()) << run.status().message();
    EXPECT_EQ(run->samples.size(), 6u);
    ASSERT_EQ(Content(), whole) << "cut at " << cut;
  }
}

TEST_F(RunnerTest, AnswersAreTheSameSeveralAtATime) {
  ASSERT_TRUE(Run().ok());
  const auto lines = [](const std::string& text) {
    std::multiset<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.insert(line);
    return all;
  };
  const std::multiset<std::string> alone = lines(Content());
  for (const size_t parallel : {2, 4, 9}) {
    std::filesystem::remove(path_);
    CacheOptions options;
    options.kind = CacheKind::kHalf;
    options.max_tokens = static_cast<int64_t>(128 * parallel);
    context_ = MakeContext(*model_, options);
    run_.parallel = parallel;
    const Result<TaskRun> run = Run();
    ASSERT_TRUE(run.ok()) << run.status().message();
    EXPECT_EQ(lines(Content()), alone) << parallel;
    for (size_t i = 0; i < run->samples.size(); ++i) EXPECT_EQ(run->samples[i].index, i);
    EXPECT_EQ(context_->cache().free_tokens(), context_->cache().options().max_tokens);
  }
}

TEST_F(RunnerTest, ACacheTooSmallForTheSamplesAtATimeIsSaid) {
  CacheOptions options;
  options.kind = CacheKind::kHalf;
  options.max_tokens = 128;
  context_ = MakeContext(*model_, options);
  run_.parallel = 3;
  const Result<TaskRun> run = Run();
  EXPECT_EQ(run.status().code(), ErrorCode::kOutOfMemory) << run.status().message();
  EXPECT_EQ(context_->cache().free_tokens(), options.max_tokens) << "sequences are given back";
  run_.parallel = 0;
  EXPECT_EQ(Run().status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(RunnerTest, AStopKeepsWhatIsFinishedAndALaterRunDoesTheRest) {
  std::atomic<bool> stop = false;
  run_.stop = &stop;
  run_.progress = [&](double, const std::string& note) { stop = stop || note.starts_with("2 of"); };
  const Result<TaskRun> first = Run();
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_TRUE(first->stopped);
  EXPECT_EQ(first->samples.size(), 2u);
  const std::string begun = Content();
  run_.stop = nullptr;
  run_.progress = {};
  const Result<TaskRun> second = Run();
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(second->stopped);
  EXPECT_EQ(second->continued, 2u);
  EXPECT_EQ(second->samples.size(), 6u);
  EXPECT_TRUE(Content().starts_with(begun));
  EXPECT_EQ(context_->cache().free_tokens(), context_->cache().options().max_tokens)
      << "sequences are given back";
}

TEST_F(RunnerTest, ALineThatTheSuiteHasNotIsRefused) {
  ASSERT_TRUE(Run().ok());
  const std::string whole = Content();
  for (const char* line : {R"({"id":"s9","score":1})", R"({"id":"s0","score":1})"}) {
    std::ofstream(path_, std::ios::binary) << whole << line << "\n";
    EXPECT_EQ(Run().status().code(), ErrorCode::kCorruptFile) << line;
  }
  const std::string header = whole.substr(0, whole.find('\n') + 1);
  for (const char* line : {R"({"id":"s0"})", R"({"id":"s0","score":2})", R"({"id":"s0","score":"1"})"}) {
    std::ofstream(path_, std::ios::binary) << header << line << "\n";
    EXPECT_EQ(Run().status().code(), ErrorCode::kCorruptFile) << line;
  }
}

TEST_F(RunnerTest, ScoresAreGatheredByTaskInTheSuitesOrder) {
  const Result<TaskRun> run = Run();
  ASSERT_TRUE(run.ok());
  const std::vector<TaskScores> tasks = run->ByTask(SumSuite(*model_));
  ASSERT_EQ(tasks.size(), 3u);
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(tasks[t].task, std::string(1, static_cast<char>('a' + t)));
    EXPECT_EQ(tasks[t].scores,
              (std::vector<double>{run->samples[2 * t].score, run->samples[2 * t + 1].score}));
  }
}

TEST_F(RunnerTest, TriesOfOnePromptDifferByTheirSeeds) {
  const auto suite =
      AimeSuite::Create(*model_, {{"one", 1}}, {.samples = 4, .max_new_tokens = 12, .chat = false});
  ASSERT_TRUE(suite.ok()) << suite.status().message();
  ResultsFile memory = ResultsFile::InMemory();
  const Result<TaskRun> run = RunTasks(*context_, **suite, memory, run_);
  ASSERT_TRUE(run.ok()) << run.status().message();
  std::set<std::string> answers;
  for (const TaskSample& sample : run->samples) answers.insert(sample.line["answer"].get<std::string>());
  EXPECT_EQ(answers.size(), 4u);
}

TEST_F(RunnerTest, StrictPromptsAttendToCodes) {
  CacheOptions options;
  options.sinks = options.recent = 0;
  options.max_tokens = 128;
  auto measured = Measure(*model_, model_->tokenizer().Encode(std::string(300, 'q') + " of text", false), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  auto plan = MakePlan(*model_, *measured, "aligned", {2, 2, 1});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  context_ = MakeContext(*model_, options, &*plan);
  const auto answers = [&](bool strict) {
    run_.strict = strict;
    ResultsFile memory = ResultsFile::InMemory();
    const Result<TaskRun> run = RunTasks(*context_, SumSuite(*model_), memory, run_);
    EXPECT_TRUE(run.ok()) << run.status().message();
    std::string all;
    for (const TaskSample& sample : run->samples) all += sample.line["answer"].get<std::string>() + "|";
    return all;
  };
  const std::string strict = answers(true), production = answers(false);
  EXPECT_NE(strict, production) << "a prompt that attends to itself in fp16 ends elsewhere";
  EXPECT_EQ(strict, answers(true));
}

TEST(LongBenchSuite, PromptsAreCutInTheMiddleAtTheCap) {
  const std::vector<Token> tokens = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(CutMiddle(tokens, 7), tokens);
  EXPECT_EQ(CutMiddle(tokens, 4), (std::vector<Token>{1, 2, 6, 7}));
  EXPECT_EQ(CutMiddle(tokens, 5), (std::vector<Token>{1, 2, 6, 7}))
      << "halves are rounded down, as LongBench's";

  const auto model = OpenModel(TinyModelPath("llama"), 1);
  const LongBenchSample sample{.input = "Q", .context = std::string(1000, 'c'), .answers = {"x"}};
  std::vector<LongBenchData> data = {{FindLongBenchTask("multifieldqa_en"), {sample, sample}}};
  auto suite = LongBenchSuite::Create(*model, data, {.cap = 300, .chat = false});
  ASSERT_TRUE(suite.ok()) << suite.status().message();
  const std::vector<Token> whole = model->tokenizer().Encode(LongBenchPrompt(*data[0].task, sample), false);
  std::vector<Token> expected(whole.begin(), whole.begin() + 150);
  expected.insert(expected.end(), whole.end() - 150, whole.end());
  EXPECT_EQ((*suite)->Prompt(1)->tokens, expected);
  EXPECT_EQ((*suite)->context_tokens(), 300 + 64);
  EXPECT_EQ((*suite)->id(1), "multifieldqa_en/1");

  auto as_fits = LongBenchSuite::Create(*model, data, {.chat = false});
  ASSERT_TRUE(as_fits.ok());
  EXPECT_EQ((*as_fits)->cap(), 512 - 64);
  const Status refused = LongBenchSuite::Create(*model, data, {.cap = 449, .chat = false}).status();
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("448"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace blockgtq::test
