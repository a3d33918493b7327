// The AIME suite: competition problems whose answers are integers from 0 to 999, each tried several times
// with sampling; pass@1 is the mean.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/tasks/chat_frame.h"
#include "src/eval/tasks/task_runner.h"

namespace blockgtq {

/// The answer that a text gives: the last integer in the last closed \boxed{...}, when it holds one; else the
/// last integer from 0 to 999 in the text. Digits of a decimal fraction are no integer; 1,024 is one of four
/// digits. nullopt: none, or one in the box that is above 999.
std::optional<int> ExtractAimeAnswer(std::string_view text);

struct AimeProblem {
  std::string text;
  int answer = 0;
};

/// One problem a line: {"problem" or "question": text, "answer": a number or its digits}. path: for messages.
/// Errors: kCorruptFile naming line and field.
Result<std::vector<AimeProblem>> ParseAime(std::string_view content, const std::string& path);

struct AimeOptions {
  int samples = 8;  // a problem
  int64_t max_new_tokens = 32768;
  uint64_t seed = 1;
  bool chat = true;
};

class AimeSuite : public TaskSuite {
 public:
  /// The model must outlive the suite. Errors: kInvalidArgument when the longest problem with max_new_tokens
  /// does not fit the model's context (naming the most that do); those of MakeChatFrame.
  static Result<std::unique_ptr<AimeSuite>> Create(const LoadedModel& model,
                                                   std::vector<AimeProblem> problems,
                                                   const AimeOptions& options);

  size_t size() const override { return problems_.size() * static_cast<size_t>(options_.samples); }
  size_t problems() const { return problems_.size(); }
  /// Every problem once, then every problem again: an early stop leaves whole rounds.
  size_t problem(size_t i) const { return i % problems_.size(); }
  std::string id(size_t i) const override;
  std::string task(size_t) const override { return "aime"; }
  double work(size_t) const override { return 1; }
  int64_t context_tokens() const override { return context_tokens_; }
  Result<TaskPrompt> Prompt(size_t i) const override;
  Result<nlohmann::json> Judge(size_t i, const std::string& answer) const override;

 private:
  AimeSuite(const LoadedModel& model, std::vector<AimeProblem> problems, const AimeOptions& options)
      : model_(model), problems_(std::move(problems)), options_(options) {}
  std::vector<Token> PromptTokens(const AimeProblem& problem) const;

  const LoadedModel& model_;
  std::vector<AimeProblem> problems_;
  AimeOptions options_;
  ChatFrame frame_;
  int64_t context_tokens_ = 0;
};

/// pass@1 of a run: the mean over problems of each one's share of right samples. The interval resamples
/// problems, since samples of one problem are alike. Problems without a finished sample do not count.
struct AimeScore {
  Estimate pass_at_1;
  std::vector<double> by_problem;  // share of right samples; -1: none finished
  size_t problems = 0;             // that count
};
AimeScore ScoreAime(const AimeSuite& suite, const TaskRun& run, uint64_t seed);

}  // namespace blockgtq
