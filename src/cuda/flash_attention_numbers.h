// The numbers of a prompt chunk that cuDNN reads from device memory.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"

struct CUstream_st;

namespace blockgtq::cuda {

struct PrefillNumbers {
  int32_t rows, tokens;
  int32_t row_elements[2];      // first and end of the rows of queries and out
  int32_t log_sum_elements[2];  // of log_sum
};

/// Writes *at (device memory) in stream order; a captured launch keeps the numbers it was captured with.
Status LaunchSetNumbers(const PrefillNumbers& numbers, PrefillNumbers* at, CUstream_st* stream);

}  // namespace blockgtq::cuda
