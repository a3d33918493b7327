// The seam between MatMul's bookkeeping (matmul.cc) and its vector kernels (matmul_int8.cc, matmul_float.cc):
// plain argument structs and one table of functions a SIMD target.
//
// Every kernel works on a *row group*: consecutive weight rows, one a vector lane. Lane r only ever adds up
// row r, over the elements in order, so the result of a (row, token) pair depends on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/tensor_type.h"

namespace blockgtq::cpu {

/// 32 activations of one token as int8: x[i] = scale * codes[i].
struct QuantBlock {
  int8_t codes[32];
  float scale;
  float sum;          // scale * (sum of codes): what a weight block's minimum is multiplied by
  int32_t minus_sum;  // -(sum of codes): times the code offset of a weight block, where its dot starts
  int32_t minus_low;  // -(sum of codes[0..15])
};
static_assert(sizeof(QuantBlock) == 48);

/// A row group of weights times some tokens.
struct GroupArgs {
  TensorType type;
  const uint8_t* weights;  // row r starts at weights + r * row_bytes; all rows of the group are readable
  ptrdiff_t row_bytes;
  int64_t cols;
  int64_t tokens;
  const void* x;         // int8: QuantBlock [cols / 32, tokens]; float: PackTokens' layout
  float* y;              // [tokens, rows of the group], overwritten
  bool prefetch_next;    // the following group's rows are readable too: fetch them meanwhile
  float* panel_scratch;  // float: [panel_floats]; int8: unused
};

struct Int8Kernels {
  int group_rows;
  /// x [tokens, cols] (row stride x_stride) -> out[block * out_stride + token].
  void (*quantize)(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, QuantBlock* out,
                   int64_t out_stride);
  /// The block types only.
  void (*multiply)(const GroupArgs& args);
};

struct FloatKernels {
  int group_rows;
  int tile_tokens;   // tokens multiplied at once
  int panel_floats;  // size of panel_scratch
  /// Any type. x: tiles of tile_tokens tokens (the last one smaller), each [cols, tokens of the tile].
  void (*multiply)(const GroupArgs& args);
};

/// The tables of the best SIMD target this machine has.
const Int8Kernels& BestInt8Kernels();
const FloatKernels& BestFloatKernels();

}  // namespace blockgtq::cpu
