// blockgtq generate: continues a prompt, or answers a chat message, from the chosen cache.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "apps/cli/command.h"
#include "apps/cli/options.h"
#include "apps/cli/terminal.h"
#include "src/cache/session.h"
#include "src/engine/generator.h"

namespace blockgtq::cli {
namespace {

class GenerateCommand : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    model_.Add(app, "fast");
    cache_.Add(app);
    text_.Add(app, "prompt");
    app.add_option("-n,--predict", options_.max_new_tokens, "new tokens, at most")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    app.add_option("-c,--context", context_, "tokens of context (default: what prompt and -n need)");
    app.add_option("-b,--batch", options_.batch,
                   "prompt tokens a forward pass (default: the device's choice)")
        ->check(CLI::Range(1, 1 << 16));
    CLI::Option* chat = app.add_flag("--chat,!--no-chat", chat_,
                                     "answer the prompt as a chat message, with the model's template");
    app.add_option("--system", system_, "system message (with --chat)")->needs(chat);
    app.add_option("--session", session_,
                   "file that keeps the cache: loaded first when it is there (the prompt then continues it), "
                   "saved after")
        ->check(NotEmpty());
    SamplerOptions& s = options_.sampler;
    app.add_option("--temp", s.temperature, "temperature (0: greedy)")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    app.add_option("--top-k", s.top_k, "sample among the k likeliest (0: off)")
        ->check(CLI::Range(0, 1 << 30))
        ->capture_default_str();
    app.add_option("--top-p", s.top_p, "sample within this much probability (1: off)")
        ->check(CLI::Range(1e-6, 1.0))
        ->capture_default_str();
    app.add_option("--min-p", s.min_p, "drop tokens below this share of the likeliest (0: off)")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_option("--repeat-penalty", s.repeat_penalty, "make recent tokens less likely (1: off)")
        ->check(CLI::Range(1e-6, 1e6))
        ->capture_default_str();
    app.add_option("--repeat-last-n", s.repeat_last_n, "tokens the penalty looks at")
        ->check(CLI::Range(0, 1 << 30))
        ->capture_default_str();
    app.add_option("-s,--seed", s.seed, "seed of the sampler")->capture_default_str();
    app.add_flag("--ignore-eos", options_.ignore_end, "go on past the end token");
    moments_.Add(app);
    json_.Add(app);
  }

