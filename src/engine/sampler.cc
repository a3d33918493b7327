// See sampler.h.
#include "src/engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace blockgtq {

Status SamplerOptions::Validate() const {
  const auto bad = [](const char* flag, double value, const char* range) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("{} {}: must be {}", flag, value, range));
  };
  if (!(temperature >= 0) || !std::isfinite(temperature)) return bad("--temp", temperature, ">= 0");
  if (top_k < 0) return bad("--top-k", top_k, ">= 0 (0: off)");
  if (!(top_p > 0 && top_p <= 1)) return bad("--top-p", top_p, "in (0, 1]");
  if (!(min_p >= 0 && min_p <= 1)) return bad("--min-p", min_p, "in [0, 1]");
  if (!(repeat_penalty > 0) || !std::isfinite(repeat_penalty))
    return bad("--repeat-penalty", repeat_penalty, "> 0");
  if (!std::isfinite(frequency_penalty)) return bad("frequency penalty", frequency_penalty, "a number");
  if (!std::isfinite(presence_penalty)) return bad("presence penalty", presence_penalty, "a number");
  for (const auto& [token, bias] : logit_bias) {
    if (!std::isfinite(bias)) return bad("logit bias", bias, "a number");
  }
  if (repeat_last_n < 0) return bad("--repeat-last-n", repeat_last_n, ">= 0");
  return Status::Ok();
}

Result<Token> Sampler::Sample(std::span<const float> logits, std::span<const Token> history,
                              const TokenFilter* filter) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return Status(ErrorCode::kNonFinite,
                    fmt::format("the logit of token {} is {}; the model file or its numerics are damaged", i,
                                logits[i]));
    }
    candidates_[i] = {static_cast<Token>(i), logits[i], 0};
  }
  Adjust(history);
  if (filter != nullptr) {
    std::erase_if(candidates_, [&](const Candidate& c) { return !filter->Allows(c.token); });
    if (candidates_.empty()) {
      return Status(ErrorCode::kUnsupported,
                    "no token of the model's vocabulary can come next in the form that the answer must have");
    }
  }
  const Token token = Draw();
  if (options_.frequency_penalty != 0 || options_.presence_penalty != 0) ++drawn_[token];
  return token;
}

void Sampler::Adjust(std::span<const Token> history) {
  const auto logit_of = [&](Token token) -> float* {
    const bool known = token >= 0 && static_cast<size_t>(token) < candidates_.size();
    return known ? &candidates_[static_cast<size_t>(token)].logit : nullptr;
  };
  for (const auto& [token, bias] : options_.logit_bias) {
    if (float* logit = logit_of(token)) *logit += bias;
  }
  for (const auto& [token, count] : drawn_) {
    *logit_of(token) -= static_cast<float>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
  if (options_.repeat_penalty == 1.0f) return;
  std::vector<Token> recent(history.end() - static_cast<int64_t>(std::min<size_t>(
                                                history.size(), static_cast<size_t>(options_.repeat_last_n))),
                            history.end());
  std::sort(recent.begin(), recent.end());
  recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
  for (const Token token : recent) {
    float* logit = logit_of(token);
    if (logit == nullptr) continue;
    *logit = *logit > 0 ? *logit / options_.repeat_penalty : *logit * options_.repeat_penalty;
  }
}

Token Sampler::Draw() {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
  };
  if (options_.temperature == 0)
    return std::min_element(candidates_.begin(), candidates_.end(), better)->token;

  size_t kept = candidates_.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept), candidates_.end(),
                    better);
  const double top = candidates_[0].logit;
  double total = 0;
  for (size_t i = 0; i < kept; ++i)
    total += candidates_[i].probability = std::exp(candidates_[i].logit - top);
  if (options_.top_p < 1) {  // the smallest set that holds top_p of the probability
    double sum = 0;
    size_t n = 0;
    while (n < kept && sum < options_.top_p * total) sum += candidates_[n++].probability;
    kept = std::max<size_t>(n, 1);
  }
  if (options_.min_p > 0) {  // at least min_p of the likeliest token's probability, which is 1 here
    while (kept > 1 && candidates_[kept - 1].probability < options_.min_p) --kept;
  }
  total = 0;
  for (size_t i = 0; i < kept; ++i) {
    total += candidates_[i].probability = std::exp((candidates_[i].logit - top) / options_.temperature);
  }
  double draw = generator_.Uniform() * total;
  for (size_t i = 0; i + 1 < kept; ++i) {
    draw -= candidates_[i].probability;
    if (draw <= 0) return candidates_[i].token;
  }
  return candidates_[kept - 1].token;
}

}  // namespace blockgtq
