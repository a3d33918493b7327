// The largest element of each row: greedy sampling without sending logits to the host.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// out[r] = the index of the largest of x[r] (fp32 [rows, cols]), the lowest of equals; -1 when the row has a
/// NaN or +infinity, or no element above -infinity. out: device.
Status LaunchArgMax(const float* x, int64_t rows, int64_t cols, int32_t* out, CUstream_st* stream);

}  // namespace blockgtq::cuda
