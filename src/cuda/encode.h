// Encoding on the GPU: fp16 keys and values of tokens of one page become their bits of the page's records.
// One launch serves a list of jobs in device memory, for one layer or for all at once.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"
#include "src/cache/kv_cache.h"
#include "src/cuda/encode_table.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Tokens [begin, end) of one page of one sequence. Two jobs of a launch must not share a page.
struct alignas(16) EncodeJob {
  const uint8_t* exact = nullptr;  // tiles: the sequence's exact tiles (DecodeParams::exact)
  // Rows: the row of the token at slot `begin`; the others follow. Of a prompt's chunk, rows count from its
  // first token that has no codes.
  int64_t first_row = 0;
  int64_t position = 0;                 // of slot 0, a multiple of 64
  int32_t block[kMostPageGroups] = {};  // in the pool of each group of layers (KvCache::groups)
  int32_t begin = 0, end = 0;           // slots, 0 <= begin < end <= 64
  int32_t spare[2] = {};
};

/// Device pointers unless said.
struct EncodeParams {
  int32_t head_dim = 0, kv_heads = 0, key_units = 0;  // EncodeTable's
  int32_t first_layer = 0, layers = 0;                // layers [first_layer, first_layer + layers)

  const EncodeJob* jobs = nullptr;     // [at least *job_count]
  const int32_t* job_count = nullptr;  // read on the device: 0 does nothing
  int32_t max_jobs = 0;                // host: *job_count never exceeds it

  // By group (EncodeHead::group): records of block b start at pool + b * block_bytes.
  uint8_t* pool[kMostPageGroups] = {};
  int64_t block_bytes[kMostPageGroups] = {};

  // EncodeTable's arrays.
  const EncodeHead* heads = nullptr;
  const uint16_t* key_transform = nullptr;
  const uint16_t* value_transform = nullptr;
  const float* key_mean = nullptr;
  const float* slot_rotation = nullptr;
  const uint64_t* steps = nullptr;

  // Source 1, when keys is null: the window. Tile of (layer, head) at job.exact + window_offset[layer]
  // + (head * window_tiles + (position / 64) % window_tiles) * 4 * 64 * head_dim: K^T [head_dim, 64], V [64,
  // head_dim], fp16.
  const int64_t* window_offset = nullptr;  // [all layers]
  int32_t window_tiles = 0;
  // Source 2, of one layer: fp16 rows [rows][kv_heads][head_dim], post-RoPE, block order; 16-byte aligned.
  const uint16_t* keys = nullptr;
  const uint16_t* values = nullptr;

  /// One word: becomes the smallest position whose key or value is not finite; that token's bits stay as they
  /// were. Start it at INT32_MAX.
  int32_t* error = nullptr;
};

/// Writes each job's bits into its records; bits of other tokens stay. For a given scale the codes are those
/// of reference::EncodeKeys up to fp16 rounding near ties. early: it may start before the kernel ahead of it
/// in the stream has finished, and waits for that one before it reads jobs or their tokens, or writes.
/// Errors: kUnsupported naming the head dim, or a transform that does not fit in shared memory;
/// kInvalidArgument for rows of several layers, or no jobs at all.
Status LaunchEncode(const EncodeParams& params, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
