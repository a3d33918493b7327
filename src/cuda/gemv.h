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
inline constexpr int kGemvMaxRows = 16;  // of input; with a low half, half as many

struct GemvCall {
  std::span<const MatMulItem> items;  // 1 .. kGemvMaxItems
  int64_t rows = 0, in = 0;           // in: a multiple of 8
  const uint16_t* x_hi = nullptr;     // fp16 [rows, in], 16-byte aligned
  const uint16_t* x_lo = nullptr;     // the low half, or null
};

/// Tiles of 16 weight rows that a block does at once, 1 or 2: what suits the shape on `processors` SMs.
int ChooseGemvTiles(std::span<const MatMulItem> items, int64_t rows, bool has_low, int64_t in,
                    int processors);

/// tiles: 1 or 2. The same call gives the same bits each time; another number of tiles may round differently.
/// early: it may start before the kernel ahead of it in the stream has finished. It then streams weights,
/// which that kernel must not write, and waits before it reads anything else or writes. The kernel behind it
/// may start once this wait is over. Errors: kInvalidArgument for what breaks the rules above.
Status LaunchGemv(const GemvCall& call, int tiles, int processors, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
