// What attention over a cache must give, token by token, in double: the rules of cache/kv_cache.h and
// backend.h, over the reference codec. It shares no code with AttentionOp but the rotation table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/codec/reference_codec.h"
#include "src/core/half.h"
#include "src/core/rope.h"

namespace blockgtq::cpu {

/// A wrong rule, to see that a test would notice an operation that follows it.
enum class Mistake {
  kNone,
  kDropToken,   // token 70 is never seen
  kNextToken,   // a prompt's token sees the one after it
  kRepeatPage,  // the second page's codes are read from the first page
  kSinkLess,    // the last sink is seen as codes
  kSinkMore,    // the token after the last sink is seen exactly
  kLateFlush,   // codes end a page early: the last coded page is seen exactly
  kOwnExact,    // recent = 0: a decoded token sees itself exactly
  kOwnCodes,    // recent = 0: a prompt's tokens see each other's codes
  kFromHalf,    // a prompt's tokens are encoded from their fp16 copies
  kWideWindow,  // a window reaches one token further back
};

/// How many of the keys before a token, times kLagWeight, LaggingHead adds to its key.
inline constexpr int64_t kLagTokens = 70;
inline constexpr float kLagWeight = 0.125f;

/// Simulated storage whose codes depend on earlier tokens as they were: a key reads as itself and a share of
/// those before it, a value as half of itself.
class LaggingHead : public SimulatedHead {
 public:
  explicit LaggingHead(int dim) : dim_(dim) {}
  void RoundTripKeys(std::span<const float> before, std::span<float> keys,
                     int64_t first_position) const override {
    const int64_t dim = dim_, n = static_cast<int64_t>(before.size()) / dim;
    EXPECT_EQ(n, std::min(kLagTokens, first_position));
    std::vector<float> all(before.begin(), before.end());
    all.insert(all.end(), keys.begin(), keys.end());
    for (int64_t i = 0; i < static_cast<int64_t>(keys.size()); ++i) {
      const int64_t at = n * dim + i;
      for (int64_t back = 1; back <= std::min(kLagTokens, first_position + i / dim); ++back) {
        keys[static_cast<size_t>(i)] += kLagWeight * all[static_cast<size_t>(at - back * dim)];
      }
    }
  }
  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (float& x : values) x *= 0.5f;
  }
  double bytes_per_token() const override { return 1; }
  double key_bytes_per_token() const override { return 0.5; }
  int history_tokens() const override { return static_cast<int>(kLagTokens); }

 private:
  int dim_;
};

/// The twins of a plan's heads; the last head of them lags instead.
inline std::shared_ptr<const SimulatedHeads> SimulateWithLag(const Plan& plan, const RopeConfig& rope) {
  auto simulated = std::make_shared<SimulatedHeads>();
  *simulated = {"test", 1, static_cast<int>(plan.heads.size()), rope.head_dim, {}};
  for (const HeadPlan& head : plan.heads) {
    simulated->heads.push_back(SimulatePlannedHead(head, std::make_shared<RopeTable>(rope)));
  }
  simulated->heads.back() = std::make_unique<LaggingHead>(rope.head_dim);
  return simulated;
}

/// Sequences of one layer as lists of tokens.
class AttentionModel {
 public:
  AttentionModel(const CacheOptions& options, const Plan* plan, const RopeConfig& rope, int heads,
                 int kv_heads, float scale)
      : options_(options),
        plan_(plan),
        rope_(rope),
        dim_(rope.head_dim),
        heads_(heads),
        kv_heads_(kv_heads),
        scale_(scale) {
    if (!coded()) options_.sinks = options_.recent = 0;
  }

  Mistake mistake = Mistake::kNone;
  int64_t window = 0;  // tokens that a token sees, itself included; 0: all

  void Add(SequenceId id) { sequences_[id] = {}; }
  void Remove(SequenceId id) { sequences_.erase(id); }
  void Fork(SequenceId from, SequenceId to, int64_t tokens) {
    sequences_[to] = sequences_.at(from);
    Truncate(to, tokens);
  }
  void Truncate(SequenceId id, int64_t length) {
    Sequence& s = sequences_.at(id);
    s.tokens.resize(length);
    s.coded_end = std::min(s.coded_end, length);
  }
  SequenceState state(SequenceId id) const {
    const Sequence& s = sequences_.at(id);
    return {static_cast<int64_t>(s.tokens.size()), s.coded_end};
  }

