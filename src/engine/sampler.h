// Choosing the next token from logits: greedy, or temperature with top-k, top-p, min-p and penalties.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/random.h"
#include "src/text/tokenizer.h"

namespace blockgtq {

/// Parameters with llama.cpp's names, meanings and order: repeat penalty, top-k, top-p, min-p, temperature.
/// Before them come OpenAI's: a logit becomes logit + bias - count * frequency_penalty - (count > 0) *
/// presence_penalty, where count is how often this sampler has drawn the token.
struct SamplerOptions {
  float temperature = 0.8f;     // 0: greedy
  int top_k = 40;               // 0: off
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  float repeat_penalty = 1.0f;  // 1: off; above 1 makes recent tokens less likely
  int repeat_last_n = 64;       // how many recent tokens the penalty looks at
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<std::pair<Token, float>> logit_bias =
      {};  // of tokens in the vocabulary; others are passed over
  uint64_t seed = 1;
  /// The likeliest token whatever came before: no other setting matters.
  bool greedy() const {
    return temperature == 0 && repeat_penalty == 1 && frequency_penalty == 0 && presence_penalty == 0 &&
           logit_bias.empty();
  }
  /// kInvalidArgument naming the first value out of range.
  Status Validate() const;
};

/// Which tokens may come next.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  virtual bool Allows(Token token) const = 0;
};

class Sampler {
 public:
  /// options must be valid.
  explicit Sampler(const SamplerOptions& options) : options_(options), generator_(options.seed) {}
  /// Picks a token. logits [vocabulary]; history: the sequence so far, prompt included. Equal logits: the
  /// lower id. filter: what it refuses is left out before every other setting; null: all are there. Errors:
  /// kNonFinite when a logit is NaN or +infinity; kUnsupported when the filter allows no token.
  Result<Token> Sample(std::span<const float> logits, std::span<const Token> history,
                       const TokenFilter* filter = nullptr);

 private:
  struct Candidate {
    Token token;
    float logit;
    double probability;
  };
  /// Bias and penalties, on candidates_ in the order of the vocabulary.
  void Adjust(std::span<const Token> history);
  Token Draw();

  SamplerOptions options_;
  Xoshiro256 generator_;
  std::unordered_map<Token, int> drawn_;  // how often; kept where a penalty needs it
  std::vector<Candidate> candidates_;
};

}  // namespace blockgtq
