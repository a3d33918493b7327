// blockgtq bench: prompt and decode speed at depth, as a markdown table.
#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"
#include "src/eval/speed.h"

namespace blockgtq::cli {
namespace {

class BenchCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "fast");
    cache_.Add(app);
    cache_.AddSeed(app);
    app.add_option("-c,--context", context_, "tokens of context (default: the model's)")
        ->check(CLI::Range(1, 1 << 30));
    app.add_option("-p,--prompt", options_.prompt, "prompt tokens (0: no prompt test)")
        ->check(CLI::Range(0, 1 << 24))
        ->capture_default_str();
    app.add_option("-n,--predict", options_.generate, "tokens decoded (0: no decode test)")
        ->check(CLI::Range(0, 1 << 24))
        ->capture_default_str();
    app.add_option("-d,--depth", options_.depths, "tokens already in the cache: one or more, 0,4096")
        ->delimiter(',')
        ->check(CLI::Range(0, 1 << 30));
    app.add_option("-B,--sequences", options_.sequences, "sequences decoded together, each at the depth")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    app.add_option(
           "--fill", options_.fill,
           "tokens of a depth that are run through the model; the rest repeats their pages, for depths "
           "that take long (default: all)")
        ->check(CLI::Range(64, 1 << 30));
    app.add_option("-r,--repetitions", options_.repetitions, "times each test is run")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    json_.Add(app);
  }

  Status Run() override {
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    std::sort(options_.depths.begin(), options_.depths.end());
    options_.context = model->config().context_length;
    if (context_ > options_.context) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("-c {}: the model's context is {} tokens", context_, options_.context));
    }
    if (context_ > 0) options_.context = context_;
    const int64_t deepest = options_.depths.empty() ? 0 : options_.depths.back();
    const int64_t tokens =
        std::min(options_.context,
                 std::max(deepest, int64_t{64}) + std::max({options_.prompt, options_.generate, int64_t{1}}));
    BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan, cache_.ObtainPlan(*model));
    if (cache_.choice.simulated != nullptr) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("recipe {} is simulated: its speed means nothing; choose a packed recipe, fp16 or "
                      "fp32",
                      cache_.choice.recipe));
    }
    // Every sequence fills whole pages.
    int64_t room = (tokens + kPageTokens - 1) / kPageTokens * kPageTokens * options_.sequences;
    // Repetitions of a model with windows begin with copies of one more sequence: its exact pages.
    if (model->config().window > 0) room += cache_.choice.recent + 2 * kPageTokens;
    BGTQ_ASSIGN_OR_RETURN(const CacheOptions cache, CacheOptionsFor(cache_.choice, room));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context,
                          Context::Create(*model, cache, plan.has_value() ? &*plan : nullptr));
    const std::vector<Token> text = model->tokenizer().Encode(BundledScoringText(), false);
    InstallStopHandler();
    options_.stop = &StopRequested();
    options_.progress = Log;
    BGTQ_ASSIGN_OR_RETURN(const std::vector<SpeedRow> rows, MeasureSpeed(*context, text, options_));

    const std::string name = cache_.Name();
    fmt::print("| cache | test | t/s | KV MiB |\n|---|---|---|---|\n");
    nlohmann::json json_rows = nlohmann::json::array();
    for (const SpeedRow& row : rows) {
      fmt::print("| {} | {}{}{} | {:.2f} ± {:.2f} | {:.1f} |\n", name, row.test,
                 row.depth > 0 ? fmt::format(" @ d{}", row.depth) : "",
                 row.sequences > 1 ? fmt::format(" x {}", row.sequences) : "", row.tokens_per_second, row.sd,
                 static_cast<double>(row.kv_bytes) / 1048576);
      json_rows.push_back({{"cache", name},
                           {"test", row.test},
                           {"depth", row.depth},
                           {"tokens", row.tokens},
                           {"sequences", row.sequences},
                           {"tokens_per_second", row.tokens_per_second},
                           {"median_tokens_per_second", row.median},
                           {"sd", row.sd},
                           {"kv_bytes", row.kv_bytes},
                           {"device_bytes", row.device_bytes}});
    }
    return json_.Write({{"rows", json_rows},
                        {"device", model->backend().Description()},
                        {"activations", model_.activations},
                        {"recipe", cache_.choice.recipe}});
  }

 private:
  ModelOptions model_;
  CacheFlags cache_;
  int64_t context_ = 0;
  SpeedOptions options_;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeBench() { return std::make_unique<BenchCommand>(); }

}  // namespace blockgtq::cli
