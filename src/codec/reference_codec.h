// Plain scalar encode, decode and attention over packed records: the definition every kernel is tested
// against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/codec/record.h"
#include "src/core/rope.h"

namespace blockgtq::reference {

/// Encodes keys of consecutive tokens of one KV head into their places of one record; other tokens' bits
/// stay.
///
/// keys            [count, head_dim] post-RoPE, block order, row-major
/// first_position  position of keys[0]; its slot is first_position % 64, and slot + count <= 64
/// record          layout.bytes bytes; the codes of these tokens are overwritten
/// Errors: kInvalidArgument when a size differs from the plan's, kNonFinite when a key is NaN or infinite
/// (the record is
///         then left as it was).
Status EncodeKeys(const HeadPlan& plan, const RecordLayout& layout, const RopeTable& rope,
                  std::span<const float> keys, int64_t first_position, std::span<std::byte> record);
/// The same for values [count, head_dim] (no position dependence beyond the slot).
Status EncodeValues(const HeadPlan& plan, const RecordLayout& layout, std::span<const float> values,
                    int64_t first_position, std::span<std::byte> record);

/// Decoded key of the token at `position` (its record's slot position % 64), R_t mu added back: k^
/// [head_dim].
void DecodeKey(const HeadPlan& plan, const RecordLayout& layout, const RopeTable& rope,
               std::span<const std::byte> record, int64_t position, float* key);
void DecodeValue(const HeadPlan& plan, const RecordLayout& layout, std::span<const std::byte> record,
                 int slot, float* value);

/// Exact (double precision) attention of one query over decoded tokens [begin, end) of one KV head.
///
/// query    [head_dim] post-RoPE, block order
/// records  record of tokens 64 j .. 64 j + 63 at records[j]
/// scale    1 / sqrt(head_dim)
/// out      [head_dim], of latents zero before the last latent_dims; lse: natural log of the sum of
/// exp(logit). begin == end: out = 0, lse = -infinity
void Attention(const HeadPlan& plan, const RecordLayout& layout, const RopeTable& rope, const float* query,
               std::span<const std::byte* const> records, int64_t begin, int64_t end, float scale, float* out,
               float* lse);

}  // namespace blockgtq::reference
