// The key mean of a head, turned to the start of a page: R_t mu = rotation by t's slot of this.
#pragma once

#include <cstdint>

namespace blockgtq::cuda {

/// mean  [head_dim / 2] pairs before RoPE; steps: RopeSteps; position: of the page's first token
/// out   [head_dim / 2], shared memory; every thread of the block takes part
__device__ __forceinline__ void TurnMean(const float2* mean, const uint64_t* steps, int64_t position,
                                         int blocks, float2* out) {
  for (int j = threadIdx.x; j < blocks; j += blockDim.x) {
    const uint64_t turns = static_cast<uint64_t>(position) * steps[j];
    float sin, cos;
    sincospif(static_cast<float>(static_cast<int32_t>(turns >> 32)) * 0x1p-31f, &sin, &cos);
    const float2 m = mean[j];
    out[j] = {m.x * cos - m.y * sin, m.x * sin + m.y * cos};
  }
}

/// `turned` (of TurnMean) on by a slot's rotation.
__device__ __forceinline__ float2 MeanAt(float2 turned, float2 rotation) {
  return {turned.x * rotation.x - turned.y * rotation.y, turned.x * rotation.y + turned.y * rotation.x};
}

}  // namespace blockgtq::cuda
