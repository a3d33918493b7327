// Operations on the columns of activations that belong to heads (HeadColumns of backend.h): copies, and
// products with a matrix of each head's own.
#pragma once

#include <cstdint>
#include <span>

#include "blockgtq/status.h"
#include "src/backend/backend.h"

struct CUstream_st;

namespace blockgtq::cuda {

inline constexpr int kMaxProductHeads = 256;  // their matrices' addresses travel as a kernel's arguments

/// Copies the columns `from` of x to the columns `to` of y for every head: fp32 [rows, x_cols], [rows,
/// y_cols].
Status LaunchCopyHeads(const float* x, int64_t x_cols, const HeadColumns& from, int heads, int64_t rows,
                       float* y, int64_t y_cols, const HeadColumns& to, CUstream_st* stream);

/// x of a product: fp32, or its halves (matmul_item.h). Device pointers.
struct HeadInput {
  const float* full = nullptr;                     // [rows, cols], or null:
  const uint16_t *high = nullptr, *low = nullptr;  // fp16 [rows, cols]; low may be null
  float scale = 1;                                 // x is that much larger than its halves
  bool split = false;                              // fp32 enters with a low half as well
  int64_t cols = 0;
};

/// y_h = W_h x_h: weights[h] fp16 [to.width, from.width], 16-byte aligned; y fp32 [rows, y_cols].
/// Errors: kUnsupported for more than kMaxProductHeads heads, a from.width that is no multiple of 8, or too
/// large for shared memory.
Status LaunchProductHeads(std::span<const uint16_t* const> weights, const HeadInput& x,
                          const HeadColumns& from, int64_t rows, float* y, int64_t y_cols,
                          const HeadColumns& to, CUstream_st* stream);

}  // namespace blockgtq::cuda
