// For warp workers (decode_warp_kernel.cu), the first of three kernels: queries into the rotated space,
// rounded to int8. Other configurations prepare queries in the attention kernel.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Fills params.query_blocks for head dim 128, at most kFewQueryHeads query heads and no mean.
/// early: it may start before the kernel ahead of it in the stream has finished; it waits for that one before
/// it reads the queries.
Status LaunchQueryPrep(const DecodeParams& params, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
