// See task_runner.h.
#include "src/eval/tasks/task_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
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

/// A sample under way. Does not move: its generation points to its history.
struct Running {
  Running(size_t index, TaskPrompt prompt, SequenceId sequence, GenerateOptions options)
      : index(index), prompt(std::move(prompt)), generation(sequence, history, std::move(options)) {}
  size_t index;
  TaskPrompt prompt;
  std::vector<Token> history;
  RunningText generation;
  double done = 0;  // tokens
  double share() const {
    return done / (static_cast<double>(prompt.tokens.size()) + static_cast<double>(prompt.max_new_tokens));
  }
};

class Runner {
 public:
  Runner(Context& context, const TaskSuite& suite, ResultsFile& results, const TaskRunOptions& options)
      : context_(context), suite_(suite), results_(results), options_(options) {}
  ~Runner() {
    for (const auto& sample : running_) context_.cache().RemoveSequence(sample->generation.sequence());
  }

  Result<TaskRun> Run() {
    BGTQ_ASSIGN_OR_RETURN(finished_, Finished(suite_, results_));
    done_ = results_.samples().size();
    for (size_t i = 0; i < suite_.size(); ++i) {
      if (!finished_[i].has_value()) all_work_ += suite_.work(i);
    }
    TaskRun run;
    run.continued = done_;
    size_t next = 0;
    while (true) {
      while (next < suite_.size() && finished_[next].has_value()) ++next;
      const bool more = next < suite_.size();
      if (!more && running_.empty()) break;
      if (options_.stop != nullptr && options_.stop->load()) {
        run.stopped = true;
        break;
      }
      if (more && running_.size() < options_.parallel) {
        BGTQ_RETURN_IF_ERROR(Begin(next++));
      } else {
        std::vector<RunningText*> all;
        for (const auto& sample : running_) all.push_back(&sample->generation);
        BGTQ_RETURN_IF_ERROR(GenerateStep(context_, all));
      }
      BGTQ_RETURN_IF_ERROR(TakeFinished());
    }
    for (std::optional<TaskSample>& sample : finished_) {
      if (sample.has_value()) run.samples.push_back(std::move(*sample));
    }
    return run;
  }

 private:
  Status Begin(size_t i) {
    BGTQ_ASSIGN_OR_RETURN(TaskPrompt prompt, suite_.Prompt(i));
    BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context_.cache().AddSequence());
    GenerateOptions generate;
    generate.max_new_tokens = prompt.max_new_tokens;
    generate.sampler = options_.sampler;
    generate.sampler.seed = prompt.seed;
    generate.strict = options_.strict;
    generate.stop = options_.stop;
    generate.on_prompt = [this](int64_t tokens) {
      running_.back()->done = static_cast<double>(tokens);
      Report();
    };
    running_.push_back(std::make_unique<Running>(i, std::move(prompt), sequence, std::move(generate)));
    Running& sample = *running_.back();
    return GenerateBegin(context_, sample.generation, sample.prompt.tokens).WithContext(suite_.id(i));
  }

  /// Judges and appends the samples that have ended, in the suite's order. One that was cancelled just goes.
  Status TakeFinished() {
    for (auto at = running_.begin(); at != running_.end();) {
      Running& sample = **at;
      const GenerateResult& result = sample.generation.result();
      sample.done = static_cast<double>(result.prompt_tokens) + static_cast<double>(result.tokens.size());
      if (sample.generation.running()) {
        ++at;
        continue;
      }
      if (result.reason != StopReason::kCancelled) BGTQ_RETURN_IF_ERROR(Keep(sample));
      context_.cache().RemoveSequence(sample.generation.sequence());
      at = running_.erase(at);
    }
    Report();
    return Status::Ok();
  }

  Status Keep(const Running& sample) {
    const size_t i = sample.index;
    const GenerateResult& result = sample.generation.result();
    if (result.reason == StopReason::kContextFull) {
      return Status(ErrorCode::kOutOfMemory,
                    fmt::format("{}: the cache of {} tokens is too small for {} samples at a time with {} "
                                "prompt tokens and {} new ones",
                                suite_.id(i), context_.cache().options().max_tokens, options_.parallel,
                                sample.prompt.tokens.size(), sample.prompt.max_new_tokens));
    }
    Utf8Stream utf8;
    std::string answer = utf8.Push(context_.model().tokenizer().Decode(result.tokens));
    answer += utf8.Finish();
    BGTQ_ASSIGN_OR_RETURN(nlohmann::json line, suite_.Judge(i, answer));
    line["id"] = suite_.id(i);
    line["task"] = suite_.task(i);
    line["answer"] = answer;
    line["prompt_tokens"] = sample.prompt.tokens.size();
    line["new_tokens"] = result.tokens.size();
    line["finished"] = result.reason == StopReason::kEnd;  // false: cut at max_new_tokens
    BGTQ_ASSIGN_OR_RETURN(const double score, ScoreOf(line));
    BGTQ_RETURN_IF_ERROR(results_.Append(line));
    finished_[i] = TaskSample{i, std::move(line), score};
    done_work_ += suite_.work(i);
    ++done_;
    return Status::Ok();
  }

  void Report() const {
    if (!options_.progress) return;
    double work = done_work_;
    for (const auto& sample : running_) work += std::min(sample->share(), 0.99) * suite_.work(sample->index);
    options_.progress(work / all_work_, fmt::format("{} of {} samples", done_, suite_.size()));
  }

  Context& context_;
  const TaskSuite& suite_;
  ResultsFile& results_;
  const TaskRunOptions& options_;
  std::vector<std::optional<TaskSample>> finished_;
  std::vector<std::unique_ptr<Running>> running_;  // in the suite's order
  double all_work_ = 0, done_work_ = 0;
  size_t done_ = 0;
};

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
  if (options.parallel < 1) return Status(ErrorCode::kInvalidArgument, "0 samples at a time: at least 1");
  return Runner(context, suite, results, options).Run();
}

}  // namespace blockgtq
