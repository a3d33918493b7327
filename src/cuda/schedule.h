// Splits a step's tiles over the attention kernel's workers, on the device, from the sequence lengths:
// nothing of it is known to the host, so a captured graph stays right as sequences grow.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Fills params.ranges, tile_prefix and spans from coded_end and, with a window, length: a sequence has the
/// tiles of its CodeRange a work head, and one where nothing is coded. Counts params.step. A worker gets at
/// least cluster_blocks tiles where there are more workers than pairs. whole_workers: give every (sequence,
/// head) whole workers where that unbalances them little; then no worker crosses a border (one query
/// preparation, one merge).
Status LaunchSchedule(const DecodeParams& params, bool whole_workers, CUstream_st* stream);

}  // namespace blockgtq::cuda
