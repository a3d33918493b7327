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
/// table  fp16 [2 tiles][head_dim / 16 units][4][8], PhaseBytes(head_dim) a tile: element t of a unit has
///        (cos, sin) of blocks t and t + 4 at position 32 row + 15.5, then what rounding left of them
Status LaunchPhaseTable(const uint64_t* steps, int head_dim, int64_t first_tile, int64_t tiles,
                        uint16_t* table, CUstream_st* stream);

}  // namespace blockgtq::cuda
