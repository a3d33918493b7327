// One request on its way: what of it is in the cache, and what it has said.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/engine/json_filter.h"
#include "src/serve/prompt_cuts.h"
#include "src/serve/request.h"
#include "src/serve/stop_matcher.h"

namespace blockgtq::serve {

using Clock = std::chrono::steady_clock;

class Stream {
 public:
  /// json: of the model's tokenizer, where request.json_object is set; else null.
  Stream(RequestId id, Request request, EventSink sink, const PromptCuts& cuts,
         std::shared_ptr<const JsonVocabulary> json);

  const RequestId id;
  const Request request;
  const std::vector<uint64_t> keys;  // CutKeys of the prompt

  // Where it is; the scheduler's to set.
  std::optional<SequenceId> sequence;  // absent: waiting
  int64_t stored = 0;                  // tokens in the cache
  /// The cached tokens are what running the prompt from cut to cut gives: only such become prefix entries.
  bool canonical = true;
  int64_t last_prompt_step = 0;  // when its prompt had its last turn
  /// Up to here it runs in passes of its own: a pass with others failed, and one of them was the cause.
  int64_t alone_until = 0;

  /// The prompt, then the new tokens.
  const std::vector<Token>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  bool in_prompt() const { return stored < prompt_length(); }
  /// What the next pass runs: the prompt up to its next cut, then a token at a time (new tokens that
  /// are run again after a preemption are so too: each is computed as it was at first).
  std::span<const Token> NextTokens(const PromptCuts& cuts) const;

  /// The model's likeliest token is the next one, and no logits are asked for.
  bool greedy() const { return request.sampler.greedy() && request.top_logprobs < 0 && !request.json_object; }
  /// The next token from logits [vocabulary]. Errors: those of Sampler::Sample.
  Result<NewToken> Sample(std::span<const float> logits);
  /// Takes a new token and tells the sink. piece: its bytes; end: whether it ends the turn. limit: the most
  /// tokens of a sequence. True when the stream is finished.
  bool Take(NewToken token, std::string_view piece, bool end, int64_t limit);
  /// Ends it with what is held back of its text.
  void Finish(FinishReason reason, Status status = Status::Ok());

  void NoteFirstRun(int64_t cached_tokens);
  const Usage& usage() const { return usage_; }
  Clock::time_point created() const { return created_; }

 private:
  void Emit(std::string text, std::optional<NewToken> token, std::optional<FinishReason> finished,
            Status status);

  EventSink sink_;
  std::vector<Token> tokens_;
  Sampler sampler_;
  std::optional<JsonFilter> json_;
  Utf8Stream utf8_;
  StopMatcher stop_;
  Usage usage_;
  Clock::time_point created_, first_run_, first_token_;
  bool ran_ = false;
};

}  // namespace blockgtq::serve
