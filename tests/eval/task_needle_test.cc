// Needle prompts: exact lengths, needles where they belong, answers scored by what they hold; and the grid.
#include <gtest/gtest.h>

#include <cmath>

#include "src/engine/bundled_text.h"
#include "src/eval/tasks/needle_report.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

// In the tiny models' vocabulary nearly every token is a byte, so a few hundred tokens are a short text.
class NeedleTest : public testing::Test {
 protected:
  void SetUp() override { model_ = OpenModel(TinyModelPath("llama")); }

  Result<std::unique_ptr<NeedleSuite>> Create(const NeedleOptions& options, std::string_view text) const {
    return NeedleSuite::Create(*model_, text, options);
  }
  static NeedleOptions Small() {
    NeedleOptions options;
    options.lengths = {480};
    options.depths = {0, 50, 100};
    options.trials = 2;
    options.max_new_tokens = 16;
    options.tasks = {"single"};
    options.chat = false;
    return options;
  }
  std::unique_ptr<NeedleSuite> Make(const NeedleOptions& options) const {
    auto suite = Create(options, BundledHaystackText());
    EXPECT_TRUE(suite.ok()) << suite.status().message();
    return suite.ok() ? std::move(suite).value() : nullptr;
  }
  std::string Text(const NeedleSuite& suite, size_t i) const {
    return model_->tokenizer().Decode(suite.Prompt(i)->tokens);
  }

  std::unique_ptr<LoadedModel> model_;
};

TEST_F(NeedleTest, PromptsHaveExactlyTheLengthAskedFor) {
  NeedleOptions options = Small();
  options.lengths = {431, 480, 496};
  const auto suite = Make(options);
  ASSERT_EQ(suite->size(), 3u * 3 * 2);
  for (size_t i = 0; i < suite->size(); ++i) {
    EXPECT_EQ(static_cast<int64_t>(suite->Prompt(i)->tokens.size()), suite->sample(i).length) << suite->id(i);
  }
  EXPECT_EQ(suite->context_tokens(), 496 + 16);
}

TEST_F(NeedleTest, TheNeedleIsWhereItsDepthSaysAndTheExpectedAnswerIsItsNumber) {
  const auto suite = Make(Small());
  for (size_t i = 0; i < suite->size(); ++i) {
    const std::string text = Text(*suite, i);
    const std::string expected = (*suite->Judge(i, ""))["expected"][0];
    ASSERT_EQ(expected.size(), 7u);
    const size_t at = text.find(" is " + expected + ".");
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find(expected, at + 12), std::string::npos) << "the number must stand once";
    const size_t begin = text.find("\n\n") + 2, end = text.rfind("\n\n");
    const size_t needle_begin = text.rfind("The special number", at), needle_end = at + 4 + 7 + 1;
    if (suite->sample(i).depth == 0) {
      EXPECT_EQ(needle_begin, begin + 1);
    } else if (suite->sample(i).depth == 100) {
      EXPECT_EQ(needle_end, end);
    } else {
      EXPECT_GT(needle_begin, begin + 1);
      EXPECT_LT(needle_end, end);
    }
  }
}

TEST_F(NeedleTest, SamplesOfOneTrialDifferInTheirNeedlesAlone) {
  const auto suite = Make(Small());
  // Without needle, question and answer start the texts of depths 0 and 100 are one stretch of the novel.
  const auto hay = [&](size_t i) {
    std::string text = Text(*suite, i);
    const size_t begin = text.find("\n\n") + 2;
    text = text.substr(begin, text.rfind("\n\n") - begin);
    const size_t needle = text.find(" The special number");
    return text.erase(needle, text.find('.', needle) + 1 - needle);
  };
  // Key lengths differ, so the stretches may differ in length at their end.
  const std::string a = hay(0), b = hay(4);
  const size_t common = std::min(a.size(), b.size());
  EXPECT_GT(common, 100u);
  EXPECT_EQ(a.substr(0, common), b.substr(0, common));
  EXPECT_NE(a.substr(0, 50), hay(1).substr(0, 50)) << "another trial begins elsewhere";
  EXPECT_NE(BundledHaystackText().find(a.substr(0, 80)), std::string_view::npos);
}

TEST_F(NeedleTest, TheSameSeedGivesTheSamePromptsWhateverElseRuns) {
  NeedleOptions options = Small();
  const auto suite = Make(options);
  options.tasks = {"vartrack", "single"};
  options.depths = {50};
  const auto other = Make(options);
  const auto find = [](const NeedleSuite& in, const std::string& id) {
    size_t i = 0;
    while (i < in.size() && in.id(i) != id) ++i;
    return i;
  };
  EXPECT_EQ(Text(*suite, find(*suite, "single/480/50/1")), Text(*other, find(*other, "single/480/50/1")));
  options.seed = 2;
  const auto reseeded = Make(options);
  EXPECT_NE(Text(*other, 0), Text(*reseeded, 0));
}

TEST_F(NeedleTest, EveryTasksAnswerStandsInItsPromptAndScoresFully) {
  for (const NeedleTask& task : NeedleTasks()) {
    for (const double depth : {0.0, 0.3, 1.0}) {
      Xoshiro256 random(3);
      const NeedleCase made = task.make(depth, random);
      std::string needles, answer;
      for (const Needle& needle : made.needles) {
        needles += needle.sentence + " ";
        EXPECT_GE(needle.depth, 0) << task.name;
        EXPECT_LE(needle.depth, 1) << task.name;
      }
      for (const std::string& expected : made.expected) {
        EXPECT_NE(needles.find(expected), std::string::npos) << task.name;
        EXPECT_EQ((made.intro + made.question + made.answer_start).find(expected), std::string::npos)
            << task.name;
        answer += expected + ", ";
      }
      EXPECT_TRUE(std::is_sorted(made.needles.begin(), made.needles.end(),
                                 [](const Needle& a, const Needle& b) { return a.depth < b.depth; }));
      EXPECT_EQ(ShareFound(made.expected, answer), 1) << task.name;
      EXPECT_EQ(ShareFound(made.expected, needles), 1) << task.name;
      EXPECT_EQ(ShareFound(made.expected, made.question), 0) << task.name;
    }
  }
}