  /// Appends `count` tokens and returns what each must attend to, [count][heads * dim]; rows for which
  /// wanted(row) is false stay empty. queries [count, heads * dim], keys and values [count, kv_heads * dim],
  /// before RoPE.
  template <typename Wanted>
  std::vector<std::vector<double>> Append(SequenceId id, int64_t count, bool strict, const float* queries,
                                          const float* keys, const float* values, Wanted wanted) {
    Sequence& s = sequences_.at(id);
    const int64_t start = static_cast<int64_t>(s.tokens.size()), end = start + count;
    const bool alone = strict || count == 1;
    for (int64_t i = 0; i < count; ++i) {
      s.tokens.push_back(MakeToken(start + i, keys + i * kv_heads_ * dim_, values + i * kv_heads_ * dim_));
    }
    if (!alone && mistake == Mistake::kOwnCodes && options_.recent == 0) EncodeTo(s, end, start);
    std::vector<std::vector<double>> out(count);
    for (int64_t p = start; p < end; ++p) {
      if (alone && coded()) {
        // recent = 0: the token itself is coded too, from float; else from what the window kept.
        options_.recent == 0 ? EncodeTo(s, p + 1, p) : EncodeTo(s, CodedEndBefore(p), p);
      }
      if (wanted(p - start)) out[p - start] = Attend(s, p, queries + (p - start) * heads_ * dim_);
    }
    if (coded()) {
      // The last pages of a prompt may outlive the call in the window, [coded_end, end) then being fp16.
      const bool through_window =
          options_.recent > 0 && (alone || (end - 1) / kPageTokens - s.coded_end / kPageTokens <=
                                               (options_.recent + kPageTokens - 1) / kPageTokens);
      EncodeTo(s, CodedEndBefore(end), through_window ? end : start);
    }
    return out;
  }

 private:
  struct Token {
    std::vector<float> key, value;              // [kv_heads * dim] after RoPE
    std::vector<float> exact_key, exact_value;  // as an exact tile keeps them
    std::vector<float> coded_key, coded_value;  // decoded; empty before the token is encoded
    std::vector<float> encoded_key;             // what was encoded: `key` or `exact_key`
  };
  struct Sequence {
    std::vector<Token> tokens;
    int64_t coded_end = 0;
  };

  bool simulated() const { return options_.kind == CacheKind::kSimulated; }
  bool coded() const { return options_.kind == CacheKind::kPacked || simulated(); }
  int64_t CodedEndBefore(int64_t position) const {
    if (options_.recent == 0) return position;
    return position < options_.recent ? 0 : (position - options_.recent) / kPageTokens * kPageTokens;
  }

  Token MakeToken(int64_t position, const float* key, const float* value) const {
    Token token;
    token.key.resize(kv_heads_ * dim_);
    for (int h = 0; h < kv_heads_; ++h) rope_.Apply(key + h * dim_, position, &token.key[h * dim_]);
    token.value.assign(value, value + kv_heads_ * dim_);
    token.exact_key = token.key;
    token.exact_value = token.value;
    if (options_.kind != CacheKind::kFloat) {
      for (float& x : token.exact_key) x = HalfToFloat(FloatToHalf(x));
      for (float& x : token.exact_value) x = HalfToFloat(FloatToHalf(x));
    }
    return token;
  }

  // Encodes tokens [coded_end, end). A page's run of tokens that begins at or past `from_float` is encoded
  // from the activations, others from their fp16 copies.
  void EncodeTo(Sequence& s, int64_t end, int64_t from_float) {
    while (s.coded_end < end) {
      const int64_t begin = s.coded_end, stop = std::min(end, (begin / kPageTokens + 1) * kPageTokens);
      for (int64_t t = begin; t < stop; ++t) {
        EncodeToken(s, t, begin >= from_float && mistake != Mistake::kFromHalf);
      }
      s.coded_end = stop;
    }
  }

