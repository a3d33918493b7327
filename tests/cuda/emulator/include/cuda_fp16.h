// Stand-in for the CUDA toolkit's header: what the decode kernels use of it.
#pragma once

#include <cuda_runtime.h>

#include "src/core/half.h"

struct __half {
  uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
inline __half __float2half(float x) { return {blockgtq::FloatToHalf(x)}; }
inline float2 __half22float2(__half2 h) {
  return {blockgtq::HalfToFloat(h.x.bits), blockgtq::HalfToFloat(h.y.bits)};
}
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
