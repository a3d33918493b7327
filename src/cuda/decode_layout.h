// Shared memory of the attention kernels: host and device agree by computing it alike.
#pragma once

#include <algorithm>

#include "src/cuda/decode_params.h"

namespace blockgtq::cuda {

/// What every warp reads of a head, in shared memory. The passes are those of the chosen layout.
template <bool kFew>
struct SharedHead {
  HeadHeader header;
  KeyGroup group[kMaxGroups];
  Pass passes[(kFew ? kMaxGroups : kMaxPasses) + 1];
};

constexpr int AlignShared(int bytes) { return (bytes + 127) / 128 * 128; }

/// Size of ExactScratch (exact_tile.cuh).
constexpr int ExactScratchBytes(int head_dim, int slots) {
  return (head_dim / kUnitWidth * kTileTokens * 4 + (kTileTokens + 8) * 2 + 4) * slots;
}

/// Floats of a row that blocks of a cluster send each other: sums of a query head's dims, its SoftmaxState,
/// and what makes it whole 16 bytes.
constexpr int MergeRow(int head_dim) { return head_dim + 4; }

/// Query heads that a block of a cluster finishes: heads rank, rank + blocks, ...
constexpr int HeadsABlock(int part_heads, int cluster_blocks) {
  return (part_heads + cluster_blocks - 1) / cluster_blocks;
}

/// Size of TileConstantsOfLanes (attention_tile.cuh).
constexpr int kTileConstantsBytes = 44 * 4;

/// Byte offsets. warps_a_tile: 4 where warps share tiles, else 1.
struct SharedLayout {
  int coded_tokens, tile_constants, heads, prefix, query, query_bytes, query_scratch, mean, scratch, factors,
      states, weights, part, rows, exact_states, inbox, ring, total;

  /// mean: whether some head has one; direct_units: of the model's traits.
  static constexpr SharedLayout For(int warps, int warps_a_tile, int head_dim, bool few, bool mean,
                                    int direct_units, int kv_heads, int batch, int query_block_bytes,
                                    int stages, int stage_bytes, int part_heads, int cluster_blocks) {
    SharedLayout s{};
    const int slots = few ? kFewQueryHeads : kMaxQueryHeads, rings = warps / warps_a_tile;
    // Barriers: the mean's constants; the inbox; full, empty a stage.
    s.coded_tokens = (2 + 2 * rings * stages) * 8;  // then the inbox's phase, the worker's number
    int at = AlignShared(s.coded_tokens + 16);
    s.tile_constants = at;
    at += AlignShared(kTileConstantsBytes);
    s.heads = at;
    at +=
        AlignShared(kv_heads * static_cast<int>(few ? sizeof(SharedHead<true>) : sizeof(SharedHead<false>)));
    s.prefix = at;
    at += AlignShared((batch + 1) * 4);
    s.query = at;
    s.query_bytes = AlignShared(query_block_bytes);
    at += s.query_bytes;
    s.query_scratch = at;
    at += MaxKeyUnits(head_dim) * 8 * 4;
    s.mean = at;  // MeanConstants of a head
    if (mean) at += AlignShared(MeanConstants::Bytes(head_dim, direct_units));
    // Used in turn: ExactScratch, the mean's tiles [warps][MeanTiles] (behind these two its factors), the
    // warps' outputs [warps][head_dim][slots], MergedOutput.
    s.scratch = at;
    int scratch_bytes = warps * slots * head_dim * 4;
    if (mean) {
      const int tile_bytes = warps * MeanTiles(warps, few) * MeanTileWords(few, direct_units) * 4;
      const int first_bytes = AlignShared(std::max(ExactScratchBytes(head_dim, slots), tile_bytes));
      s.factors = at + first_bytes;
      scratch_bytes = std::max(scratch_bytes, first_bytes + FactorBytes(head_dim, few));
    }
    at += scratch_bytes;
    s.states = at;  // [warps][slots]
    at += warps * slots * 8;
    s.weights = at;  // [warps][slots]
    at += warps * slots * 4;
    s.exact_states = at;  // [slots]
    at += slots * 8;
    s.part = AlignShared(at);  // [2][slots] rows: of codes, of exact tiles
    s.rows = s.part;           // NewRows, until the warps' sum of codes takes their place
    at = s.part + 2 * slots * MergeRow(head_dim) * 4;
    s.inbox = at;  // [blocks][2][heads a block] rows, from the cluster's other blocks
    if (cluster_blocks > 1) {
      at += 2 * cluster_blocks * HeadsABlock(part_heads, cluster_blocks) * MergeRow(head_dim) * 4;
    }
    s.ring = AlignShared(at);
    s.total = s.ring + rings * stages * stage_bytes;
    return s;
  }
};

/// The same for warp workers: query blocks and rings of every warp.
struct WarpSharedLayout {
  int heads, prefix, queries, query_bytes, ring, total;

  static constexpr WarpSharedLayout For(int warps, int kv_heads, int batch, int query_block_bytes, int stages,
                                        int stage_bytes) {
    WarpSharedLayout s{};
    int at = AlignShared((2 * warps + warps * stages) * 8);  // barriers: two query blocks, the stages
    s.heads = at;
    at += AlignShared(kv_heads * static_cast<int>(sizeof(SharedHead<true>)));
    s.prefix = at;
    at += AlignShared((batch + 1) * 4);
    s.queries = at;
    s.query_bytes = AlignShared(query_block_bytes);
    at += 2 * warps * s.query_bytes;
    s.ring = AlignShared(at);
    s.total = s.ring + warps * stages * stage_bytes;
    return s;
  }
};

}  // namespace blockgtq::cuda
