// What the scheduler takes and gives: a request for new tokens, and the events that answer it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/engine/sampler.h"

namespace blockgtq::serve {

/// In order of arrival.
using RequestId = int64_t;

enum class FinishReason {
  kEnd,          // the model ended its turn
  kStop,         // a stop string
  kLimit,        // max_new_tokens
  kContextFull,  // the longest sequence, or no page left for the only one that runs
  kCancelled,    // Scheduler::Cancel
  kFailed,       // Event::status says why
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural logarithm, of the model's own distribution (before any sampler setting)
};

/// One new token; logprob and top are filled when the request asks for them.
struct NewToken {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the likeliest, falling; equals by id
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, taken from the prefix cache or a slot
  int64_t new_tokens = 0;     // the end token not counted
  double queue_ms = 0;        // until it first ran
  double prompt_ms = 0;       // from then to its first token
  double decode_ms = 0;       // from its first token to its last
};

struct Event {
  RequestId request = 0;
  std::string text;                      // whole UTF-8 to append; may be empty
  std::optional<NewToken> token;         // absent in an event that only ends
  std::optional<FinishReason> finished;  // the last event of the request
  Status status;                         // of kFailed
  Usage usage;                           // so far
};

/// Called on the thread that steps the scheduler, in order; must not block nor call the scheduler.
using EventSink = std::function<void(const Event&)>;

struct Request {
  std::vector<Token> prompt;  // at least one
  int64_t max_new_tokens = 128;
  SamplerOptions sampler;
  std::vector<std::string> stop;  // none empty
  int top_logprobs = -1;          // -1: no logprobs; else how many of the likeliest with each token
  bool ignore_end = false;        // go on past end-of-generation tokens
  bool json_object = false;       // the answer is the text of one JSON object, and ends with it
  bool use_prefix_cache = true;
  int slot = -1;  // 0..slots-1: continue that slot's sequence where the prompt begins with it, and keep the
                  // sequence there afterwards; -1: none
};

}  // namespace blockgtq::serve
