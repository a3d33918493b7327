// Stand-in for the CUDA toolkit's header: what the emulated kernels use of it.
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
inline float __half2float(__half x) { return blockgtq::HalfToFloat(x.bits); }
inline float2 __half22float2(__half2 h) {
  return {blockgtq::HalfToFloat(h.x.bits), blockgtq::HalfToFloat(h.y.bits)};
}
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __half __low2half(__half2 h) { return h.x; }
inline __half __high2half(__half2 h) { return h.y; }
inline __half2 __low2half2(__half2 h) { return {h.x, h.x}; }
inline __half2 __high2half2(__half2 h) { return {h.y, h.y}; }
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {  // products are exact in float; one more rounding
  const float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
  return __floats2half2_rn(x.x * y.x + z.x, x.y * y.y + z.y);
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  const float2 x = __half22float2(a), y = __half22float2(b);
  return __floats2half2_rn(x.x * y.x, x.y * y.y);
}
