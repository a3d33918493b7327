// Simulated storage: lossy codes of keys and values that have no packed record and no kernel. A simulated
// head says what its codes would read as, and how many bytes they would take; a cache of kind kSimulated
// (cache/kv_cache.h) keeps the vectors so read as they are, so that recipes can be compared by what they do
// to a model.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/core/rope.h"

namespace blockgtq {

/// The lossy storage of one KV head of one layer. Vectors are fp32, [tokens, head_dim] row-major, of
/// consecutive positions. Const: may be called from many threads.
///
/// Tokens that are coded together (token_unit() of them, from positions that are its multiples) come in one
/// call; a caller whose range cuts such a unit gets the tokens it passes coded as a unit of their own.
class SimulatedHead {
 public:
  virtual ~SimulatedHead() = default;

  /// Replaces keys by what their codes read as.
  ///
  /// before          [n, head_dim] keys as they were before coding, of the n = min(history_tokens(),
  ///                 first_position) tokens before keys[0]; more are ignored, with fewer the head does as
  ///                 at the start of a sequence
  /// keys            [count, head_dim] post-RoPE, block order; finite
  /// first_position  of keys[0]
  virtual void RoundTripKeys(std::span<const float> before, std::span<float> keys,
                             int64_t first_position) const = 0;
  /// The same for values [count, head_dim].
  virtual void RoundTripValues(std::span<float> values, int64_t first_position) const = 0;

  /// Stored bytes of a token, K + V, on average: norms, scales and zero points included.
  virtual double bytes_per_token() const = 0;
  /// The keys' part of it (without a record's rounding to 16 bytes): what `diagnose` states beside figures of
  /// keys alone.
  virtual double key_bytes_per_token() const = 0;
  /// Tokens that are coded together: 1, or a number that divides a page's 64.
  virtual int token_unit() const { return 1; }
  /// Earlier tokens that decide how a token is coded (ranges that lag behind).
  virtual int history_tokens() const { return 0; }

  /// As it stores a sequence of `coded` coded tokens. Methods that narrow codes as memory fills differ from
  /// count to count; what their codes read as after narrowing follows from the vectors, since each narrower
  /// code follows from the wider one. The head itself stands for full memory.
  virtual const SimulatedHead& At(int64_t coded) const {
    (void)coded;
    return *this;
  }
  /// The smallest count above `coded` whose At is another; kNever where there is none.
  virtual int64_t ChangesAfter(int64_t coded) const {
    (void)coded;
    return kNever;
  }
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
};

/// Every KV head of a model, [layers * kv_heads], head h of layer l at l * kv_heads + h.
struct SimulatedHeads {
  std::string recipe;
  int layers = 0, kv_heads = 0, head_dim = 0;
  std::vector<std::unique_ptr<const SimulatedHead>> heads;

  const SimulatedHead& head(int layer, int kv_head) const {
    return *heads[static_cast<size_t>(layer) * kv_heads + kv_head];
  }
  /// Mean over heads, at full memory; or in a sequence of `coded` coded tokens.
  double bytes_per_token_per_head() const;
  double bytes_per_token_per_head(int64_t coded) const;
  /// The smallest over heads.
  int64_t ChangesAfter(int64_t coded) const;
  /// Bytes a token a head by length: (coded tokens from which, bytes), ascending, the first from 0.
  std::vector<std::pair<int64_t, double>> BytesByLength() const;
  /// The largest over heads.
  int token_unit() const;
  int history_tokens() const;
};

/// A packed head's simulated twin: encodes and decodes with codec/reference_codec.h.
/// bytes_per_token() is the record's, so that the twin costs what the packed head costs.
std::unique_ptr<const SimulatedHead> SimulatePlannedHead(const HeadPlan& plan,
                                                         std::shared_ptr<const RopeTable> rope);

}  // namespace blockgtq