  Status Run() override {
    BGTQ_RETURN_IF_ERROR(FindSession());
    BGTQ_ASSIGN_OR_RETURN(const std::string text, text_.Read());
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, model_.Open());
    BGTQ_ASSIGN_OR_RETURN(const std::vector<Token> prompt, PromptTokens(*model, text));
    BGTQ_ASSIGN_OR_RETURN(const int64_t tokens, ContextTokens(*model, static_cast<int64_t>(prompt.size())));
    BGTQ_ASSIGN_OR_RETURN(const std::optional<Plan> plan, cache_.ObtainPlan(*model));
    if (cache_.choice.simulated != nullptr && !session_.empty()) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("--session: recipe {} is simulated and has no sessions; choose a packed recipe",
                      cache_.choice.recipe));
    }
    BGTQ_ASSIGN_OR_RETURN(const CacheOptions cache, CacheOptionsFor(cache_.choice, tokens));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<MomentsWatch> watch, moments_.Open(*model, cache_, plan));
    BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context,
                          Context::Create(*model, cache, plan.has_value() ? &*plan : nullptr));
    context->Watch(watch.get());
    std::vector<Token> history;
    BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, OpenSequence(*context, history));

    InstallStopHandler();
    Utf8Stream stream;
    std::string answer;
    Progress progress("prompt");
    options_.stop = &StopRequested();
    options_.context_tokens = tokens;
    options_.on_prompt = [&](int64_t done) {
      if (static_cast<int64_t>(prompt.size()) > Context::kScoringBatch) {
        progress.Update(static_cast<double>(done) / static_cast<double>(prompt.size()));
      }
    };
    options_.on_piece = [&](std::string_view piece) { Print(stream.Push(piece), answer); };
    BGTQ_ASSIGN_OR_RETURN(const GenerateResult result,
                          Generate(*context, sequence, history, prompt, options_));
    Print(stream.Finish() + "\n", answer);
    answer.pop_back();
    if (result.reason == StopReason::kContextFull) {
      Log(fmt::format("stopped: the context of {} tokens is full (-c; the model has {})", cache.max_tokens,
                      model->config().context_length));
    }
    if (result.reason == StopReason::kCancelled) Log("stopped");
    // Each is done whatever becomes of the others.
    const Status done[] = {Report(*context, sequence, answer, result),
                           KeepSession(*context, sequence, history, result), moments_.Finish(watch.get())};
    for (const Status& status : done) BGTQ_RETURN_IF_ERROR(status);
    return Status::Ok();
  }

 private:
  Status KeepSession(Context& context, SequenceId sequence, std::vector<Token>& history,
                     const GenerateResult& result) const {
    if (session_.empty()) return Status::Ok();
    if (result.reason == StopReason::kCancelled && result.tokens.empty()) {
      Log(session_ + ": not saved, since the prompt was not finished");
      return Status::Ok();
    }
    BGTQ_RETURN_IF_ERROR(StorePending(context, sequence, history));
    return SaveSession(context.cache(), sequence, history, session_);
  }

  static void Print(const std::string& text, std::string& answer) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    answer += text;
  }

  /// Whether the session is there to be continued; asked once, before anything is written.
  Status FindSession() {
    if (session_.empty()) return Status::Ok();
    std::error_code error;
    continues_ = std::filesystem::exists(session_, error);
    if (error) return Status(ErrorCode::kIo, fmt::format("{}: {}", session_, error.message()));
    return Status::Ok();
  }

  Result<std::vector<Token>> PromptTokens(const LoadedModel& model, const std::string& text) const {
    std::string rendered = text;
    std::vector<Token> tokens;
    if (chat_) {
      BGTQ_ASSIGN_OR_RETURN(const RecognizedTemplate chat, model.chat_template());
      BGTQ_ASSIGN_OR_RETURN(rendered, RenderTurn(chat, text));
      tokens = model.PromptStart(&chat);
    } else {
      tokens = model.PromptStart(nullptr);
    }
    if (continues_) tokens.clear();
    const std::vector<Token> ids = model.tokenizer().Encode(rendered, chat_);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    return tokens;
  }

  Result<std::string> RenderTurn(const RecognizedTemplate& chat, const std::string& text) const {
    if (continues_) {
      if (system_.empty()) return RenderNextTurn(chat, text);
      return Status(ErrorCode::kInvalidArgument,
                    "--system: " + session_ + " already holds the start of the chat");
    }
    std::vector<ChatMessage> messages;
    if (!system_.empty()) messages.push_back({"system", system_});
    messages.push_back({"user", text});
    return RenderChat(chat, messages);
  }

  Result<int64_t> ContextTokens(const LoadedModel& model, int64_t prompt) const {
    const int64_t limit = model.config().context_length;
    if (context_ > limit || context_ < 0) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("-c {}: the model's context is 1..{} tokens", context_, limit));
    }
    if (context_ > 0 && prompt > context_) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("the prompt has {} tokens, -c {} is too small for it", prompt, context_));
    }
    if (prompt > limit) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("the prompt has {} tokens, the model's context is {}", prompt, limit));
    }
    if (context_ > 0) return context_;
    return session_.empty() ? std::min(limit, prompt + options_.max_new_tokens) : limit;
  }

  Result<SequenceId> OpenSequence(Context& context, std::vector<Token>& history) const {
    if (!continues_) return context.cache().AddSequence();
    BGTQ_ASSIGN_OR_RETURN(LoadedSession loaded, LoadSession(context.cache(), session_));
    Log(fmt::format("session: {} tokens from {}", loaded.tokens.size(), session_));
    history = std::move(loaded.tokens);
    return loaded.sequence;
  }

  Status Report(Context& context, SequenceId sequence, const std::string& answer,
                const GenerateResult& r) const {
    const KvCache& cache = context.cache();
    const int64_t length = cache.state(sequence).length;
    const int64_t bytes = cache.SequenceBytes(sequence), half = cache.HalfBytes(length);
    const auto line = [](const char* what, double ms, int64_t count, const char* unit) {
      if (count == 0) return;
      const double n = static_cast<double>(std::max<int64_t>(count, 1));
      Log(fmt::format("{:>18} = {:10.2f} ms / {:5} {} ({:8.2f} ms per token, {:8.2f} tokens per second)",
                      what, ms, count, unit, ms / n, 1000.0 * n / std::max(ms, 1e-9)));
    };
    line("prompt eval time", r.prompt_ms, r.prompt_tokens, "tokens");
    line("eval time", r.decode_ms, r.decoded, "runs  ");
    Log(fmt::format("{:>18} = {:10.2f} MiB for {} tokens ({}; fp16: {:.2f} MiB, {:.2f}x)", "kv cache",
                    static_cast<double>(bytes) / 1048576, length, cache_.Name(),
                    static_cast<double>(half) / 1048576,
                    static_cast<double>(half) / static_cast<double>(std::max<int64_t>(bytes, 1))));
    static constexpr const char* kReasons[] = {"end", "limit", "context_full", "cancelled"};
    return json_.Write({{"text", answer},
                        {"prompt_tokens", r.prompt_tokens},
                        {"new_tokens", r.tokens.size()},
                        {"decoded", r.decoded},
                        {"tokens", r.tokens},
                        {"prompt_ms", r.prompt_ms},
                        {"decode_ms", r.decode_ms},
                        {"stop_reason", kReasons[static_cast<int>(r.reason)]},
                        {"kv_bytes", bytes},
                        {"kv_bytes_fp16", half}});
  }

  ModelOptions model_;
  CacheFlags cache_;
  TextOptions text_;
  GenerateOptions options_;
  int64_t context_ = 0;
  bool chat_ = false;
  std::string system_, session_;
  bool continues_ = false;
  MomentsOption moments_;
  JsonOption json_;
};

}  // namespace

std::unique_ptr<Command> MakeGenerate() { return std::make_unique<GenerateCommand>(); }

}  // namespace blockgtq::cli
