// Choosing the next token from logits: greedy, or temperature with top-k, top-p, min-p and a repeat penalty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/random.h"
#include "src/text/tokenizer.h"

namespace blockgtq {

/// Parameters with llama.cpp's names, meanings and order: repeat penalty, top-k, top-p, min-p, temperature.
struct SamplerOptions {
  float temperature = 0.8f;     // 0: greedy
  int top_k = 40;               // 0: off
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  float repeat_penalty = 1.0f;  // 1: off; above 1 makes recent tokens less likely
  int repeat_last_n = 64;       // how many recent tokens the penalty looks at
  uint64_t seed = 1;
  /// The likeliest token whatever came before: no other setting matters.
  bool greedy() const { return temperature == 0 && repeat_penalty == 1; }
  /// kInvalidArgument naming the first value out of range.
  Status Validate() const;
};

class Sampler {
 public:
  /// options must be valid.
  explicit Sampler(const SamplerOptions& options) : options_(options), generator_(options.seed) {}
  /// Picks a token. logits [vocabulary]; history: the sequence so far, prompt included. Equal logits: the
  /// lower id. Errors: kNonFinite when a logit is NaN or +infinity.
  Result<Token> Sample(std::span<const float> logits, std::span<const Token> history);

 private:
  struct Candidate {
    Token token;
    float logit;
    double probability;
  };
  SamplerOptions options_;
  Xoshiro256 generator_;
  std::vector<Candidate> candidates_;
};

}  // namespace blockgtq
