// What the task suites (needle, longbench, aime) share: their options, the run into a results file, the
// report.
#pragma once

#include <string>

#include "apps/cli/options.h"
#include "src/eval/tasks/task_runner.h"

namespace blockgtq::cli {

struct TaskFlags {
  ModelOptions model;
  CacheFlags cache;
  bool chat = true;
  bool strict = false;
  int parallel = 0;     // samples a pass; 0: what suits the device
  std::string results;  // of -o; empty: not kept
  JsonOption json;

  void Add(CLI::App& app);

  /// Obtains the plan, opens or continues the results file and runs what it lacks; Ctrl-C ends the run early.
  /// settings: the command's own, an object; the model's and the cache's are added. Errors: those of
  /// CacheFlags::ObtainPlan, ResultsFile::Open, Context::Create and RunTasks; kCancelled when stopped before
  /// the first sample.
  Result<TaskRun> Run(LoadedModel& opened, const TaskSuite& suite, const SamplerOptions& sampler,
                      nlohmann::json settings);

  /// "aligned K3V3, 4 sinks, 64 recent": after Run.
  std::string CacheName() const;
  /// Writes --json: `scores` with what was run added.
  Status Report(const TaskSuite& suite, const TaskRun& run, nlohmann::json scores) const;

 private:
  bool Coded() const;
  Result<TaskRun> RunInto(LoadedModel& opened, const TaskSuite& suite, const SamplerOptions& sampler,
                          const std::optional<Plan>& plan, const CacheOptions& options,
                          ResultsFile& file) const;
  nlohmann::json settings_;  // of the run
  double bytes_per_token_per_head_ = 0;
};

/// xxh3-64 of a text, hex: names the data of a run in its settings.
std::string TextHash(std::string_view text);

}  // namespace blockgtq::cli
