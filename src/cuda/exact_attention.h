// Attention to the tokens that are kept in fp16: sinks and the recent window.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Fills params.exact_partial and exact_state, a partial a tile, in the unrotated value space.
/// early: as in query_prep.h.
Status LaunchExactAttention(const DecodeParams& params, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
