// Packed tokens back to plain fp16 rows: what a library's attention reads when a prompt's chunk attends to
// its packed prefix. One sequence and one layer a launch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "blockgtq/status.h"
#include "src/cuda/encode_table.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Un-rotations of every head, beside EncodeTable's arrays. Head h of layer l at l * kv_heads + h.
struct UnpackTable {
  /// fp16 B fragments of m16n8k16, rows of T^-1 (of T_v'), each group times what its integer codes mean, each
  /// head times a power of two: [heads][units][head_dim / 16][32 lanes][8]: a lane's four of 8 columns, then
  /// of the next 8. Which dims those are follows the record and the stores of unpack.cu.
  std::vector<uint16_t> key_fragments, value_fragments;
  std::vector<float> scale;  // [heads][2]: undoes that power of two, of keys and of values
};

/// heads: those that `encode` was built from.
UnpackTable BuildUnpackTable(std::span<const HeadPlan> heads, const EncodeTable& encode);

/// Device pointers unless said.
struct UnpackParams {
  int32_t head_dim = 0, kv_heads = 0, key_units = 0;  // EncodeTable's
  int32_t layer = 0;

  // Tokens [first, first + count): from the sinks' tile below `sinks`, from codes in [sinks, coded_end), from
  // the window from coded_end on.
  int64_t first = 0, count = 0, coded_end = 0;
  int32_t sinks = 0;

  const int32_t* block_table = nullptr;  // the sequence's, [pages]
  const uint8_t* pool = nullptr;         // of the layer's group: block b's records start at b * block_bytes
  int64_t block_bytes = 0;
  // Exact tiles as DecodeParams has them; null where no token of the range is exact.
  const uint8_t* exact = nullptr;
  int64_t window_offset = 0, sink_offset = 0;  // of the layer
  int32_t window_tiles = 0, sink_tile_tokens = 0;

  // Arrays of EncodeTable and UnpackTable; the rotations of the layer's RoPE.
  const EncodeHead* heads = nullptr;
  const float* key_mean = nullptr;
  const float* slot_rotation = nullptr;
  const uint64_t* steps = nullptr;
  const uint16_t* key_fragments = nullptr;
  const uint16_t* value_fragments = nullptr;
  const float* scale = nullptr;

  // fp16 [count][kv_heads][head_dim], 16-byte aligned; keys post-RoPE, in block order.
  uint16_t* keys = nullptr;
  uint16_t* values = nullptr;
};

/// early: as LaunchEncode's. Errors: kUnsupported naming the head dim, or a transform that does not fit in
/// shared memory; kInvalidArgument for an empty range, or exact tokens without tiles.
Status LaunchUnpack(const UnpackParams& params, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
