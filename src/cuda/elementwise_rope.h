// Queries, keys and values on their way from the products to attention: rotated, put in block order, rounded
// to fp16, and stored where the cache keeps exact tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/kv_cache.h"
#include "src/core/rope.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Per frequency block, the angle of one token in 2^-64 turns: [head_dim / 2]; upload it once a model.
std::vector<uint64_t> RopeSteps(const RopeConfig& config);

/// Where one row of a batch is and goes. Written once a step: it serves every layer.
struct alignas(16) RowTarget {
  uint8_t* exact = nullptr;  // the sequence's exact tiles of all layers (DecodeParams::exact); may be null
  int32_t position = 0;      // of the token in its sequence
  int32_t window_tile = -1;  // ring tile that takes it, at slot position % 64; -1: none
  int32_t sink_slot = -1;    // slot of the sinks' tile that takes it; -1: none
  // Page of an uncompressed cache that takes it, at slot position % 64, in each group of layers
  // (KvCache::groups); -1: none.
  int32_t page[kMostPageGroups] = {-1, -1};
  int32_t spare = 0;
};

struct RopeStoreCall {
  int64_t rows = 0;
  int32_t heads = 0, kv_heads = 0, head_dim = 0;  // head_dim: 64, 128 or 256
  int32_t rotary_dims = 0;
  bool neox = false;  // the model pairs (j, j + rotary_dims / 2); otherwise (2j, 2j + 1)
  float attention_factor = 1;
  const uint64_t* steps = nullptr;  // RopeSteps

  // As the products leave them.
  const float* q = nullptr;  // [rows, heads * head_dim]
  const float* k = nullptr;  // [rows, kv_heads * head_dim]
  const float* v = nullptr;
  // fp16; queries and keys rotated, in block order. Each may be null: not wanted.
  uint16_t* q_out = nullptr;  // [rows, heads, head_dim]
  uint16_t* k_out = nullptr;  // [rows, kv_heads, head_dim]
  uint16_t* v_out = nullptr;

  const RowTarget* targets = nullptr;  // [rows]
  // Exact tiles, K^T [head_dim, tokens] then V [tokens, head_dim], as decode_params.h describes them.
  int64_t window_offset = 0, sink_offset = 0;  // of the layer, from RowTarget::exact
  int32_t window_tiles = 0, sink_tile_tokens = 0;
  // Pages of an uncompressed cache: a head has K [64, head_dim] then V [64, head_dim].
  int32_t group = 0;        // of the layer
  uint8_t* pool = nullptr;  // the layer's part of page p starts at pool + p * page_bytes
  int64_t page_bytes = 0;

  /// One word: becomes the smallest position with a query, key or value that is not finite or too large for
  /// fp16 (keys and values: for half of its range). Start it at INT32_MAX.
  int32_t* error = nullptr;
};

/// early: it may start before the kernel ahead of it in the stream has finished, and waits for that one
/// before it reads rows or writes, but not before it reads targets and steps, which no kernel that may still
/// run may write. The kernel behind it may start at once. Errors: kUnsupported naming the head dim;
/// kInvalidArgument for an empty batch.
Status LaunchRopeStore(const RopeStoreCall& call, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
