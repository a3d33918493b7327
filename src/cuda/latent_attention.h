// Attention over a cache of latents (plan.h): all query heads read the same keys, whose last dims are the
// values. What attends are *vectors*: the query heads of a row, row after row. Rows in *groups* of group_rows
// share a sequence, and so the tiles (64 tokens) that a block of vectors goes through.
//
//   1. LaunchLatentQueries     q~, the queries in the codes' space
//   2. LaunchLatentAttention   partial outputs: of codes in their space, of exact tokens in theirs
//   3. LaunchLatentMerge       the parts by their log-sum-exps, and the codes' back from their space
//
// Lengths are read on the device; a captured graph stays right as sequences grow.
#pragma once

#include <cstdint>
#include <vector>

#include "blockgtq/status.h"
#include "src/cuda/latent_table.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Where exact tokens lie: rows [tokens, head_dim] of fp16.
enum class LatentExact : int32_t {
  kTiles,  // a window ring and sinks
  kRows,   // one run of rows
  kPages,  // an uncompressed cache's pages
};

/// Device pointers unless said. V = rows * heads vectors.
struct LatentParams {
  int32_t rows = 0, heads = 0, group_rows = 1;  // group_rows divides rows
  int32_t head_dim = 0, latent_dims = 0;
  float logit_scale = 1;                      // of q . k, times log2 e
  int32_t code_splits = 0, exact_splits = 0;  // blocks that share a group's tiles; 0: none of that kind

  // As LaunchLatentStore leaves them.
  const uint16_t* queries = nullptr;
  const float* query_scale = nullptr;
  const float* query_offset = nullptr;  // null without a mean of the latent

  // What each row sees: exact sinks [0, min(sinks, length)), codes [sinks, coded_end), exact tokens from
  // max(sinks, coded_end) to length.
  const int32_t* coded_end = nullptr;  // [rows]
  const int32_t* length = nullptr;     // [rows]
  int32_t sinks = 0;

  const int32_t* block_table = nullptr;  // of group g at block_table + g * table_stride
  int64_t table_stride = 0;
  const uint8_t* pool = nullptr;  // the layer's part of block b starts at pool + b * block_bytes
  int64_t block_bytes = 0;

  LatentExact exact_kind = LatentExact::kTiles;
  const uint8_t* const* exact = nullptr;       // [rows]: kTiles; sinks of the other kinds too
  int64_t window_offset = 0, sink_offset = 0;  // of the layer, from `exact` on
  int32_t window_tiles = 0;
  const uint16_t* exact_rows = nullptr;  // kRows: of tokens from first_exact_row on, a multiple of 64
  int64_t first_exact_row = 0;

  // LatentTable.
  const LatentUnit* units = nullptr;
  int32_t unit_count = 0, record_bytes = 0, norm_begin = 0, norm_count = 0, columns = 0, key_columns = 0;
  float code_scale = 1;
  const uint16_t* query_fragments = nullptr;
  const uint16_t* unrotate_fragments = nullptr;
  float unrotate_scale = 1;
  const float* key_mean = nullptr;  // mu [head_dim]
  bool has_latent_mean = false;
  const int32_t* mean_units = nullptr;  // [mean_unit_count] of the rope key
  int32_t mean_unit_count = 0;
  float mean_query = 0, mean_key = 0;
  const uint64_t* steps = nullptr;  // RopeSteps
  int32_t rotary_dims = 0;
  float attention_factor = 1;

  // Between the kernels.
  uint16_t* code_queries = nullptr;  // fp16 [V][columns]
  float* part_lse = nullptr;         // [code_splits + exact_splits][V], base 2; -infinity: nothing seen
  float* code_parts = nullptr;       // [code_splits][V][columns - key_columns]
  float* exact_parts = nullptr;      // [exact_splits][V][latent_dims]
  uint16_t* merged_codes = nullptr;  // fp16 [V][columns - key_columns]
  float* merged = nullptr;           // [V][latent_dims]

  uint16_t* out = nullptr;  // fp16 [V][head_dim]: the last latent_dims of each, zeros before them
};

/// Bytes of the memory between the kernels for V vectors, and where in it each array lies.
int64_t LatentScratchBytes(const LatentParams& params);
void BindLatentScratch(uint8_t* scratch, LatentParams& params);

/// Splits that fill `processors`, for at most `tiles` tiles of a kind a group.
int LatentSplits(const LatentParams& params, int processors, int64_t tiles);

Status LaunchLatentQueries(const LatentParams& params, CUstream_st* stream);
/// Errors: kUnsupported when a tile does not fit in shared memory, naming both sizes.
Status LaunchLatentAttention(const LatentParams& params, CUstream_st* stream);
Status LaunchLatentMerge(const LatentParams& params, CUstream_st* stream);
/// All of it.
Status LaunchLatents(const LatentParams& params, CUstream_st* stream);

}  // namespace blockgtq::cuda
