// Answers of competition problems: what a text gives as its answer, the problems' file, and pass@1.
#include <gtest/gtest.h>

#include "src/eval/tasks/aime.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

TEST(AimeAnswer, IsTheLastClosedBox) {
  EXPECT_EQ(ExtractAimeAnswer("so \\boxed{204}."), 204);
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{1} then \\boxed{025} and 7"), 25);
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{\\text{the number } {45}}"), 45);
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{\\frac{1}{2} = 36}"), 36);
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{33} later \\boxed{44"), 33) << "the second box was cut off";
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{0}"), 0);
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{000}"), 0);
}

TEST(AimeAnswer, IsElseTheLastIntegerUpTo999) {
  EXPECT_EQ(ExtractAimeAnswer("The answer is 73."), 73);
  EXPECT_EQ(ExtractAimeAnswer("first 12, then 999, of 1000"), 999);
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{x} gives 17"), 17) << "a box without a number";
  EXPECT_EQ(ExtractAimeAnswer("8 and 3.14159 and 2.5"), 8) << "decimal fractions are none";
  EXPECT_EQ(ExtractAimeAnswer("5, or 1,024"), 5) << "a thousands separator";
  EXPECT_EQ(ExtractAimeAnswer("5, or 1{,}024"), 5);
  EXPECT_EQ(ExtractAimeAnswer("(3,14)"), 14) << "a pair";
  EXPECT_EQ(ExtractAimeAnswer("number 99999999999999999999"), std::nullopt);
}

TEST(AimeAnswer, IsNoneWithoutAnInteger) {
  EXPECT_EQ(ExtractAimeAnswer(""), std::nullopt);
  EXPECT_EQ(ExtractAimeAnswer("I do not know \\boxed{}"), std::nullopt);
  EXPECT_EQ(ExtractAimeAnswer("7 but \\boxed{1234}"), std::nullopt) << "the box counts, and holds no answer";
  EXPECT_EQ(ExtractAimeAnswer("\\boxed{"), std::nullopt);
}

TEST(AimeFile, TakesProblemsWithNumbersOrTheirDigits) {
  const auto problems = ParseAime(
      "{\"problem\": \"p\", \"answer\": 7, \"year\": 2024}\n\n{\"question\": \"q\", \"answer\": \"033\"}\r\n",
      "f");
  ASSERT_TRUE(problems.ok()) << problems.status().message();
  ASSERT_EQ(problems->size(), 2u);
  EXPECT_EQ((*problems)[0].text, "p");
  EXPECT_EQ((*problems)[1].text, "q");
  EXPECT_EQ((*problems)[1].answer, 33);
}

TEST(AimeFile, ALineThatIsNoProblemIsNamed) {
  for (const char* line : {"{", "[]", R"({"answer": 1})", R"({"problem": 3, "answer": 1})",
                           R"({"problem": "p"})", R"({"problem": "p", "answer": 1000})",
                           R"({"problem": "p", "answer": -1})", R"({"problem": "p", "answer": 1.5})",
                           R"({"problem": "p", "answer": "x"})", R"({"problem": "p", "answer": "1 or 2"})"}) {
    const Status status =
        ParseAime("{\"problem\": \"p\", \"answer\": 1}\n" + std::string(line), "f.jsonl").status();
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile) << line;
    EXPECT_NE(status.message().find("f.jsonl: line 2"), std::string::npos) << status.message();
  }
  EXPECT_EQ(ParseAime("", "f").status().code(), ErrorCode::kCorruptFile);
}

class AimeSuiteTest : public testing::Test {
 protected:
  void SetUp() override { model_ = OpenModel(TinyModelPath("llama")); }
  std::unique_ptr<AimeSuite> Make(int samples, int64_t new_tokens) {
    auto suite =
        AimeSuite::Create(*model_, {{"one", 1}, {"two", 2}, {"three", 3}},
                          {.samples = samples, .max_new_tokens = new_tokens, .seed = 5, .chat = false});
    EXPECT_TRUE(suite.ok()) << suite.status().message();
    return suite.ok() ? std::move(suite).value() : nullptr;
  }
  std::unique_ptr<LoadedModel> model_;
};

TEST_F(AimeSuiteTest, RunsEveryProblemOnceBeforeAnyTwiceWithASeedEach) {
  const auto suite = Make(4, 16);
  ASSERT_EQ(suite->size(), 12u);
  std::set<uint64_t> seeds;
  std::set<std::string> ids;
  for (size_t i = 0; i < suite->size(); ++i) {
    EXPECT_EQ(suite->problem(i), i % 3);
    ids.insert(suite->id(i));
    seeds.insert(suite->Prompt(i)->seed);
  }
  EXPECT_EQ(ids.size(), 12u);
  EXPECT_EQ(seeds.size(), 12u);
  EXPECT_EQ(suite->Prompt(0)->tokens, suite->Prompt(3)->tokens);
}

TEST_F(AimeSuiteTest, PassAt1IsTheMeanOverProblems) {
  const auto suite = Make(2, 16);
  TaskRun run;
  // Problem 0: 1 of 2, problem 1: 1 of 1, problem 2: none finished.
  for (const auto& [index, score] : std::vector<std::pair<size_t, double>>{{0, 1}, {1, 1}, {3, 0}}) {
    run.samples.push_back({index, {}, score});
  }
  const AimeScore score = ScoreAime(*suite, run, 1);
  EXPECT_EQ(score.pass_at_1.mean, 0.75);
  EXPECT_EQ(score.by_problem, (std::vector<double>{0.5, 1, -1}));
  EXPECT_EQ(score.problems, 2u);
  EXPECT_EQ(score.pass_at_1.low, 0.5);
  EXPECT_EQ(score.pass_at_1.high, 1);
}

TEST_F(AimeSuiteTest, JudgesTheAnswer) {
  const auto suite = Make(1, 16);
  const nlohmann::json right = *suite->Judge(1, "\\boxed{2}"), wrong = *suite->Judge(1, "3"),
                       none = *suite->Judge(1, "-");
  EXPECT_EQ(right["score"], 1);
  EXPECT_EQ(wrong["score"], 0);
  EXPECT_EQ(wrong["given"], 3);
  EXPECT_EQ(none["score"], 0);
  EXPECT_TRUE(none["given"].is_null());
}

TEST_F(AimeSuiteTest, MoreTokensThanTheContextHoldsAreRefusedWithTheMostThatFit) {
  const Status status =
      AimeSuite::Create(*model_, {{"one", 1}}, {.max_new_tokens = 1000, .chat = false}).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("512"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace blockgtq::test
