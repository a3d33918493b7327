// Runs a suite of tasks, several samples a pass, into a results file.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "src/engine/context.h"
#include "src/engine/sampler.h"
#include "src/eval/tasks/results_file.h"
#include "src/eval/tasks/scores.h"
#include "src/eval/tasks/task_suite.h"

namespace blockgtq {

struct TaskRunOptions {
  SamplerOptions sampler;                   // its seed is replaced by each prompt's
  bool strict = false;                      // GenerateOptions::strict
  size_t parallel = 1;                      // samples that are answered in the same passes
  const std::atomic<bool>* stop = nullptr;  // set by a signal handler; may be null
  /// done: share of this run's work, 0..1; note: where it is. May be empty.
  std::function<void(double done, const std::string& note)> progress;
};

struct TaskSample {
  size_t index = 0;     // in the suite
  nlohmann::json line;  // as in the results file
  double score = 0;     // 0..1
};

struct TaskRun {
  std::vector<TaskSample> samples;  // finished, in the suite's order
  size_t continued = 0;             // of those, how many the results file had
  bool stopped = false;             // before the last sample

  /// Scores by task, tasks in the suite's order.
  std::vector<TaskScores> ByTask(const TaskSuite& suite) const;
};

/// Runs the samples that `results` lacks, each in a sequence of its own, and appends each as it finishes. The
/// cache holds `parallel` sequences of the suite's context_tokens. A sample under way when a stop is asked
/// for is lost, nothing else. Errors: kCorruptFile (a sample of the results file that the suite has not, or
/// without a score), those of the suite, Generate and ResultsFile::Append.
Result<TaskRun> RunTasks(Context& context, const TaskSuite& suite, ResultsFile& results,
                         const TaskRunOptions& options);

}  // namespace blockgtq
