// One matrix product of a call: y = alpha W x (+ bias) (+ y), and constants of how activations are stored.
#pragma once

#include <cstdint>

namespace blockgtq::cuda {

/// Pointers are device memory, 16-byte aligned.
struct MatMulItem {
  const uint16_t* weight = nullptr;  // fp16 [out, in], row-major
  const float* bias = nullptr;       // [out], or null
  float* y = nullptr;                // [rows, out], row r at y + r * y_stride
  int64_t out = 0, y_stride = 0;
  float alpha = 1;
  bool accumulate = false;  // adds to what y holds
};

/// The low half of an input (Precision::kFloat): x = hi + lo / kLowHalfScale.
inline constexpr float kLowHalfScale = 2048;

/// What the feed-forward's silu(gate) * up is divided by before it is rounded to fp16, whose range it can
/// pass; the product behind it has this alpha.
inline constexpr float kInnerScale = 16;

}  // namespace blockgtq::cuda
