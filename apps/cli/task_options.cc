// See task_options.h.
#include "apps/cli/task_options.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "apps/cli/terminal.h"

namespace blockgtq::cli {

std::string TextHash(std::string_view text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

void TaskFlags::Add(CLI::App& app) {
  model.Add(app, "fast");
  cache.Add(app);
  app.add_flag("--chat,!--no-chat", chat,
               "put prompts in the model's chat template (the default); --no-chat: as they are");
  app.add_flag("--strict", strict, "prompts attend to codes too, as if every token of them had been decoded");
  app.add_option("--np,--parallel", parallel,
                 "samples that are answered in the same passes (0: 4, on a GPU 16)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("-o,--results", results,
                 "file that keeps every finished sample; a run that was stopped or killed continues from it")
      ->check(NotEmpty());
  json.Add(app);
}

bool TaskFlags::Coded() const {
  const Result<const Recipe*> recipe = FindRecipe(cache.choice.recipe);
  return recipe.ok() && ((*recipe)->kind == CacheKind::kPacked || (*recipe)->kind == CacheKind::kSimulated);
}

std::string TaskFlags::CacheName() const {
  if (!Coded()) return cache.Name();
  return fmt::format("{}, {} sinks, {} recent{}", cache.Name(), cache.choice.sinks, cache.choice.recent,
                     cache.choice.simulated != nullptr ? ", simulated" : "");
}

Result<TaskRun> TaskFlags::Run(LoadedModel& opened, const TaskSuite& suite, const SamplerOptions& sampler,
                               nlohmann::json settings) {
  BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan, cache.ObtainPlan(opened));
  if (parallel == 0) parallel = opened.backend().name() == "cpu" ? 4 : 16;
  parallel =
      static_cast<int>(std::min<size_t>(static_cast<size_t>(parallel), std::max<size_t>(suite.size(), 1)));
  const int64_t tokens = (suite.context_tokens() + kPageTokens - 1) / kPageTokens * kPageTokens;
  BGTQ_ASSIGN_OR_RETURN(const CacheOptions options, CacheOptionsFor(cache.choice, parallel * tokens));
  bytes_per_token_per_head_ = cache.choice.simulated != nullptr
                                  ? cache.choice.simulated->bytes_per_token_per_head()
                                  : BytesPerTokenPerHead(opened, plan, options.kind);
  settings.update({{"model", opened.fingerprint().Text()},
                   {"device", opened.backend().name()},
                   {"activations", model.activations},
                   {"chat", chat},
                   {"mode", strict ? "strict" : "production"},
                   {"recipe", cache.choice.recipe}});
  if (Coded()) {
    settings.update({{"k_bits", cache.choice.k_bits},
                     {"v_bits", cache.choice.v_bits},
                     {"sinks", cache.choice.sinks},
                     {"recent", cache.choice.recent},
                     {"plan_seed", plan.has_value() ? plan->seed : cache.choice.plan_seed}});
  }
  if (cache.choice.memory_tokens > 0) settings["memory_tokens"] = cache.choice.memory_tokens;
  if (plan.has_value()) settings["plan"] = plan->Hash();
  settings_ = settings;

  if (results.empty()) {
    ResultsFile memory = ResultsFile::InMemory();
    return RunInto(opened, suite, sampler, plan, options, memory);
  }
  BGTQ_RETURN_IF_ERROR(CheckOutput(results));
  BGTQ_ASSIGN_OR_RETURN(ResultsFile file, ResultsFile::Open(results, settings));
  if (file.dropped_bytes() > 0) {
    Log(fmt::format("{}: its last line was cut off by a kill and is dropped", results));
  }
  if (!file.samples().empty()) {
    Log(fmt::format("{}: continuing after {} of {} samples", results, file.samples().size(), suite.size()));
  }
  return RunInto(opened, suite, sampler, plan, options, file);
}

Result<TaskRun> TaskFlags::RunInto(LoadedModel& opened, const TaskSuite& suite, const SamplerOptions& sampler,
                                   const std::optional<Plan>& plan, const CacheOptions& options,
                                   ResultsFile& file) const {
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context,
                        Context::Create(opened, options, plan.has_value() ? &*plan : nullptr));
  InstallStopHandler();
  Progress progress("samples");
  TaskRunOptions run_options;
  run_options.sampler = sampler;
  run_options.strict = strict;
  run_options.parallel = static_cast<size_t>(parallel);
  run_options.stop = &StopRequested();
  run_options.progress = [&](double done, const std::string& note) { progress.Update(done, note); };
  BGTQ_ASSIGN_OR_RETURN(TaskRun run, RunTasks(*context, suite, file, run_options));
  if (run.samples.empty()) return Status(ErrorCode::kCancelled, "stopped before the first sample was done");
  if (run.stopped) {
    Log(fmt::format("stopped after {} of {} samples{}", run.samples.size(), suite.size(),
                    results.empty() ? "" : "; run the same command to continue"));
  }
  return run;
}

Status TaskFlags::Report(const TaskSuite& suite, const TaskRun& run, nlohmann::json scores) const {
  scores.update(settings_);
  scores.update({{"samples", run.samples.size()},
                 {"samples_total", suite.size()},
                 {"stopped", run.stopped},
                 {"simulated", cache.choice.simulated != nullptr},
                 {"bytes_per_token_per_head", bytes_per_token_per_head_}});
  return json.Write(scores);
}

}  // namespace blockgtq::cli
