// Attention of a block of queries over packed records, straight from the codes (design.md 5), one KV head a
// call. Single-threaded: the backend splits heads and token ranges over its threads and merges the partials.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/codec/plan.h"
#include "src/codec/record.h"
#include "src/core/rope.h"
#include "src/cpu/query_bounds.h"

namespace blockgtq::cpu {

/// Constant data of one KV head, laid out for the kernels: made once a plan.
struct PackedHead {
  HeadPlan plan;
  RecordLayout layout;
  int key_dims = 0;    // P   = 16 * key units
  int value_dims = 0;  // P_v = 16 * value units
  // The implementation adds what its kernels want (transposed transforms, the mean's [R_r mu] table, group
  // constants).
  struct Derived;
  std::shared_ptr<const Derived> derived;
  static PackedHead Make(const HeadPlan& plan, const RopeTable& rope);
};

/// Per-thread scratch; grows to the largest call and is reused.
class CodesScratch {
 public:
  CodesScratch();
  ~CodesScratch();
  CodesScratch(CodesScratch&&) noexcept;
  CodesScratch& operator=(CodesScratch&&) noexcept;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Queries of one KV head, rotated (T^-T), scaled by log2(e) / sqrt(D) and rounded to int8 (hi, and lo for
/// groups of width
/// >= 5): prepared once a layer, read by every token range.
class PreparedQueries {
 public:
  PreparedQueries();
  ~PreparedQueries();
  PreparedQueries(PreparedQueries&&) noexcept;
  PreparedQueries& operator=(PreparedQueries&&) noexcept;
  struct Impl;
  Impl& impl() { return *impl_; }
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// queries  [count] pointers to [head_dim] post-RoPE, block order
/// scale    1 / sqrt(head_dim) (times any model factor)
void PrepareQueries(const PackedHead& head, std::span<const float* const> queries, float scale,
                    PreparedQueries& out);

/// Attends prepared queries [first, first + count) to tokens [begin, end) of the sequence.
///
/// records    record of tokens 64 j .. 64 j + 63 at records[j]; only tiles that [begin, end) touches are read
/// bounds     of the `count` queries, within [begin, end)
/// rope       the table, reserved past `end` (the mean's phase: R_64j)
/// out        [count, value_dims] in the rotated value space, normalised (sums of P w / sum of P)
/// lse        [count] natural log of the sum of exp(logit); -infinity (and out = 0) for a query that sees no
/// token Accuracy: int8 queries and u8 probabilities (kernels.md); relative L2 about 1e-2 against exact, <=
/// 1e-3 against a
///           reference that rounds q and P the same way.
void AttendCodes(const PackedHead& head, const PreparedQueries& queries, int first, int count,
                 std::span<const std::byte* const> records, int64_t begin, int64_t end,
                 const QueryBounds& bounds, const RopeTable& rope, CodesScratch& scratch, float* out,
                 float* lse);

/// out [head_dim] = T_v' rotated [value_dims].
void UnrotateValue(const PackedHead& head, const float* rotated, float* out);

/// Encoders, the same bytes as reference::EncodeKeys / EncodeValues up to ties of rounding in float
/// arithmetic. keys, values: [count, head_dim] with row stride `stride` floats; slots first_position % 64
/// onward of one record. Returns false (record untouched) when an input is NaN or infinite.
bool EncodeKeys(const PackedHead& head, const RopeTable& rope, const float* keys, int64_t stride, int count,
                int64_t first_position, CodesScratch& scratch, std::byte* record);
bool EncodeValues(const PackedHead& head, const float* values, int64_t stride, int count,
                  int64_t first_position, CodesScratch& scratch, std::byte* record);

}  // namespace blockgtq::cpu
