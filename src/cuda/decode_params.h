// What the decode kernels read: plain data, no CUDA headers. Built by head_table.h (constants of a layer) and
// decode_attention.h (a step's configuration, scratch).
#pragma once

#include <cstdint>

#include "src/cuda/mean_layout.h"

namespace blockgtq::cuda {

inline constexpr int kTileTokens = 64;     // tokens a record
inline constexpr int kUnitWidth = 16;      // dims a unit
inline constexpr int kMaxGroups = 8;       // key groups of a head
inline constexpr int kMaxQueryHeads = 8;   // query heads a part: the columns of one tensor product
inline constexpr int kMaxGroupHeads = 16;  // query heads a KV head, attended to in parts
inline constexpr int kFewQueryHeads = 4;   // up to so many, the low halves of queries ride in spare columns
inline constexpr int kMaxPasses = 2 * kMaxGroups;
inline constexpr int kMaxClusterBlocks = 16;
inline constexpr int kMaxLaunchesAStep = 256;
/// A 32nd of ByteAt15() (attention_tile.cuh), 2^15 + norm byte, is this + log2(norm / its reference).
inline constexpr float kNormExponentBias = 1028.0f;

/// Key units of a head, padding included: all groups but one may have one that is not full.
constexpr int MaxKeyUnits(int head_dim) { return head_dim / kUnitWidth + kMaxGroups - 1; }

/// Groups at least so wide take queries of 16 bits (hi + lo). With few heads the lo part costs half a percent
/// of the time, so every group takes it; otherwise it is a second pass over the codes.
constexpr int LowQueryWidth(bool few_heads) { return few_heads ? 1 : 5; }

/// One walk over a group's units. width 0 ends a list.
struct alignas(16) Pass {
  int32_t codes;  // byte offset of the group's first unit in the record
  int32_t norms;  // byte offset of the group's norms
  int32_t query;  // word offset of the pass's query fragments in the query block
  uint8_t width, units, spare[2];
};

struct alignas(16) KeyGroup {
  int32_t width, first_unit, units;
  float scale;  // norm_reference / sqrt(dims) / codebook scale: of integer dot products, before the norm
};

/// The part of a head's constants that every warp of the attention kernel reads.
struct alignas(16) HeadHeader {
  int32_t record_bytes;
  int32_t record_offset;  // of the head's record in the layer's part of a page
  int32_t value_codes, value_norms;
  int32_t value_width, groups, key_units, mean_units;
  float value_scale;  // norm_reference / sqrt(head_dim) / codebook scale
  // Of the mean (mean_layout.h); a unit is frequency blocks [8 u, 8 u + 8). Slot s of the series is unit
  // series_first + s.
  int32_t series_first, series_units, direct_units;
  uint8_t direct_unit[kMaxDirectUnits];
};

struct alignas(16) DeviceHead {
  HeadHeader header;
  KeyGroup group[kMaxGroups];
  Pass many[kMaxPasses + 1];  // hi and lo queries as two passes
  Pass few[kMaxGroups + 1];   // lo queries in the odd columns of the same pass
};

/// The prepared queries of one (sequence, KV head), as the attention kernel copies them to shared memory:
///   hi   u32 [units][32]   m16n8k16 B fragments: byte j of lane 4 c + t is dim 4 t + j of column c
///   lo   u32 [units][32]   absent with few heads
///   scale f32 [passes][8], offset f32 [passes][8] that makes accumulators dot products
struct QueryBlockLayout {
  int32_t units, passes;
  int32_t lo, scale, offset, bytes;  // byte offsets; bytes is a multiple of 128
  static constexpr int32_t Passes(bool few_heads) { return few_heads ? kMaxGroups : kMaxPasses; }
  static constexpr QueryBlockLayout For(int units, bool few_heads) {
    QueryBlockLayout l{};
    l.units = units;
    l.passes = Passes(few_heads);
    l.lo = 128 * units;
    l.scale = (few_heads ? 1 : 2) * 128 * units;
    l.offset = l.scale + 32 * l.passes;
    l.bytes = (l.offset + 32 * l.passes + 127) / 128 * 128;
    return l;
  }
};

/// What a sequence attends to of its codes: tokens [begin, end), none where begin >= end, in the tiles from
/// first_tile on.
struct CodeRange {
  int32_t begin, end, first_tile;
  /// window: tokens that the last of `length` sees, itself included; 0: all, and `length` does not matter.
  static constexpr CodeRange For(int32_t sinks, int32_t window, int32_t coded_end, int32_t length) {
    const int32_t seen = FirstSeen(window, length);
    const int32_t begin = seen > sinks ? seen : sinks;
    return {begin, coded_end, coded_end > begin ? seen / kTileTokens : 0};
  }
  /// The first token that the last of `length` sees.
  static constexpr int32_t FirstSeen(int32_t window, int32_t length) {
    return window > 0 && length > window ? length - window : 0;
  }
  constexpr bool any() const { return end > begin; }
};

/// Tiles [begin, end) of one worker, counted over all (sequence, work head, tile); its first is tile `tile`
/// of those before `tiles` of (sequence, head), from CodeRange::first_tile on. A sequence without codes
/// counts one tile a head, so that some worker writes its output. Workers are numbered in the order of tiles.
struct alignas(16) WorkRange {
  int32_t begin, end, sequence, head, tile, tiles, worker, spare;
};
/// Workers whose ranges touch a (sequence, work head): [first, first + count), none of them empty.
struct alignas(8) WorkerSpan {
  int32_t first, count;
};
/// Largest logit and sum of exp2(logit - largest), in units of log2.
struct alignas(8) SoftmaxState {
  float largest, sum;
};

struct RowTarget;  // elementwise_rope.h

/// Of a decode step with a recent window, where the attention kernel itself rotates the new token's rows and
/// stores its key and value (fused_rope.cuh): what RopeStoreCall has for a kernel of its own.
struct FusedRope {
  bool enabled;
  bool neox;  // the model pairs (j, j + rotary_dims / 2); otherwise (2j, 2j + 1)
  int32_t rotary_dims;
  float attention_factor;
  const uint64_t* steps;  // RopeSteps
  // fp32, as the products leave them.
  const float* q;            // [batch][kv_heads * query_heads][head_dim]
  const float* k;            // [batch][kv_heads][head_dim]
  const float* v;            // [batch][kv_heads][head_dim]
  const RowTarget* targets;  // [batch]; of position length - 1, in the window's ring
  int32_t* error;            // as RopeStoreCall::error
};

/// One attention call: one layer, one new token of every sequence. Pointers are device memory. A work head is
/// a part of a KV head with up to 8 of its query heads: head_parts a KV head, in order.
struct DecodeParams {
  int32_t batch, kv_heads, query_heads;  // query heads a KV head
  int32_t head_parts,
      part_heads;      // work heads a KV head; query heads of a part (the last ones may have fewer)
  int32_t work_heads;  // kv_heads * head_parts
  int32_t head_dim;
  float logit_scale;  // 1 / sqrt(head_dim) (times any model factor) * log2(e)

