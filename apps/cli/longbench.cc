// blockgtq longbench: the eight English tasks of LongBench from a folder of its JSONL files.
#include "src/eval/tasks/longbench.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/cli/command.h"
#include "apps/cli/task_options.h"
#include "apps/cli/terminal.h"

namespace blockgtq::cli {
namespace {

constexpr const char* kWhere =
    "get LongBench's data.zip from huggingface.co/datasets/THUDM/LongBench, unpack it, and name the folder "
    "with "
    "its .jsonl files (--data)";
constexpr uint64_t kBootstrapSeed = 1;

class LongBenchCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    flags_.Add(app);
    app.add_option("--data", folder_, "folder with LongBench's JSONL files (2wikimqa.jsonl, ...)")
        ->required()
        ->check(NotEmpty())
        ->type_name("FOLDER");
    std::string tasks;
    for (const LongBenchTask& task : LongBenchTasks()) {
      tasks += fmt::format("{}{}", tasks.empty() ? "" : ", ", task.name);
    }
    app.add_option("--tasks", tasks_, "which, with commas: " + tasks + " (default: all)")->delimiter(',');
    app.add_option("--limit", limit_, "samples a task, the first of its file (default: all)")
        ->check(CLI::Range(1, 1 << 30));
    app.add_option(
           "--cap", options_.cap,
           fmt::format("tokens of a prompt; longer ones are cut in the middle (default: {}, or what the "
                       "model's context leaves)",
                       kLongBenchCap))
        ->check(CLI::Range(32, 1 << 28));
  }

  Status Run() override {
    std::vector<LongBenchData> data;
    nlohmann::json hashes = nlohmann::json::object();
    BGTQ_RETURN_IF_ERROR(ReadData(data, hashes));
    options_.chat = flags_.chat;
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, flags_.model.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LongBenchSuite> suite,
                          LongBenchSuite::Create(*model, std::move(data), options_));
    if (options_.cap == 0 && suite->cap() < kLongBenchCap) {
      Log(fmt::format("prompts are cut to {} tokens, since the model's context is {}", suite->cap(),
                      model->config().context_length));
    }
    BGTQ_ASSIGN_OR_RETURN(
        const TaskRun run,
        flags_.Run(*model, *suite, {.temperature = 0},
                   {{"command", "longbench"}, {"data", hashes}, {"limit", limit_}, {"cap", suite->cap()}}));
    const std::vector<TaskScores> scores = run.ByTask(*suite);
    fmt::print("{}", ScoreTable(scores, kBootstrapSeed));
    return flags_.Report(*suite, run, ScoreJson(scores, kBootstrapSeed));
  }

 private:
  Status ReadData(std::vector<LongBenchData>& data, nlohmann::json& hashes) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder_, ignored)) {
      return Status(ErrorCode::kNotFound, fmt::format("{}: is no folder; {}", folder_, kWhere));
    }
    if (tasks_.empty()) {
      for (const LongBenchTask& task : LongBenchTasks()) tasks_.emplace_back(task.name);
    }
    for (const std::string& name : tasks_) {
      const LongBenchTask* task = FindLongBenchTask(name);
      if (task == nullptr) {
        return Status(ErrorCode::kInvalidArgument,
                      fmt::format("no task '{}' here; longbench --help lists those there are", name));
      }
      if (hashes.contains(name)) {
        return Status(ErrorCode::kInvalidArgument, fmt::format("task '{}' stands twice in --tasks", name));
      }
      const std::string path = (std::filesystem::path(folder_) / (name + ".jsonl")).string();
      const Result<std::string> content = ReadFile(path);
      if (!content.ok()) {
        return Status(content.status().code(), fmt::format("{}; {}", content.status().message(), kWhere));
      }
      BGTQ_ASSIGN_OR_RETURN(std::vector<LongBenchSample> samples, ParseLongBench(*content, *task, path));
      if (limit_ > 0) samples.resize(std::min(samples.size(), static_cast<size_t>(limit_)));
      data.push_back({task, std::move(samples)});
      hashes[name] = TextHash(*content);
    }
    return Status::Ok();
  }

  TaskFlags flags_;
  LongBenchOptions options_;
  std::string folder_;
  std::vector<std::string> tasks_;
  int64_t limit_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeLongBench() { return std::make_unique<LongBenchCommand>(); }

}  // namespace blockgtq::cli
