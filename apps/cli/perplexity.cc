// blockgtq perplexity: perplexity of a text under the chosen cache; with --kld, its distance from an fp16
// cache.
#include "src/eval/perplexity.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/engine/bundled_text.h"

namespace blockgtq::cli {
namespace {

class PerplexityCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "float");
    cache_.Add(app);
    app.add_option("-f,--file", file_, "text (default: the bundled start of WikiText-2 test)")
        ->check(NotEmpty());
    app.add_option("-c,--context", options_.window, "tokens a window")
        ->check(CLI::Range(4, 1 << 30))
        ->capture_default_str();
    app.add_option("--chunks", options_.chunks, "windows scored (default: all that the text has)")
        ->check(CLI::Range(1, 1 << 30));
    app.add_option("--score", score_, "positions scored in each window: half (the second) or all")
        ->check(CLI::IsMember({"half", "all"}))
        ->capture_default_str();
    app.add_flag("--kld", kld_, "compare with the logits of an fp16 cache, same run");
    app.add_flag("--strict", options_.strict, "score every position as if it had been decoded");
    cache_.AddSeed(app);
    json_.Add(app);
  }

  Status Run() override {
    std::string text;
    if (!file_.empty()) {
      BGTQ_ASSIGN_OR_RETURN(text, ReadFile(file_));
    } else {
      text = BundledScoringText();
    }
    options_.score_all = score_ == "all";
    options_.threads = model_.backend.threads;
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan, cache_.ObtainPlan(*model));
    BGTQ_ASSIGN_OR_RETURN(const CacheOptions cache, CacheOptionsFor(cache_.choice, options_.window));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> test,
                          Context::Create(*model, cache, plan.has_value() ? &*plan : nullptr));
    std::unique_ptr<Context> base;
    if (kld_) {
      CacheOptions half;
      half.kind = CacheKind::kHalf;
      half.max_tokens = options_.window;
      BGTQ_ASSIGN_OR_RETURN(base, Context::Create(*model, half, nullptr));
    }
    const Tokenizer& tokenizer = model->tokenizer();
    if (tokenizer.add_bos()) options_.bos = tokenizer.bos();
    const std::vector<Token> tokens = tokenizer.Encode(text, false);
    InstallStopHandler();
    options_.stop = &StopRequested();
    // The list of windows is progress enough where it is seen.
    Progress progress("scoring");
    const bool list_is_seen = isatty(STDOUT_FILENO) != 0 || isatty(STDERR_FILENO) == 0;
    options_.progress = [&](int64_t done, int64_t total, double ppl, double kld) {
      fmt::print("[{}]{:.4f},", done, ppl);
      std::fflush(stdout);
      if (!list_is_seen)
        progress.Update(static_cast<double>(done) / static_cast<double>(total),
                        kld_ ? fmt::format("KLD {:.5f}", kld) : std::string());
    };
    Result<PerplexityResult> result = Perplexity(*test, base.get(), tokens, options_);
    if (!result.ok()) return result.status();
    fmt::print("\n");
    if (result->stopped) Log(fmt::format("stopped after {} windows", result->windows));
    return Report(*model, plan, cache.kind, *result);
  }

 private:
  Status Report(const LoadedModel& model, const std::optional<Plan>& plan, CacheKind kind,
                const PerplexityResult& r) {
    const SimulatedHeads* simulated = cache_.choice.simulated.get();
    const double bytes = simulated != nullptr ? simulated->bytes_per_token_per_head()
                                              : BytesPerTokenPerHead(model, plan, kind);
    const char* mode = options_.strict ? "strict" : "production";
    const bool coded = kind == CacheKind::kPacked || kind == CacheKind::kSimulated;
    const std::string cache_name =
        coded ? fmt::format("{} {}, {:.1f} stored bytes a token a head, {} sinks, {} recent{}",
                            cache_.choice.recipe, BitsName(cache_.choice.k_bits, cache_.choice.v_bits), bytes,
                            cache_.choice.sinks, cache_.choice.recent,
                            simulated != nullptr ? ", simulated: no packed kernel" : "")
              : fmt::format("{}, {:.0f} bytes a token a head", cache_.choice.recipe, bytes);
    fmt::print("cache: {}; mode: {}; {} positions of {} windows of {}\n", cache_name, mode, r.tokens,
               r.windows, options_.window);
    fmt::print("Final estimate: PPL = {:.4f} +/- {:.5f}\n", r.ppl, r.ppl_se);
    nlohmann::json json = {{"ppl", r.ppl},
                           {"ppl_se", r.ppl_se},
                           {"ppl_per_window", r.window_ppl},
                           {"tokens", r.tokens},
                           {"windows", r.windows},
                           {"stopped", r.stopped},
                           {"mode", mode},
                           {"score", score_},
                           {"activations", model_.activations},
                           {"recipe", cache_.choice.recipe},
                           {"bytes_per_token_per_head", bytes}};
    if (coded) {
      json["k_bits"] = cache_.choice.k_bits;
      json["v_bits"] = cache_.choice.v_bits;
      json["sinks"] = cache_.choice.sinks;
      json["recent"] = cache_.choice.recent;
      json["plan_seed"] = plan.has_value() ? plan->seed : cache_.choice.plan_seed;
      json["simulated"] = simulated != nullptr;
      if (cache_.choice.memory_tokens > 0) {
        json["memory_tokens"] = cache_.choice.memory_tokens;
        json["bytes_by_length"] = simulated->BytesByLength();
      }
    }
    if (kld_) {
      fmt::print("fp16 cache:     PPL = {:.4f}\n", r.base_ppl);
      fmt::print("Mean    KLD: {:10.6f} +/- {:.6f}\nMedian  KLD: {:10.6f}\n99.0%   KLD: {:10.6f}\n",
                 r.kld_mean, r.kld_se, r.kld_median, r.kld_p99);
      fmt::print("Same top token: {:.2f}%\nTop-10 overlap: {:.2f}%\n", 100 * r.top1, 100 * r.top10_overlap);
      json.update({{"ppl_fp16", r.base_ppl},
                   {"kld_mean", r.kld_mean},
                   {"kld_se", r.kld_se},
                   {"kld_median", r.kld_median},
                   {"kld_p99", r.kld_p99},
                   {"top1", r.top1},
                   {"top10_overlap", r.top10_overlap}});
    }
    return json_.Write(json);
  }

  ModelOptions model_;
  CacheFlags cache_;
  PerplexityOptions options_;
  std::string file_, score_ = "half";
  bool kld_ = false;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakePerplexity() { return std::make_unique<PerplexityCommand>(); }

}  // namespace blockgtq::cli
