// Queries and keys of a cache of latents on their way from the products to attention: rotated, put in block
// order, rounded to fp16, and stored where the cache keeps exact tokens. An exact tile of latents is K
// [tokens, head_dim] alone.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"
#include "src/cuda/elementwise_rope.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Where the exact tiles of a layer are, from RowTarget::exact on; or an uncompressed cache's pages.
struct LatentTiles {
  int64_t window_offset = 0, sink_offset = 0;
  int32_t window_tiles = 0;
  uint8_t* pool = nullptr;  // the layer's part of page p starts at pool + p * page_bytes
  int64_t page_bytes = 0;
};

struct LatentStoreCall {
  int64_t rows = 0;
  int32_t heads = 0, head_dim = 0, rotary_dims = 0;  // rotary_dims: even
  bool neox = false;                                 // RopeStoreCall
  float attention_factor = 1;
  const uint64_t* steps = nullptr;  // RopeSteps
  const float* q = nullptr;         // [rows, heads * head_dim]
  const float* k = nullptr;         // [rows, head_dim]

  // A query is `queries` times its query_scale, a power of two that brings its largest channel to [128, 256).
  uint16_t* queries = nullptr;   // fp16 [rows, heads, head_dim]
  float* query_scale = nullptr;  // [rows, heads]
  // mean: mu [head_dim], or null. query_offset: q . mu over the channels from rope_dims on.
  const float* mean = nullptr;
  int32_t rope_dims = 0;
  float* query_offset = nullptr;  // [rows, heads]

  uint16_t* keys = nullptr;            // fp16 [rows, head_dim], or null
  const RowTarget* targets = nullptr;  // [rows]
  LatentTiles tiles;
  /// One word: becomes the smallest position with a query or key that is not finite, or a key beyond half of
  /// fp16's range. Start it at INT32_MAX.
  int32_t* error = nullptr;
};

/// Errors: kInvalidArgument for an empty batch.
Status LaunchLatentStore(const LatentStoreCall& call, CUstream_st* stream);

/// Copies tokens [first, first + count) of a sequence's window to rows: token t to row t - base.
Status LaunchLatentGather(const uint8_t* exact, const LatentTiles& tiles, int32_t head_dim, int64_t first,
                          int64_t count, int64_t base, uint16_t* rows, CUstream_st* stream);

}  // namespace blockgtq::cuda
