// First kernel of a layer's decode attention: queries into the rotated space, rounded to int8.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Fills params.query_blocks. few_heads: lay lo queries beside the hi ones (query_heads <= kFewQueryHeads).
/// early: it may start before the kernel ahead of it in the stream has finished; it waits for that one before
/// it reads the queries.
Status LaunchQueryPrep(const DecodeParams& params, bool few_heads, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
