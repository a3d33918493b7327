// See stream.h.
#include "src/serve/stream.h"

#include <algorithm>
#include <cmath>

#include "src/serve/prefix_cache.h"

namespace blockgtq::serve {
namespace {

double Milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// log softmax at `token`, and the `count` likeliest. logits: finite or -infinity.
void FillLogprobs(std::span<const float> logits, int count, NewToken& token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  const double normalizer = top + std::log(sum);
  const auto logprob = [&](Token id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - normalizer);
  };
  token.chosen.logprob = logprob(token.chosen.token);
  std::vector<Token> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Token>(i);
  const auto kept = std::min<int64_t>(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  for (int64_t i = 0; i < kept; ++i) {
    const Token id = order[static_cast<size_t>(i)];
    token.top.push_back({id, logprob(id)});
  }
}

}  // namespace

Stream::Stream(RequestId id, Request request_in, EventSink sink, const PromptCuts& cuts,
               std::shared_ptr<const JsonVocabulary> json)
    : id(id),
      request(std::move(request_in)),
      keys(CutKeys(request.prompt, cuts)),
      sink_(std::move(sink)),
      tokens_(request.prompt),
      sampler_(request.sampler),
      stop_(request.stop),
      created_(Clock::now()) {
  usage_.prompt_tokens = prompt_length();
  if (request.json_object) json_.emplace(std::move(json));
}

std::span<const Token> Stream::NextTokens(const PromptCuts& cuts) const {
  const int64_t end =
      in_prompt() ? std::min(cuts.NextEnd(stored), prompt_length()) : std::min(stored + 1, length());
  return std::span<const Token>(tokens_).subspan(static_cast<size_t>(stored),
                                                 static_cast<size_t>(end - stored));
}

Result<NewToken> Stream::Sample(std::span<const float> logits) {
  NewToken token;
  BGTQ_ASSIGN_OR_RETURN(token.chosen.token,
                        sampler_.Sample(logits, tokens_, json_.has_value() ? &*json_ : nullptr));
  if (request.top_logprobs >= 0) FillLogprobs(logits, request.top_logprobs, token);
  return token;
}

bool Stream::Take(NewToken token, std::string_view piece, bool end, int64_t limit) {
  const Clock::time_point now = Clock::now();
  if (usage_.new_tokens == 0) {
    first_token_ = now;
    usage_.prompt_ms = Milliseconds(first_run_, now);
  }
  usage_.decode_ms = Milliseconds(first_token_, now);
  if (end && !request.ignore_end) {
    Finish(FinishReason::kEnd);
    return true;
  }
  tokens_.push_back(token.chosen.token);
  ++usage_.new_tokens;
  std::optional<FinishReason> finished;
  std::string text = stop_.Push(utf8_.Push(piece));
  if (json_.has_value()) json_->Take(token.chosen.token);
  if (stop_.matched()) {
    finished = FinishReason::kStop;
  } else if (json_.has_value() && json_->done()) {
    finished = FinishReason::kEnd;
  } else if (usage_.new_tokens == request.max_new_tokens) {
    finished = FinishReason::kLimit;
  } else if (length() >= limit) {
    finished = FinishReason::kContextFull;
  }
  if (finished.has_value() && !stop_.matched()) {
    text += stop_.Push(utf8_.Finish());
    text += stop_.Finish();
  }
  Emit(std::move(text), std::move(token), finished, Status::Ok());
  return finished.has_value();
}

void Stream::Finish(FinishReason reason, Status status) {
  std::string text = stop_.Push(utf8_.Finish());
  text += stop_.Finish();
  Emit(std::move(text), std::nullopt, reason, std::move(status));
}

void Stream::NoteFirstRun(int64_t cached_tokens) {
  if (ran_) return;
  ran_ = true;
  first_run_ = Clock::now();
  usage_.queue_ms = Milliseconds(created_, first_run_);
  usage_.cached_tokens = cached_tokens;
}

void Stream::Emit(std::string text, std::optional<NewToken> token, std::optional<FinishReason> finished,
                  Status status) {
  Event event;
  event.request = id;
  event.text = std::move(text);
  event.token = std::move(token);
  event.finished = finished;
  event.status = std::move(status);
  event.usage = usage_;
  sink_(event);
}

}  // namespace blockgtq::serve
