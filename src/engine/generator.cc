// See generator.h.
#include "src/engine/generator.h"

#include <chrono>

namespace blockgtq {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

Result<GenerateResult> Generate(Context& context, SequenceId sequence, std::vector<Token>& history,
                                std::span<const Token> prompt, const GenerateOptions& options) {
  if (prompt.empty())
    return Status(ErrorCode::kInvalidArgument, "the prompt is empty: there is nothing to continue");
  BGTQ_RETURN_IF_ERROR(options.sampler.Validate());
  const Tokenizer& tokenizer = context.model().tokenizer();
  const auto stopped = [&] {
    return options.stop != nullptr && options.stop->load(std::memory_order_relaxed);
  };
  GenerateResult result;
  const Clock::time_point prompt_start = Clock::now();
  int64_t last_row = 0;
  const Status prompt_status = context.Append(
      sequence, prompt, {.strict = options.strict},
      [&](int64_t first, int64_t rows) {
        result.prompt_tokens = first + rows;
        last_row = rows - 1;
        if (options.on_prompt) options.on_prompt(result.prompt_tokens);
        return stopped() ? Status(ErrorCode::kCancelled, "stopped") : Status::Ok();
      },
      options.batch);
  history.insert(history.end(), prompt.begin(), prompt.begin() + result.prompt_tokens);
  result.prompt_ms = MillisecondsSince(prompt_start);
  if (prompt_status.code() == ErrorCode::kCancelled) {
    result.reason = StopReason::kCancelled;
    return result;
  }
  BGTQ_RETURN_IF_ERROR(prompt_status);

  Sampler sampler(options.sampler);
  const Clock::time_point decode_start = Clock::now();
  while (static_cast<int64_t>(result.tokens.size()) < options.max_new_tokens) {
    if (stopped()) {
      result.reason = StopReason::kCancelled;
      break;
    }
    Token token = 0;
    if (options.sampler.greedy()) {
      BGTQ_ASSIGN_OR_RETURN(const std::span<const Token> chosen, context.GreedyTokens({&last_row, 1}));
      token = chosen[0];
    } else {
      BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits, context.Logits({&last_row, 1}));
      BGTQ_ASSIGN_OR_RETURN(token, sampler.Sample(logits, history));
    }
    if (!options.ignore_end && tokenizer.IsEndOfGeneration(token)) {
      result.reason = StopReason::kEnd;
      break;
    }
    result.tokens.push_back(token);
    history.push_back(token);
    if (options.on_piece) options.on_piece(tokenizer.Piece(token));
    if (static_cast<int64_t>(result.tokens.size()) == options.max_new_tokens) break;
    const int64_t length = context.cache().state(sequence).length;
    if ((options.context_tokens > 0 && length >= options.context_tokens) ||
        !context.cache().Reserve(sequence, 1).ok()) {  // no room for one more
      result.reason = StopReason::kContextFull;
      break;
    }
    const SequenceTokens item{sequence, {&token, 1}};
    BGTQ_RETURN_IF_ERROR(context.Run({&item, 1}));
    last_row = 0;
    ++result.decoded;
  }
  result.decode_ms = MillisecondsSince(decode_start);
  return result;
}

Status StorePending(Context& context, SequenceId sequence, std::vector<Token>& history) {
  const size_t stored = static_cast<size_t>(context.cache().state(sequence).length);
  Status status = context.Append(sequence, std::span<const Token>(history).subspan(stored), {}, {});
  if (status.code() != ErrorCode::kOutOfMemory) return status;
  history.resize(static_cast<size_t>(context.cache().state(sequence).length));
  return Status::Ok();
}

}  // namespace blockgtq