  void EncodeToken(Sequence& s, int64_t position, bool from_float) {
    Token& token = s.tokens[position];
    const std::vector<float>& keys = from_float ? token.key : token.exact_key;
    const std::vector<float>& values = from_float ? token.value : token.exact_value;
    token.encoded_key = keys;
    token.coded_key.resize(keys.size());
    token.coded_value.resize(values.size());
    const size_t n = static_cast<size_t>(dim_);
    for (int h = 0; h < kv_heads_; ++h) {
      if (simulated() && h == kv_heads_ - 1) {
        for (size_t d = h * n; d < (h + 1) * n; ++d) {
          token.coded_key[d] = keys[d];
          for (int64_t t = std::max<int64_t>(position - kLagTokens, 0); t < position; ++t) {
            token.coded_key[d] += kLagWeight * s.tokens[t].encoded_key[d];
          }
          token.coded_value[d] = values[d] / 2;
        }
        continue;
      }
      const HeadPlan& head = plan_->heads[h];
      const RecordLayout layout = RecordLayout::For(head);
      std::vector<std::byte> record(layout.bytes);
      ASSERT_TRUE(reference::EncodeKeys(head, layout, rope_, {&keys[h * n], n}, position, record).ok());
      ASSERT_TRUE(reference::EncodeValues(head, layout, {&values[h * n], n}, position, record).ok());
      reference::DecodeKey(head, layout, rope_, record, position, &token.coded_key[h * n]);
      reference::DecodeValue(head, layout, record, static_cast<int>(position % kPageTokens),
                             &token.coded_value[h * n]);
    }
  }

  // Whether the token at `position` sees token t as codes, codes reaching coded_end.
  bool AsCodes(int64_t t, int64_t position, int64_t coded_end) const {
    int sinks = options_.sinks;
    if (mistake == Mistake::kSinkLess) --sinks;
    if (mistake == Mistake::kSinkMore) ++sinks;
    if (mistake == Mistake::kLateFlush) coded_end -= kPageTokens;
    if (mistake == Mistake::kOwnExact && options_.recent == 0 && t == position) return false;
    return coded() && t >= sinks && t < coded_end;
  }

  int64_t FirstSeen(int64_t position) const {
    if (window == 0) return 0;
    const int64_t seen = mistake == Mistake::kWideWindow ? window + 1 : window;
    return std::max<int64_t>(position + 1 - seen, 0);
  }

  std::vector<double> Attend(const Sequence& s, int64_t position, const float* queries) const {
    std::vector<double> out(heads_ * dim_);
    std::vector<float> query(dim_);
    std::vector<double> weight;
    std::vector<const float*> seen;  // values
    for (int h = 0; h < heads_; ++h) {
      rope_.Apply(queries + h * dim_, position, query.data());
      const int at = h / (heads_ / kv_heads_) * dim_;
      weight.clear();
      seen.clear();
      const bool next = mistake == Mistake::kNextToken;
      const int64_t end = std::min<int64_t>(position + 1 + next, static_cast<int64_t>(s.tokens.size()));
      for (int64_t t = FirstSeen(position); t < end; ++t) {
        if (mistake == Mistake::kDropToken && t == 70) continue;
        const bool codes = AsCodes(t, position, s.coded_end);
        const bool repeat = mistake == Mistake::kRepeatPage && codes && t / kPageTokens == 1;
        const Token& token = s.tokens[repeat ? t - kPageTokens : t];
        const float* key = (codes ? token.coded_key : token.exact_key).data() + at;
        double dot = 0;
        for (int d = 0; d < dim_; ++d) dot += double{query[d]} * key[d];
        weight.push_back(dot * scale_);
        seen.push_back((codes ? token.coded_value : token.exact_value).data() + at);
      }
      const double top = *std::max_element(weight.begin(), weight.end());
      double sum = 0;
      for (double& w : weight) sum += w = std::exp(w - top);
      double* result = &out[h * dim_];
      for (size_t t = 0; t < seen.size(); ++t) {
        for (int d = 0; d < dim_; ++d) result[d] += weight[t] / sum * seen[t][d];
      }
    }
    return out;
  }

  CacheOptions options_;
  const Plan* plan_;
  RopeTable rope_;
  int dim_, heads_, kv_heads_;
  float scale_;
  std::map<SequenceId, Sequence> sequences_;
};

}  // namespace blockgtq::cpu
