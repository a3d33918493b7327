// The eight English tasks of LongBench that are scored: prompt, answer length, metric.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

enum class LongBenchMetric { kQaF1, kRougeL, kClassification, kCode, kRetrieval };

struct LongBenchTask {
  std::string_view name;    // its file is NAME.jsonl
  std::string_view prompt;  // {context} and {input} stand for the sample's fields
  int max_new_tokens;
  bool chat;        // false: the prompt is continued as it is even by a chat model
  bool first_line;  // only the answer's first line counts
  LongBenchMetric metric;
};

std::span<const LongBenchTask> LongBenchTasks();
/// Null when there is none of that name.
const LongBenchTask* FindLongBenchTask(std::string_view name);

struct LongBenchSample {
  std::string input = {}, context = {};
  std::vector<std::string> answers = {}, classes = {};
};

/// The samples of a task's JSONL file. path: for messages. Errors: kCorruptFile naming line and field.
Result<std::vector<LongBenchSample>> ParseLongBench(std::string_view content, const LongBenchTask& task,
                                                    const std::string& path);

/// The prompt with the sample's fields put in.
std::string LongBenchPrompt(const LongBenchTask& task, const LongBenchSample& sample);

/// The best score over the sample's answers, 0..1.
double LongBenchScore(const LongBenchTask& task, const LongBenchSample& sample, std::string_view answer);

}  // namespace blockgtq
