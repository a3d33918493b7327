// The constants of the encoder for every KV head of a model: transforms in tensor-core order, groups, means,
// and the tables of RoPE that remove the key mean. Host code; the caller copies the arrays to the device
// once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/core/rope.h"

namespace blockgtq::cuda {

inline constexpr int kEncodeGroups = 8;  // key groups of a head

struct alignas(16) EncodeGroup {
  int32_t width, first_unit, units, dims;  // dims: true ones, <= 16 * units
  int32_t codes, norms;                    // byte offsets in the record
  float factor;  // turns products with the scaled transform into coordinates over the norm's reference
  int32_t spare;
};

struct alignas(16) EncodeHead {
  int64_t record_offset;  // of the head's record in a block of its group's pool
  int32_t groups;
  int32_t searched;     // Rounding::kSearched
  uint32_t mean_units;  // bit u: a mean is removed from frequency blocks [8 u, 8 u + 8)
  int32_t group;        // EncodeLayer::group
  int32_t rope;         // whose part of `slot_rotation` and `steps` it has
  int32_t spare;
  EncodeGroup key[kEncodeGroups];
  EncodeGroup value;
};

/// Arrays over all heads: head h of layer l at l * kv_heads + h.
struct EncodeTable {
  int head_dim = 0, layers = 0, kv_heads = 0;
  int key_units = 0;              // most of any head: the stride of key_transform follows it
  std::vector<EncodeHead> heads;  // [layers * kv_heads]
  /// fp16 B fragments of m16n8k16, T by rows: [heads][units][head_dim / 16][32 lanes][8]. A lane's eight: the
  /// four of the unit's first 8 columns, then the four of the others; which dims those are follows the record
  /// (encode.cu). Each group is scaled by a power of two.
  std::vector<uint16_t> key_transform, value_transform;
  std::vector<float> key_mean;  // [heads][head_dim]; zero where none is removed
  // [ropes][64][head_dim / 2][cos, sin] of a token in its page, factor included.
  std::vector<float> slot_rotation;
  std::vector<uint64_t> steps;  // RopeSteps: [ropes][head_dim / 2]
};

/// Where a layer's pages are.
struct EncodeLayer {
  int64_t offset = 0;  // in a block of the group's pool (KvCache::layer_offset)
  int group = 0;       // KvCache::group_of
};

/// heads   [layers * kv_heads], as Plan::heads
/// layers  [layers]
/// Errors: kUnsupported naming the head and what the encoder cannot do (head dim other than 64, 128 and 256,
/// fp16 norms, more than 8 key groups, Lloyd-Max codes of 6 and 7 bits); kInvalidArgument when sizes differ.
Result<EncodeTable> BuildEncodeTable(std::span<const HeadPlan> heads, int kv_heads,
                                     std::span<const EncodeLayer> layers, const LayerRopes& ropes);

/// [64][head_dim / 2][cos, sin]: the rotation from a page's first token to each of its tokens.
std::vector<float> SlotRotations(const RopeConfig& rope);

/// 2^-n that brings the largest magnitude of `values` to [128, 256): fp16 then holds entries 2^21 times
/// smaller with full precision. 1 when all are zero.
float HalfScale(std::span<const float> values);

}  // namespace blockgtq::cuda
