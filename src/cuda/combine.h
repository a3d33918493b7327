// For warp workers (decode_warp_kernel.cu), the last of three kernels: exact tiles, the merge of the workers'
// partials, the un-rotation of V. Other configurations do this in the attention kernel.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Writes params.out for head dim 128. A sequence without any token gets zeros.
Status LaunchCombine(const DecodeParams& params, CUstream_st* stream);

}  // namespace blockgtq::cuda
