// The LongBench suite: prompts of the benchmark's samples, cut in the middle where they are too long.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/eval/tasks/chat_frame.h"
#include "src/eval/tasks/longbench_tasks.h"
#include "src/eval/tasks/task_suite.h"

namespace blockgtq {

/// The first and the last cap / 2 of `tokens` where there are more than `cap` (LongBench's rule), else all.
std::vector<Token> CutMiddle(std::vector<Token> tokens, int64_t cap);

struct LongBenchData {
  const LongBenchTask* task = nullptr;
  std::vector<LongBenchSample> samples;
};

inline constexpr int64_t kLongBenchCap = 31500;  // the paper's

struct LongBenchOptions {
  int64_t cap =
      0;  // tokens of a prompt before the chat template; 0: kLongBenchCap, or what the model can hold
  bool chat = true;
};

class LongBenchSuite : public TaskSuite {
 public:
  /// The model must outlive the suite. Errors: kInvalidArgument when a prompt of `cap` tokens with its answer
  /// does not fit the model's context (naming the largest cap); those of MakeChatFrame.
  static Result<std::unique_ptr<LongBenchSuite>> Create(const LoadedModel& model,
                                                        std::vector<LongBenchData> data,
                                                        const LongBenchOptions& options);

  size_t size() const override { return places_.size(); }
  std::string id(size_t i) const override;
  std::string task(size_t i) const override { return std::string(TaskOf(i).name); }
  double work(size_t i) const override;
  int64_t context_tokens() const override { return context_tokens_; }
  Result<TaskPrompt> Prompt(size_t i) const override;
  Result<nlohmann::json> Judge(size_t i, const std::string& answer) const override;

  int64_t cap() const { return cap_; }

 private:
  struct Place {
    size_t data, sample;
  };
  LongBenchSuite(const LoadedModel& model, std::vector<LongBenchData> data)
      : model_(model), data_(std::move(data)) {}
  const LongBenchTask& TaskOf(size_t i) const { return *data_[places_[i].data].task; }
  const LongBenchSample& SampleOf(size_t i) const {
    return data_[places_[i].data].samples[places_[i].sample];
  }

  const LoadedModel& model_;
  std::vector<LongBenchData> data_;
  std::vector<Place> places_;
  ChatFrame chat_, plain_;
  int64_t cap_ = 0, context_tokens_ = 0;
};

}  // namespace blockgtq
