// LongBench's metrics against the public Python programs that define them
// (tests/data/eval/tasks/make_scores.py), and bootstrap intervals.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/eval/tasks/longbench_tasks.h"
#include "src/eval/tasks/scores.h"
#include "src/eval/tasks/text_scores.h"
#include "src/eval/tasks/unicode_words.h"

namespace blockgtq {
namespace {

const nlohmann::json& Reference() {
  static const nlohmann::json reference = [] {
    std::ifstream file(std::string(BGTQ_TEST_DATA) + "/eval/tasks/scores.json");
    return nlohmann::json::parse(file);
  }();
  return reference;
}

template <typename Metric>
void ExpectReference(const char* name, size_t at_least, const Metric& metric) {
  const nlohmann::json& rows = Reference().at(name);
  EXPECT_GE(rows.size(), at_least);
  for (const nlohmann::json& row : rows) {
    const std::string prediction = row["prediction"], truth = row["truth"];
    EXPECT_NEAR(metric(prediction, truth), row["score"].get<double>(), 1e-9)
        << name << ": '" << prediction << "' for '" << truth << "'";
  }
}

TEST(TextScores, AnswerF1EqualsPython) { ExpectReference("qa_f1", 15, QaF1); }

TEST(TextScores, RougeLEqualsTheRougePackage) { ExpectReference("rouge_l", 50, RougeL); }

TEST(TextScores, ClassificationEqualsPython) {
  const std::vector<std::string> classes = Reference()["classes"];
  ExpectReference("classification", 10, [&](const std::string& prediction, const std::string& truth) {
    return ClassificationScore(prediction, truth, classes);
  });
}

TEST(TextScores, CodeSimilarityEqualsFuzzywuzzy) { ExpectReference("code", 50, CodeSimilarity); }

TEST(TextScores, RetrievalEqualsPython) { ExpectReference("retrieval", 8, RetrievalScore); }

TEST(TextScores, BytesThatAreNotUtf8AreNoCrash) {
  EXPECT_EQ(QaF1("\xff\xfe paris", "paris \xff\xfe"), 1);
  EXPECT_EQ(CodePoints("a\xe2\x82"), U"a\uFFFD\uFFFD");
  EXPECT_EQ(RougeL("\xff", "\xff"), RougeL("x", "x"));
}

TEST(LongBench, TheBestAnswerCountsAndOnlyTrecsFirstLine) {
  const LongBenchTask& qa = *FindLongBenchTask("hotpotqa");
  EXPECT_EQ(LongBenchScore(qa, {.answers = {"Rome", "Paris"}}, "paris"), 1);
  EXPECT_EQ(LongBenchScore(qa, {.answers = {"Rome"}}, "paris\nrome"), 2.0 / 3);
  const LongBenchTask& trec = *FindLongBenchTask("trec");
  const LongBenchSample sample{.answers = {"City"}, .classes = {"City", "Date"}};
  EXPECT_EQ(LongBenchScore(trec, sample, "\n\nCity\nDate"), 1);
  EXPECT_EQ(LongBenchScore(trec, sample, "Date\nCity"), 0);
}

TEST(LongBench, PromptsHoldBothFieldsEachWhereItIsNamed) {
  const LongBenchSample sample{.input = "{context}?", .context = "CON{input}TEXT", .answers = {"x"}};
  for (const LongBenchTask& task : LongBenchTasks()) {
    const std::string prompt = LongBenchPrompt(task, sample);
    const bool has_input = task.prompt.find("{input}") != std::string_view::npos;
    EXPECT_EQ(prompt.size(), task.prompt.size() + (14 - 9) + (has_input ? 10 - 7 : 0)) << task.name;
    EXPECT_NE(prompt.find("CON{input}TEXT"), std::string::npos) << task.name;
    EXPECT_EQ(prompt.find("{context}?") != std::string::npos, has_input) << task.name;
  }
  EXPECT_EQ(LongBenchPrompt(*FindLongBenchTask("lcc"), {.context = "a = 1\n"}),
            "Please complete the code given below. \na = 1\nNext line of code:\n");
}

TEST(LongBench, ALineThatIsNoSampleIsNamed) {
  const LongBenchTask& trec = *FindLongBenchTask("trec");
  const std::string good =
      R"({"input": "a", "context": "b", "answers": ["c"], "all_classes": ["c"], "length": 3})";
  const auto samples = ParseLongBench(good + "\n\n" + good, trec, "trec.jsonl");
  ASSERT_TRUE(samples.ok()) << samples.status().message();
  ASSERT_EQ(samples->size(), 2u);
  EXPECT_EQ((*samples)[1].classes, std::vector<std::string>{"c"});
  for (const auto& [line, needs] : std::vector<std::pair<std::string, std::string>>{
           {"{", "JSON"},
           {"[1]", "object"},
           {R"({"input": "a", "context": "b", "answers": [], "all_classes": []})", "answers"},
           {R"({"input": "a", "context": "b", "answers": [1], "all_classes": []})", "answers"},
           {R"({"input": "a", "context": 1, "answers": ["c"], "all_classes": []})", "context"},
           {R"({"input": "a", "context": "b", "answers": ["c"], "all_classes": null})", "all_classes"}}) {
    const Status status = ParseLongBench(good + "\n" + line + "\n", trec, "trec.jsonl").status();
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile) << line;
    EXPECT_NE(status.message().find("trec.jsonl: line 2"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(needs), std::string::npos) << status.message();
  }
  EXPECT_EQ(ParseLongBench("\n", trec, "trec.jsonl").status().code(), ErrorCode::kCorruptFile);
}

TEST(Bootstrap, IntervalEqualsNumpysWithManyResamples) {
  const nlohmann::json& reference = Reference()["bootstrap"];
  const std::vector<double> values = reference["values"];
  const Estimate estimate = BootstrapMean(values, 1);
  EXPECT_NEAR(estimate.mean, reference["mean"].get<double>(), 1e-12);
  // 2,000 resamples place a 2.5% quantile within about 0.02 here.
  EXPECT_NEAR(estimate.low, reference["low"].get<double>(), 0.025);
  EXPECT_NEAR(estimate.high, reference["high"].get<double>(), 0.025);
}

TEST(Bootstrap, TheSameSeedGivesTheSameInterval) {
  const std::vector<double> values = {0, 1, 0.3, 0.7, 1, 0, 0.2};
  EXPECT_EQ(BootstrapMean(values, 7), BootstrapMean(values, 7));
  EXPECT_NE(BootstrapMean(values, 7), BootstrapMean(values, 8));
  EXPECT_EQ(BootstrapMean({}, 7), Estimate());
}

TEST(Bootstrap, EveryTaskCountsAlikeHoweverManySamplesItHas) {
  const std::vector<std::vector<double>> groups = {std::vector<double>(100, 1.0), {0.0}, {}};
  EXPECT_EQ(BootstrapMeanOfMeans(groups, 1), (Estimate{0.5, 0.5, 0.5}));
  const std::vector<TaskScores> tasks = {{"a", groups[0]}, {"b", groups[1]}, {"c", {}}};
  EXPECT_EQ(ScoreTable(tasks, 1),
            "| task | score | 95% interval | samples |\n|---|---|---|---|\n"
            "| a | 100.00 | 100.00 to 100.00 | 100 |\n| b | 0.00 | 0.00 to 0.00 | 1 |\n| c | - | - | 0 |\n"
            "| average | 50.00 | 50.00 to 50.00 | 101 |\n");
  const nlohmann::json json = ScoreJson(tasks, 1);
  EXPECT_EQ(json["average"], 50.0);
  EXPECT_EQ(json["tasks"].size(), 2u);
  EXPECT_EQ(json["tasks"]["a"]["samples"], 100);
}

}  // namespace
}  // namespace blockgtq
