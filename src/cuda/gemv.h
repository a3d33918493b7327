// Matrix products with few rows of input: bound by reading the weights. One launch serves all products that
// share an input.
#pragma once

#include <cstdint>
#include <span>

#include "blockgtq/status.h"
#include "src/cuda/matmul_item.h"

struct CUstream_st;

namespace blockgtq::cuda {

inline constexpr int kGemvMaxItems = 4;
/// Rows of input; with a low half, half as many.
inline constexpr int kGemvMaxRows = 16;

/// How a launch divides the weights. Any choice gives the same sums up to rounding; one choice always gives
/// the same bits.
struct GemvTiling {
  int tiles = 1;  // of 16 weight rows that a block does at once: 1 or 2
  int split = 1;  // blocks that share the input dimension of a product: 1, 2 or 4
};

/// A good tiling for a device of `processors` SMs.
GemvTiling ChooseGemvTiling(std::span<const MatMulItem> items, int64_t rows, bool has_low, int processors);

/// items  1 .. kGemvMaxItems products
/// x_hi   fp16 [rows, in], 16-byte aligned; in is a multiple of 8
/// x_lo   the same shape, or null
/// early  it may start before the kernel ahead of it in the stream has finished: it then streams weights
/// (which
///        that kernel must not write), and waits before it reads anything else or writes. The kernel behind
///        it may start once this wait is over.
/// Errors: kInvalidArgument for sizes that break these rules.
Status LaunchGemv(std::span<const MatMulItem> items, const uint16_t* x_hi, const uint16_t* x_lo, int64_t rows,
                  int64_t in, const GemvTiling& tiling, int processors, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
