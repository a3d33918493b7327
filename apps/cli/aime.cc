// blockgtq aime: competition problems with integer answers, several samples each; pass@1.
#include "src/eval/tasks/aime.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/command.h"
#include "apps/cli/task_options.h"

namespace blockgtq::cli {
namespace {

class AimeCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    flags_.Add(app);
    sampler_ = {.temperature = 0.6f, .top_k = 0, .top_p = 0.95f, .min_p = 0};
    app.add_option(
           "-f,--file", file_,
           "problems, a JSON object a line: {\"problem\": ..., \"answer\": 0..999} (no data is shipped)")
        ->required()
        ->check(NotEmpty());
    app.add_option("--samples", options_.samples, "samples a problem")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    app.add_option("-n,--predict", options_.max_new_tokens, "new tokens a sample, at most")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    app.add_option("--temp", sampler_.temperature, "temperature (0: greedy)")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    app.add_option("--top-k", sampler_.top_k, "sample among the k likeliest (0: off)")
        ->check(CLI::Range(0, 1 << 30))
        ->capture_default_str();
    app.add_option("--top-p", sampler_.top_p, "sample within this much probability (1: off)")
        ->check(CLI::Range(1e-6, 1.0))
        ->capture_default_str();
    app.add_option("-s,--seed", options_.seed, "seed of sampling and of the interval")->capture_default_str();
  }

  Status Run() override {
    BGTQ_ASSIGN_OR_RETURN(const std::string content, ReadFile(file_));
    BGTQ_ASSIGN_OR_RETURN(std::vector<AimeProblem> problems, ParseAime(content, file_));
    if (sampler_.temperature == 0 && options_.samples > 1) {
      return Status(ErrorCode::kInvalidArgument,
                    "--temp 0 gives the same answer every time: use --samples 1");
    }
    options_.chat = flags_.chat;
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, flags_.model.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<AimeSuite> suite,
                          AimeSuite::Create(*model, std::move(problems), options_));
    BGTQ_ASSIGN_OR_RETURN(const TaskRun run, flags_.Run(*model, *suite, sampler_,
                                                        {{"command", "aime"},
                                                         {"data", TextHash(content)},
                                                         {"samples_a_problem", options_.samples},
                                                         {"max_new_tokens", options_.max_new_tokens},
                                                         {"temperature", sampler_.temperature},
                                                         {"top_k", sampler_.top_k},
                                                         {"top_p", sampler_.top_p},
                                                         {"seed", options_.seed}}));
    return Print(*suite, run);
  }

 private:
  Status Print(const AimeSuite& suite, const TaskRun& run) const {
    const AimeScore score = ScoreAime(suite, run, options_.seed);
    const Estimate& e = score.pass_at_1;
    const auto share = [&](auto&& holds) {
      const auto count = std::count_if(run.samples.begin(), run.samples.end(), holds);
      return 100.0 * static_cast<double>(count) / static_cast<double>(run.samples.size());
    };
    const double answered = share([](const TaskSample& s) { return !s.line["given"].is_null(); });
    const double cut = share([](const TaskSample& s) { return !s.line["finished"].get<bool>(); });
    fmt::print("| task | pass@1 | 95% interval | problems | samples | answered | cut at -n |\n");
    fmt::print(
        "|---|---|---|---|---|---|---|\n| aime | {:.1f} | {:.1f} to {:.1f} | {} | {} | {:.1f}% | {:.1f}% |\n",
        100 * e.mean, 100 * e.low, 100 * e.high, score.problems, run.samples.size(), answered, cut);
    const nlohmann::json task = {{"score", 100 * e.mean},         {"ci_low", 100 * e.low},
                                 {"ci_high", 100 * e.high},       {"problems", score.problems},
                                 {"samples", run.samples.size()}, {"by_problem", score.by_problem},
                                 {"answered", answered},          {"cut", cut}};
    return flags_.Report(suite, run,
                         {{"tasks", {{"aime", task}}},
                          {"average", 100 * e.mean},
                          {"average_ci_low", 100 * e.low},
                          {"average_ci_high", 100 * e.high}});
  }

  TaskFlags flags_;
  AimeOptions options_;
  SamplerOptions sampler_;
  std::string file_;
};

}  // namespace

std::unique_ptr<Command> MakeAime() { return std::make_unique<AimeCommand>(); }

}  // namespace blockgtq::cli
