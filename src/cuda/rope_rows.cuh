// What rotating and storing a new token is made of: shared by the kernel that does nothing else
// (elementwise_rope.cu) and decode attention (fused_rope.cuh), so that both give the same bits.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "src/cuda/elementwise_rope.h"

namespace blockgtq::cuda {

constexpr int kPageSlots = 64;  // tokens a window tile or page
constexpr float kLargestHalf = 65504.0f, kLargestStored = kLargestHalf / 2;

/// The channels of frequency block j in a row as the model has it.
struct RopeChannels {
  int x, y;
};
__device__ __forceinline__ RopeChannels ChannelsOf(int j, int rotary_dims, bool neox) {
  const bool split = neox && 2 * j < rotary_dims;
  return {split ? j : 2 * j, split ? j + rotary_dims / 2 : 2 * j + 1};
}

/// Cosine and sine, times the attention factor, of frequency block j at `position`; step: its RopeSteps.
/// Blocks past the rotary dims stay as they are.
__device__ __forceinline__ float2 RopeTurn(int position, uint64_t step, int j, int rotary_dims,
                                           float attention_factor) {
  if (2 * j >= rotary_dims) return make_float2(1, 0);
  const uint64_t phase = static_cast<uint64_t>(position) * step;
  float sine, cosine;
  // High word, signed: half turns in [-1, 1) times 2^31.
  sincospif(static_cast<float>(static_cast<int32_t>(phase >> 32)) * 0x1p-31f, &sine, &cosine);
  return make_float2(cosine * attention_factor, sine * attention_factor);
}

/// (a, b) turned. Says which products are fused, so that every kernel rounds alike.
__device__ __forceinline__ float2 Turned(float a, float b, float2 turn) {
  return make_float2(fmaf(a, turn.x, -(b * turn.y)), fmaf(a, turn.y, b * turn.x));
}

/// Whether both may be stored as fp16.
__device__ __forceinline__ bool Within(float2 pair, float limit) {
  return static_cast<bool>((fabsf(pair.x) <= limit) & (fabsf(pair.y) <= limit));  // not a branch
}

/// Stores dims d, d + 1 of a head's key or value in the sequence's exact tiles. p: has window_offset,
/// sink_offset, window_tiles and sink_tile_tokens, as RopeStoreCall and DecodeParams do.
template <typename Params>
__device__ __forceinline__ void StoreExact(const Params& p, int head_dim, const RowTarget& target,
                                           bool is_value, int head, int d, __half2 pair) {
  const auto store = [&](uint8_t* tile, int tokens, int at) {
    __half* out = reinterpret_cast<__half*>(tile);
    if (is_value) {
      *reinterpret_cast<__half2*>(out + tokens * head_dim + at * head_dim + d) = pair;
    } else {
      out[d * tokens + at] = __low2half(pair);
      out[(d + 1) * tokens + at] = __high2half(pair);
    }
  };
  if (target.exact && target.window_tile >= 0) {
    const int64_t tile = static_cast<int64_t>(head) * p.window_tiles + target.window_tile;
    store(target.exact + p.window_offset + tile * 4 * head_dim * kPageSlots, kPageSlots,
          target.position % kPageSlots);
  }
  if (target.exact && target.sink_slot >= 0) {
    store(target.exact + p.sink_offset + static_cast<int64_t>(head) * 4 * head_dim * p.sink_tile_tokens,
          p.sink_tile_tokens, target.sink_slot);
  }
}

}  // namespace blockgtq::cuda
