// Generation: a prompt into a sequence, then token after token until an end, a limit or a stop request; of
// one sequence, or of several a pass.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "src/engine/context.h"
#include "src/engine/sampler.h"

namespace blockgtq {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  bool ignore_end = false;  // go on past end-of-generation tokens
  SamplerOptions sampler;
  int64_t context_tokens = 0;  // the sequence grows no longer than this; 0: as long as the cache has pages
  int64_t batch = 0;           // prompt tokens a pass; 0: the backend's choice
  bool strict = false;         // the prompt's tokens attend as if each had been decoded (RunOptions::strict)
  const std::atomic<bool>* stop = nullptr;               // set by a signal handler; may be null
  std::function<void(std::string_view piece)> on_piece;  // bytes of each new token; may be empty
  std::function<void(int64_t done)> on_prompt;           // prompt tokens done; may be empty
};

enum class StopReason { kEnd, kLimit, kContextFull, kCancelled };

struct GenerateResult {
  std::vector<Token> tokens;  // the new ones, without the end token
  int64_t prompt_tokens = 0;  // evaluated by this call
  double prompt_ms = 0, decode_ms = 0;
  int64_t decoded = 0;  // forward passes of one token, what decode_ms counts
  StopReason reason = StopReason::kLimit;
};

/// One of several generations that share passes: GenerateBegin, then GenerateStep while it runs.
class RunningText {
 public:
  /// history: the sequence's tokens, grown by this; outlives the generation. options are valid (GenerateBegin
  /// says).
  RunningText(SequenceId sequence, std::vector<Token>& history, GenerateOptions options)
      : sequence_(sequence), history_(history), options_(std::move(options)), sampler_(options_.sampler) {}
  SequenceId sequence() const { return sequence_; }
  /// It has a token that its cache lacks and wants another.
  bool running() const { return running_; }
  const GenerateResult& result() const { return result_; }

 private:
  friend Status GenerateBegin(Context&, RunningText&, std::span<const Token>);
  friend Status GenerateStep(Context&, std::span<RunningText* const>);
  bool Stopped() const;
  void End(StopReason reason);
  static Status Draw(Context& context, std::span<RunningText* const> all, std::span<const int64_t> rows);
  void Take(Context& context, Token token);

  SequenceId sequence_;
  std::vector<Token>& history_;
  GenerateOptions options_;
  Sampler sampler_;
  GenerateResult result_;
  bool running_ = false;
  std::chrono::steady_clock::time_point decode_start_;
};

/// Runs the prompt of a new generation and draws its first token. Errors: as Generate.
Status GenerateBegin(Context& context, RunningText& generation, std::span<const Token> prompt);
/// One pass of a token each, and the next tokens. all: running, of different sequences, at least one. Errors:
/// those of Context::Run and Sampler, which end none of them.
Status GenerateStep(Context& context, std::span<RunningText* const> all);

/// Continues `sequence` (whose tokens so far are `history`, its length in the cache) with `prompt` and up to
/// max_new_tokens more; appends all of them to history. Errors: kInvalidArgument (empty prompt), those of
/// Context::Run and Sampler.
Result<GenerateResult> Generate(Context& context, SequenceId sequence, std::vector<Token>& history,
                                std::span<const Token> prompt, const GenerateOptions& options);

/// Runs the tokens of history that the cache does not hold yet (the last one that was drawn), so that a saved
/// session is the whole text. Where the cache has no room for them they are dropped from history. Errors:
/// those of Context::Run, but for a full cache.
Status StorePending(Context& context, SequenceId sequence, std::vector<Token>& history);

}  // namespace blockgtq
