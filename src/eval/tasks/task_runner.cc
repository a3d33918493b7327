// See task_runner.h.
#include "src/eval/tasks/task_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "src/engine/generator.h"

namespace blockgtq {
namespace {

/// The score of a line, or a Status that names the sample.
Result<double> ScoreOf(const nlohmann::json& line) {
  const auto found = line.find("score");
  if (found != line.end() && found->is_number() && found->get<double>() >= 0 && found->get<double>() <= 1) {
    return found->get<double>();
  }
  return Status(ErrorCode::kCorruptFile, fmt::format("results file: sample '{}' has no score in 0..1; remove "
                                                     "its line to have it run again",
                                                     line["id"].get<std::string>()));
}

/// The samples that a results file has, at their places; the others are empty.
Result<std::vector<std::optional<TaskSample>>> Finished(const TaskSuite& suite, const ResultsFile& results) {
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < suite.size(); ++i) places.emplace(suite.id(i), i);
  std::vector<std::optional<TaskSample>> finished(suite.size());
  for (const nlohmann::json& line : results.samples()) {
    const std::string id = line["id"].get<std::string>();
    const auto place = places.find(id);
    if (place == places.end() || finished[place->second].has_value()) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("results file: sample '{}' {}; remove that line", id,
                                place == places.end() ? "is not one of this run" : "stands there twice"));
    }
    BGTQ_ASSIGN_OR_RETURN(const double score, ScoreOf(line));
    finished[place->second] = TaskSample{place->second, line, score};
  }
  return finished;
}

/// Runs sample i; nullopt when a stop was asked for.
Result<std::optional<nlohmann::json>> RunSample(Context& context, const TaskSuite& suite, size_t i,
                                                const TaskRunOptions& options,
                                                const std::function<void(double)>& on_progress) {
  BGTQ_ASSIGN_OR_RETURN(const TaskPrompt prompt, suite.Prompt(i));
  GenerateOptions generate;
  generate.max_new_tokens = prompt.max_new_tokens;
  generate.sampler = options.sampler;
  generate.sampler.seed = prompt.seed;
  generate.strict = options.strict;
  generate.stop = options.stop;
  const double all = static_cast<double>(prompt.tokens.size()) + static_cast<double>(prompt.max_new_tokens);
  double done = 0;
  generate.on_prompt = [&](int64_t tokens) { on_progress((done = static_cast<double>(tokens)) / all); };
  generate.on_piece = [&](std::string_view) { on_progress((done += 1) / all); };
  BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context.cache().AddSequence());
  std::vector<Token> history;
  const Result<GenerateResult> result = Generate(context, sequence, history, prompt.tokens, generate);
  context.cache().RemoveSequence(sequence);
  if (!result.ok()) return result.status().WithContext(suite.id(i));
  if (result->reason == StopReason::kCancelled) return std::optional<nlohmann::json>();
  if (result->reason == StopReason::kContextFull) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("{}: the cache of {} tokens is too small for {} prompt tokens and {} new ones",
                              suite.id(i), context.cache().options().max_tokens, prompt.tokens.size(),
                              prompt.max_new_tokens));
  }
  Utf8Stream utf8;
  std::string answer = utf8.Push(context.model().tokenizer().Decode(result->tokens));
  answer += utf8.Finish();
  BGTQ_ASSIGN_OR_RETURN(nlohmann::json line, suite.Judge(i, answer));
  line["id"] = suite.id(i);
  line["task"] = suite.task(i);
  line["answer"] = answer;
  line["prompt_tokens"] = prompt.tokens.size();
  line["new_tokens"] = result->tokens.size();
  line["finished"] = result->reason == StopReason::kEnd;  // false: cut at max_new_tokens
  return std::optional<nlohmann::json>(std::move(line));
}

}  // namespace

std::vector<TaskScores> TaskRun::ByTask(const TaskSuite& suite) const {
  std::vector<TaskScores> tasks;
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < suite.size(); ++i) {
    if (places.emplace(suite.task(i), tasks.size()).second) tasks.push_back({suite.task(i), {}});
  }
  for (const TaskSample& sample : samples) {
    tasks[places[suite.task(sample.index)]].scores.push_back(sample.score);
  }
  return tasks;
}

Result<TaskRun> RunTasks(Context& context, const TaskSuite& suite, ResultsFile& results,
                         const TaskRunOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(std::vector<std::optional<TaskSample>> finished, Finished(suite, results));
  TaskRun run;
  run.continued = results.samples().size();
  double all_work = 0, done_work = 0;
  for (size_t i = 0; i < suite.size(); ++i) {
    if (!finished[i].has_value()) all_work += suite.work(i);
  }
  size_t done = run.continued;
  for (size_t i = 0; i < suite.size() && !run.stopped; ++i) {
    if (finished[i].has_value()) continue;
    const auto report = [&](double share_of_sample) {
      if (!options.progress) return;
      options.progress((done_work + std::min(share_of_sample, 0.99) * suite.work(i)) / all_work,
                       fmt::format("{} of {} samples", done, suite.size()));
    };
    if (options.stop != nullptr && options.stop->load()) {
      run.stopped = true;
      break;
    }
    BGTQ_ASSIGN_OR_RETURN(std::optional<nlohmann::json> line, RunSample(context, suite, i, options, report));
    if (!line.has_value()) {
      run.stopped = true;
      break;
    }
    BGTQ_ASSIGN_OR_RETURN(const double score, ScoreOf(*line));
    BGTQ_RETURN_IF_ERROR(results.Append(*line));
    finished[i] = TaskSample{i, std::move(*line), score};
    done_work += suite.work(i);
    ++done;
    report(0);
  }
  for (std::optional<TaskSample>& sample : finished) {
    if (sample.has_value()) run.samples.push_back(std::move(*sample));
  }
  return run;
}

}  // namespace blockgtq
