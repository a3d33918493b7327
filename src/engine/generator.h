// Generation: a prompt into a sequence, then token after token until an end, a limit or a stop request.
#pragma once

#include <atomic>
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
