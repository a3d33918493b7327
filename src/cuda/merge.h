// Attention over two sets of tokens, merged: each part brings its normalised output and the logarithm of its
// sum of exponentials.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"

struct CUstream_st;

namespace blockgtq::cuda {

struct AttentionPart {
  const uint16_t* out = nullptr;   // fp16 [rows][heads][head_dim]; read only where its weight is not zero
  const float* log_sum = nullptr;  // [rows][heads] natural logarithm; -infinity: no token
};

/// out (fp16) and log_sum (may be null) of both parts together; zeros and -infinity where neither has a
/// token. out may be a part's out, log_sum a part's log_sum. head_dim: a multiple of 8. early: it may start
/// before the kernel ahead of it in the stream has finished; it waits for that one itself. Errors:
/// kInvalidArgument for other head dims.
Status LaunchMerge(const AttentionPart& a, const AttentionPart& b, int64_t rows, int heads, int head_dim,
                   uint16_t* out, float* log_sum, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
