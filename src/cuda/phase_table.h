// Phases of every frequency block at the centres of half tiles: what turns a key mean to its position
// (mean_bias.cuh). One table a model, for all layers, heads and sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/rope.h"
#include "src/cuda/mean_layout.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Angle of half a token of each frequency block, in 2^-64 turns: [head_dim / 2].
std::vector<uint64_t> HalfTokenSteps(const RopeConfig& rope);

/// Writes the phases of `tiles` tiles from tile `first_tile` on.
/// steps  HalfTokenSteps on the device
/// table  fp16 [tiles][head_dim / 16 units][high, low][4][8], PhaseBytes(head_dim) a tile: element t of a
/// unit
///        has (cos, sin) of block t at the centres of both half tiles, then of block t + 4; low is what
///        rounding left of high. That is the A fragment of a product whose rows g, g + 8 are one tile's
///        halves
Status LaunchPhaseTable(const uint64_t* steps, int head_dim, int64_t first_tile, int64_t tiles,
                        uint16_t* table, CUstream_st* stream);

}  // namespace blockgtq::cuda
