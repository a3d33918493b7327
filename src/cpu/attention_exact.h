// Attention over an uncompressed cache (fp16 or fp32): sinks, the recent window, a prompt chunk attending to
// itself, and the fp16 / fp32 recipes. Single-threaded, one KV head a call; the honest baseline of every
// speed figure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/cpu/query_bounds.h"

namespace blockgtq::cpu {

enum class ExactType { kHalf, kFloat };

/// An exact tile holds `tile_tokens` consecutive tokens (a multiple of 16; 64 for pages, fewer for sinks):
/// K^T [head_dim, tile_tokens] then V [tile_tokens, head_dim], in the element type. K is transposed so that
/// the kernel runs along tokens without horizontal sums. A tile of latents is K [tile_tokens, head_dim],
/// which is V too: the kernel turns it on its way, once for all queries. cache/kv_cache.h allocates tiles;
/// this is their only reader and writer.
struct ExactLayout {
  ExactType type = ExactType::kHalf;
  int head_dim = 0;  // a multiple of 16
  int tile_tokens = 64;
  bool latents = false;
};

/// Writes the token of slot `slot` of a tile. key, value: [head_dim]; latents have no value of their own.
void StoreExact(const ExactLayout& layout, const float* key, const float* value, int slot, std::byte* tile);
/// Reads it back (widened): what the encoder takes when a page leaves the window. value: untouched for
/// latents.
void LoadExact(const ExactLayout& layout, const std::byte* tile, int slot, float* key, float* value);

/// Attends queries [count] to tokens [begin, end): tokens n j .. n j + n - 1 (n = tile_tokens) are at
/// tiles[j]; only tiles that [begin, end) touches are read.
///
/// queries    [count] pointers to [head_dim] post-RoPE, block order, unscaled
/// bounds     of the queries, within [begin, end)
/// out        [count, head_dim] normalised; lse [count] natural log; -infinity and 0 for a query that sees no
/// token scratch    ExactScratchFloats(head_dim, count) floats
void AttendExact(const ExactLayout& layout, std::span<const float* const> queries, float scale,
                 std::span<const std::byte* const> tiles, int64_t begin, int64_t end,
                 const QueryBounds& bounds, float* scratch, float* out, float* lse);
int64_t ExactScratchFloats(int head_dim, int count);

}  // namespace blockgtq::cpu
