// Matrix products with few rows of input: bound by reading the weights. One launch serves all products that
// share an input, and can take the RMS norm before them and the feed-forward's gate behind them along.
#pragma once

#include <cstdint>
#include <span>

#include "blockgtq/status.h"
#include "src/cuda/matmul_item.h"

struct CUstream_st;

namespace blockgtq::cuda {

inline constexpr int kGemvMaxItems = 4;
inline constexpr int kGemvMaxRows = 16;  // of input; with a low half, half as many
/// Elements of input (rows * in) up to which the norm can be taken along: every block does it for itself.
inline constexpr int kGemvMaxNormed = 4096;

struct GemvCall {
  std::span<const MatMulItem> items;  // 1 .. kGemvMaxItems
  int64_t rows = 0, in = 0;           // in: a multiple of 8

  // The input: fp16 [rows, in], 16-byte aligned, low half or null ...
  const uint16_t* x_hi = nullptr;
  const uint16_t* x_lo = nullptr;
  // ... or, where x is not null, fp32 rows that are normalised as LaunchRmsNorm does and rounded to fp16.
  // rows * in <= kGemvMaxNormed, rows <= 8, in a multiple of 32.
  const float* x = nullptr;            // [rows, in]
  const float* norm_weight = nullptr;  // [in]
  float epsilon = 0;

  // Not null: the items are gate and up, of the same shape, without bias; what is written is not their y but
  // silu(gate) * up / kInnerScale, fp16 [rows, out]. rows <= 8, no low half.
  uint16_t* inner = nullptr;
};

/// Tiles of 16 weight rows that a block does at once, 1 or 2: what suits the shape on `processors` SMs.
int ChooseGemvTiles(std::span<const MatMulItem> items, int processors);

/// tiles: 1 or 2 (2 with `inner`). The same call gives the same bits each time; another number of tiles may
/// round differently.
/// early  it may start before the kernel ahead of it in the stream has finished: it then streams weights
/// (which
///        that kernel must not write), and waits before it reads anything else or writes. The kernel behind
///        it may start once this wait is over.
/// Errors: kInvalidArgument for what breaks the rules above.
Status LaunchGemv(const GemvCall& call, int tiles, int processors, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
