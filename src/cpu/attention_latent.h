// Attention of a block of queries over packed records of latents (plan.h): a key is its codes' value in their
// own space, so a tile is decoded once for all query heads and attended to in float32, without expanding it
// to heads. Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/cpu/attention_codes.h"

namespace blockgtq::cpu {

/// Queries rotated into the space of the codes. As PrepareQueries.
void PrepareLatentQueries(const PackedHead& head, std::span<const float* const> queries, float scale,
                          PreparedQueries& out);

/// As AttendCodes, but out is [count, head_dim]: the mean of the decoded keys, of which the last latent_dims
/// are the output and those before them mean nothing.
void AttendLatents(const PackedHead& head, const PreparedQueries& queries, int count,
                   std::span<const std::byte* const> records, int64_t begin, int64_t end,
                   const QueryBounds& bounds, const RopeTable& rope, CodesScratch& scratch, float* out,
                   float* lse);

/// Adds a part to a running softmax-weighted mean: out [rows, dim], lse [rows], -infinity where nothing was
/// seen.
void MergePart(int64_t rows, int dim, const float* part, const float* part_lse, float* out, float* lse);

}  // namespace blockgtq::cpu
