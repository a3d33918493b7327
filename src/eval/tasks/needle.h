// The needle suite: facts hidden in a long text at given depths, asked for afterwards; over a grid of lengths
// and depths.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/tasks/chat_frame.h"
#include "src/eval/tasks/haystack.h"
#include "src/eval/tasks/needle_case.h"
#include "src/eval/tasks/task_runner.h"

namespace blockgtq {

struct NeedleOptions {
  std::vector<std::string> tasks;  // empty: all
  std::vector<int64_t> lengths;    // tokens of the prompt, exactly; the answer comes on top
  std::vector<int> depths;         // percent, 0..100
  int trials = 3;                  // samples a task, length and depth
  uint64_t seed = 1;
  int64_t max_new_tokens = 0;  // 0: each task's own
  bool chat = true;
};

class NeedleSuite : public TaskSuite {
 public:
  /// haystack: the text. The model must outlive the suite. Errors: kInvalidArgument (an unknown task, a
  /// length that is too short for a task's sentences or too long for the model, naming the limit; an empty
  /// list); those of MakeChatFrame and Haystack::Create.
  static Result<std::unique_ptr<NeedleSuite>> Create(const LoadedModel& model, std::string_view haystack,
                                                     const NeedleOptions& options);

  struct Sample {
    const NeedleTask* task;
    int64_t length;
    int depth;  // percent
    int trial;
  };

  size_t size() const override { return samples_.size(); }
  std::string id(size_t i) const override;
  std::string task(size_t i) const override { return std::string(samples_[i].task->name); }
  double work(size_t i) const override;
  int64_t context_tokens() const override { return context_tokens_; }
  Result<TaskPrompt> Prompt(size_t i) const override;
  Result<nlohmann::json> Judge(size_t i, const std::string& answer) const override;

  const Sample& sample(size_t i) const { return samples_[i]; }
  const NeedleOptions& options() const { return options_; }  // with every task named
  int64_t haystack_tokens() const { return haystack_.size(); }

 private:
  NeedleSuite(const LoadedModel& model, Haystack haystack, ChatFrame frame)
      : model_(model), haystack_(std::move(haystack)), frame_(std::move(frame)) {}
  NeedleCase CaseOf(const Sample& sample) const;
  int64_t NewTokens(const NeedleTask& task) const;

  const LoadedModel& model_;
  Haystack haystack_;
  ChatFrame frame_;
  NeedleOptions options_;
  std::vector<Sample> samples_;
  int64_t context_tokens_ = 0;
};

}  // namespace blockgtq
