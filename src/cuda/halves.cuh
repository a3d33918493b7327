// Floats as fp16 halves, high and low (matmul_item.h), and what a feed-forward's gate goes through.
#pragma once

#include <cuda_fp16.h>

#include "src/backend/backend.h"
#include "src/cuda/matmul_item.h"

namespace blockgtq::cuda {

struct alignas(8) Half4 {
  __half2 a, b;
};

__device__ __forceinline__ Half4 High(float4 v) {
  return {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
}
__device__ __forceinline__ float4 Widen(Half4 h) {
  const float2 a = __half22float2(h.a), b = __half22float2(h.b);
  return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ Half4 Low(float4 v, Half4 high) {
  const float4 h = Widen(high);
  return High(make_float4((v.x - h.x) * kLowHalfScale, (v.y - h.y) * kLowHalfScale,
                          (v.z - h.z) * kLowHalfScale, (v.w - h.w) * kLowHalfScale));
}
/// i counts vectors of 4 elements; lo may be null.
__device__ __forceinline__ void StoreHalves(float4 v, int64_t i, uint16_t* hi, uint16_t* lo) {
  const Half4 high = High(v);
  reinterpret_cast<Half4*>(hi)[i] = high;
  if (lo) reinterpret_cast<Half4*>(lo)[i] = Low(v, high);
}

/// function(gate) * up / kInnerScale.
template <GateFunction kFunction>
__device__ __forceinline__ float Gated(float gate, float up) {
  const float scaled = up * (1.0f / kInnerScale);
  if constexpr (kFunction == GateFunction::kSilu) {
    return gate / (1.0f + __expf(-gate)) * scaled;
  } else {
    // 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)); 2 sqrt(2 / pi) = 1.59577
    const float u = 1.5957691216057308f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + __expf(-u)) * scaled;
  }
}

}  // namespace blockgtq::cuda
