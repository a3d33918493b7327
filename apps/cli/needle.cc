// blockgtq needle: facts hidden in a long text and asked for, over a grid of lengths and depths.
#include "src/eval/tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/cli/command.h"
#include "apps/cli/task_options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/eval/tasks/needle_report.h"

namespace blockgtq::cli {
namespace {

class NeedleCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    flags_.Add(app);
    options_.lengths = {1024, 4096};
    options_.depths = {0, 25, 50, 75, 100};
    std::string tasks;
    for (const NeedleTask& task : NeedleTasks())
      tasks += fmt::format("{}{}", tasks.empty() ? "" : ", ", task.name);
    app.add_option("--tasks", options_.tasks, "which, with commas: " + tasks + " (default: all)")
        ->delimiter(',');
    app.add_option("--lengths", options_.lengths, "tokens of the prompts, with commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 28))
        ->capture_default_str();
    app.add_option("--depths", options_.depths, "where the needle is, percent of the text, with commas")
        ->delimiter(',')
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    app.add_option("--trials", options_.trials, "samples a task, length and depth")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    app.add_option("-n,--predict", options_.max_new_tokens,
                   "new tokens a sample, at most (default: the task's)")
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("-f,--haystack", file_,
                   "text that needles are hidden in (default: the bundled start of Northanger Abbey)")
        ->check(NotEmpty());
    app.add_option("-s,--seed", options_.seed, "seed of needles and of where the text begins")
        ->capture_default_str();
    app.add_option("--plot", plot_, "heat maps of the scores, as an SVG file")->check(NotEmpty());
  }

  Status Run() override {
    std::string own;
    std::string_view text = BundledHaystackText();
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(own, ReadFile(file_));
      text = own;
    }
    options_.chat = flags_.chat;
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, flags_.model.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<NeedleSuite> suite,
                          NeedleSuite::Create(*model, text, options_));
    const NeedleOptions& used = suite->options();
    const int64_t longest = *std::max_element(used.lengths.begin(), used.lengths.end());
    if (longest > suite->haystack_tokens()) {
      Log(fmt::format("haystack: {} tokens, repeated where a prompt is longer (-f names a longer text)",
                      suite->haystack_tokens()));
    }
    BGTQ_ASSIGN_OR_RETURN(const TaskRun run, flags_.Run(*model, *suite, {.temperature = 0},
                                                        {{"command", "needle"},
                                                         {"tasks_run", used.tasks},
                                                         {"lengths", used.lengths},
                                                         {"depths", used.depths},
                                                         {"trials", used.trials},
                                                         {"seed", used.seed},
                                                         {"max_new_tokens", used.max_new_tokens},
                                                         {"haystack", TextHash(text)}}));
    fmt::print("{}", NeedleTable(*suite, run, used.seed));
    if (!plot_.empty()) {
      const std::string what =
          fmt::format("{}, {}", std::filesystem::path(model->path()).filename().string(), flags_.CacheName());
      BGTQ_RETURN_IF_ERROR(WriteFile(plot_, NeedlePicture(*suite, run, what)));
    }
    return flags_.Report(*suite, run, NeedleJson(*suite, run, used.seed));
  }

 private:
  TaskFlags flags_;
  NeedleOptions options_;
  std::string file_, plot_;
};

}  // namespace

std::unique_ptr<Command> MakeNeedle() { return std::make_unique<NeedleCommand>(); }

}  // namespace blockgtq::cli