  // The batch. Codes are attended for tokens [sinks, coded_end), fp16 tiles for [0, min(sinks, length)) and
  // [max(coded_end, sinks), length); of each, with a window, the tokens from length - window on.
  const int32_t* coded_end;  // [batch]
  const int32_t* length;     // [batch]; only read when exact_tiles > 0 or window > 0
  int32_t sinks;
  int32_t window;  // of the layer: tokens that a token sees, itself included; 0: all
  // [batch][max_pages]; the first entry is read even where nothing is coded, those before the window are not.
  const int32_t* block_table;
  int64_t max_pages;
  const uint8_t* pool;  // the layer's part of page p starts at pool + p * page_bytes
  int64_t page_bytes;

  // Exact tiles: K^T [head_dim, tile_tokens], V [tile_tokens, head_dim] in fp16, laid out as cache/kv_cache.h
  // does. Row b of the batch has its tiles at exact[b]; token t of the window is in ring tile
  // (t / 64) % window_tiles.
  int32_t exact_tiles;  // tiles that a sequence may have: one for the sinks + window_tiles; 0: none at all
  int32_t window_tiles, sink_tile_tokens;
  const uint8_t* const* exact;  // [batch]
  int64_t window_offset;        // the layer's window: + (head * window_tiles + ring tile) * tile bytes
  int64_t sink_offset;          // the layer's sinks: + head * tile bytes

  // Constants of the layer (head_table.h).
  const DeviceHead* heads;          // [kv_heads]
  const uint16_t* query_transform;  // fp16 A fragments [kv_heads][max_key_units][head_dim / 16][32][8]
  const uint16_t* value_fragments;  // fp16 A fragments [kv_heads][head_dim / 16][head_dim / 16][32][8]
  const uint8_t* mean_constants;    // [kv_heads][MeanConstants::Bytes(head_dim, max_direct_units)]
  int32_t max_key_units, max_direct_units;
  // Of the model, only read where a head has a mean; tiles up to the longest coded_end (phase_table.h).
  const uint16_t* phases;

  // fp16 [batch][kv_heads * query_heads][head_dim], post-RoPE, block order; not read with `rope`
  const uint16_t* queries;
  FusedRope rope;
  uint16_t* out;  // fp16, the same shape

  // Scratch of the step, shared by its layers.
  QueryBlockLayout query_layout;
  uint8_t* query_blocks;       // [batch * work_heads][query_layout.bytes]
  const WorkRange* ranges;     // [workers], in the order in which they start
  const int32_t* tile_prefix;  // [batch + 1] tiles of earlier sequences, of one head
  const WorkerSpan* spans;     // [batch * work_heads]

  // Partials of workers that share a pair: slot pair + worker holds one worker's output, normalised, and the
  // log2 of its sum of exp2(logit). Warp workers leave them in scratch, as floats, to the kernel that merges
  // them.
  float* partial;          // [slots][8][head_dim]
  float* partial_log_sum;  // [slots][8]
  // Other workers send them to the pair's first one while it runs: words (value, flag), which are there when
  // the flag is this launch's. Memory of its own that holds nothing else, so that no other word looks like
  // one.
  uint32_t* step;          // counts schedules
  uint64_t* sent;          // [slots][8][head_dim]
  uint64_t* sent_log_sum;  // [slots][8]
  uint32_t launch;         // below kMaxLaunchesAStep, another for every launch between two schedules

  // Configuration of the attention kernel. A worker is a cluster of blocks, or one warp.
  int32_t workers, cluster_blocks, stages, stage_bytes;
  bool codes_once;  // a step reads more codes than L2 keeps until the next one
  bool early;       // it may start before the kernel ahead of it in the stream has finished

  // Of work head h (head_parts is 1, 2 or 4):
  constexpr int KvHead(int h) const { return h >> head_parts / 2; }
  constexpr int Part(int h) const { return h & (head_parts - 1); }
};

}  // namespace blockgtq::cuda
