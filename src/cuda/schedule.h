// Splits a step's tiles over the attention kernel's workers, on the device, from the sequence lengths:
// nothing of it is known to the host, so a captured graph stays right as sequences grow.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// coded_end  [batch] device; a sequence has ceil(coded_end / 64) tiles a head, none when coded_end <= sinks
/// ranges     [workers], tile_prefix [batch + 1], spans [batch * kv_heads]: device, overwritten
/// whole_workers: give every (sequence, head) whole workers where that unbalances them little; then no worker
/// crosses a border (one query block, one merge).
Status LaunchSchedule(const int32_t* coded_end, int sinks, int batch, int kv_heads, int workers,
                      bool whole_workers, WorkRange* ranges, int32_t* tile_prefix, WorkerSpan* spans,
                      CUstream_st* stream);

}  // namespace blockgtq::cuda