TEST_F(NeedleTest, TheAskedNeedleIsAtTheDepthWhateverTheOthers) {
  for (const char* name : {"single", "distractor", "multikey"}) {
    Xoshiro256 random(11);
    const NeedleCase made = FindNeedleTask(name)->make(0.4, random);
    for (const Needle& needle : made.needles) {
      const bool asked = needle.sentence.find(made.expected[0]) != std::string::npos;
      EXPECT_EQ(needle.depth == 0.4, asked) << name << ": " << needle.sentence;
    }
  }
}

TEST_F(NeedleTest, VariableTrackingIsAChainInTheOrderOfTheText) {
  for (const double depth : {0.0, 0.5, 0.9, 1.0}) {
    Xoshiro256 random(5);
    const NeedleCase made = FindNeedleTask("vartrack")->make(depth, random);
    ASSERT_EQ(made.needles.size(), 5u);
    for (size_t k = 1; k < 5; ++k) {
      EXPECT_EQ(made.needles[k].sentence, "VAR " + made.expected[k] + " = VAR " + made.expected[k - 1] + ".");
    }
    EXPECT_EQ(made.needles[0].sentence.find("VAR " + made.expected[0] + " = "), 0u);
  }
}

TEST_F(NeedleTest, AnAnswerScoresTheShareThatItHolds) {
  const std::vector<std::string> expected = {"1234567", "7654321", "ABCDE"};
  EXPECT_EQ(ShareFound(expected, ""), 0);
  EXPECT_EQ(ShareFound(expected, "it is 1234567"), 1.0 / 3);
  EXPECT_EQ(ShareFound(expected, "7654321, 1234567, abcde"), 1);
  EXPECT_EQ(ShareFound(expected, "1,234,567 or 123456"), 0);
}

TEST_F(NeedleTest, WhatCannotBeHonouredIsRefusedAndSaysTheLimit) {
  const auto message = [&](const NeedleOptions& options) {
    const Status status = Create(options, BundledHaystackText()).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    return status.message();
  };
  NeedleOptions options = Small();
  options.lengths = {497};
  EXPECT_NE(message(options).find("496"), std::string::npos);
  options.lengths = {100};
  EXPECT_NE(message(options).find("length 100"), std::string::npos);
  options = Small();
  options.tasks = {"singel"};
  EXPECT_NE(message(options).find("vartrack"), std::string::npos);
  options.tasks = {"single", "single"};
  EXPECT_NE(message(options).find("twice"), std::string::npos);
  options = Small();
  options.depths = {101};
  EXPECT_NE(message(options).find("101"), std::string::npos);
  options = Small();
  options.chat = true;
  EXPECT_EQ(Create(options, BundledHaystackText()).status().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Create(Small(), "too short").status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(NeedleTest, AShortHaystackIsRepeated) {
  std::string text;
  for (int i = 0; text.size() < 100; ++i) text += "Sentence " + std::to_string(i) + " is here. ";
  auto suite = Create(Small(), text);
  ASSERT_TRUE(suite.ok()) << suite.status().message();
  EXPECT_EQ((*suite)->Prompt(0)->tokens.size(), 480u);
}

TEST_F(NeedleTest, TheGridHoldsTheMeanOfEachCell) {
  const auto suite = Make(Small());  // depths 0, 50, 100 of two trials
  TaskRun run;
  for (size_t i = 0; i < 5; ++i) {  // the last sample is not finished
    run.samples.push_back({i,
                           {},
                           suite->sample(i).depth == 0   ? 0.5
                           : suite->sample(i).trial == 0 ? 1.0
                                                         : 0.0});
  }
  const std::vector<NeedleGrid> grids = NeedleGrids(*suite, run);
  ASSERT_EQ(grids.size(), 1u);
  ASSERT_EQ(grids[0].cells.size(), 3u);
  EXPECT_EQ(grids[0].cells[0].score, 0.5);
  EXPECT_EQ(grids[0].cells[1].score, 0.5);
  EXPECT_EQ(grids[0].cells[2].score, 1);
  EXPECT_EQ(grids[0].cells[2].samples, 1);
  const std::string table = NeedleTable(*suite, run, 1);
  EXPECT_NE(table.find("| task | 480 | all |"), std::string::npos) << table;
  EXPECT_NE(table.find("| single | 60.0 | 60.0 |"), std::string::npos) << table;
  const std::string picture = NeedlePicture(*suite, run, "model <x>");
  EXPECT_NE(picture.find("model &lt;x&gt;"), std::string::npos);
  EXPECT_NE(picture.find(">100<"), std::string::npos);
  EXPECT_EQ(NeedleJson(*suite, run, 1)["tasks"]["single"]["cells"].size(), 3u);
}

TEST(SentenceEnds, AreAfterFullStopsAndTheirKinButNotAbbreviations) {
  const std::string text = "Mr. Hill saw Mrs. Dale. \"Who?\" she said. It was 3.5 miles!\nNo. ok";
  std::vector<std::string> parts;
  size_t begin = 0;
  for (const size_t end : SentenceEnds(text)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(parts, (std::vector<std::string>{"Mr. Hill saw Mrs. Dale.", " \"Who?\" she said.",
                                             " It was 3.5 miles!"}));
}

}  // namespace
}  // namespace blockgtq::test
