// Splits a step's tiles over the attention kernel's workers, on the device, from the sequence lengths:
// nothing of it is known to the host, so a captured graph stays right as sequences grow.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

struct WorkerTraits {
  /// Give every (sequence, head) whole workers where that unbalances them little; then no worker crosses a
  /// border (one query preparation, one merge).
  bool whole;
  int round_tiles;  // tiles that a worker attends to at a time
  int resident;     // workers that the device runs at once
};

/// Fills params.ranges, tile_prefix and spans from coded_end and, with a window, length: a sequence has the
/// tiles of its CodeRange a work head, and one where nothing is coded. Counts params.step. A worker gets at
/// least cluster_blocks tiles where there are more workers than pairs. Where all run at once, whole workers
/// start in the order of their numbers in their pairs, every pair's first one first; the last ones, which
/// wait until the workers that merge in the kernel before have ended, get about one round less.
Status LaunchSchedule(const DecodeParams& params, const WorkerTraits& traits, CUstream_st* stream);

}  // namespace blockgtq::cuda
