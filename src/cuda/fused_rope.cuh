// The new token's rows on their way into the attention kernel. Each warp loads a query head's row, coalesced;
// in shared memory, in fp16 and block order, all warps read them. Where a decode step leaves RoPE to this
// kernel (FusedRope), rows come as the products leave them and are rotated here, and two warps bring the new
// key and value, which the cache does not have yet: the block that attends to their tile puts them into what
// it has loaded of it, and stores them.
#pragma once

#include "src/cuda/decode_params.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_block.cuh"
#include "src/cuda/rope_rows.cuh"

namespace blockgtq::cuda {

/// In shared memory. Rows are padded so that a fragment's reads do not meet in a bank.
template <int kHeadDim, int kSlots>
struct NewRows {
  static constexpr int kWords = kHeadDim / 2 + 4;
  uint32_t query[kSlots][kWords];
  uint32_t key[kWords], value[kWords];  // only with FusedRope

  /// Stores key and value in the cache. Every warp calls it, once they are there.
  __device__ __forceinline__ void StoreToken(const DecodeParams& p, int sequence, int kv_head) const {
    constexpr int kWarpsARow = kHeadDim / 64;
    const int warp = WarpIndex(), lane = threadIdx.x & 31;
    if (warp >= 2 * kWarpsARow) return;
    const bool is_value = warp >= kWarpsARow;
    const int j = (is_value ? warp - kWarpsARow : warp) * 32 + lane;
    const uint32_t* row = is_value ? value : key;
    StoreExact(p, kHeadDim, p.rope.targets[sequence], is_value, kv_head, 2 * j,
               *reinterpret_cast<const __half2*>(row + j));
  }
};

/// A warp's rows in registers: of query head `warp`, and in the last two warps of key and value. A lane has
/// frequency blocks lane, lane + 32, ...
template <int kHeadDim, int kWarps>
struct RowLoads {
  static constexpr int kPairs = kHeadDim / 64;
  static constexpr int kKeyWarp = kWarps - 2, kValueWarp = kWarps - 1;
  static_assert(kMaxQueryHeads <= kWarps);
  float2 query[kPairs];  // without FusedRope: x is the fp16 pair
  float2 other[kPairs];  // of key or value
  float2 turn[kPairs];   // cosine, sine

  /// What depends on the token's position alone.
  __device__ __forceinline__ void Turn(const DecodeParams& p, int sequence) {
#pragma unroll
    for (float2& t : turn) t = make_float2(FreshZero(), FreshZero());
    if (!p.rope.enabled) return;
    const int lane = threadIdx.x & 31, position = __ldg(&p.rope.targets[sequence].position);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int j = 32 * i + lane;
      turn[i] = RopeTurn(position, __ldg(p.rope.steps + j), j, p.rope.rotary_dims, p.rope.attention_factor);
    }
  }

  /// After the wait for the kernel that writes them. Defines every register, so that none is live across the
  /// tiles.
  __device__ __forceinline__ void Load(const DecodeParams& p, int sequence, int work_head) {
    const int warp = WarpIndex(), lane = threadIdx.x & 31, kv_head = p.KvHead(work_head);
    const QueryRows rows = RowsOf(p, work_head);
    const size_t row = static_cast<size_t>(sequence) * p.kv_heads * p.query_heads + rows.first + warp;
    const bool has_query = warp < rows.count;
    if (!p.rope.enabled) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) query[i] = other[i] = make_float2(0, 0);
      return;
    }
    const bool is_value = warp == kValueWarp, has_other = warp >= kKeyWarp;
    const float* q = p.rope.q + row * kHeadDim;
    const float* kv =
        (is_value ? p.rope.v : p.rope.k) + (static_cast<size_t>(sequence) * p.kv_heads + kv_head) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int j = 32 * i + lane;
      const RopeChannels at = ChannelsOf(j, p.rope.rotary_dims, p.rope.neox);
      const int x = is_value ? 2 * j : at.x, y = is_value ? 2 * j + 1 : at.y;
      query[i] = make_float2(has_query ? q[at.x] : 0.0f, has_query ? q[at.y] : 0.0f);
      other[i] = make_float2(has_other ? kv[x] : 0.0f, has_other ? kv[y] : 0.0f);
    }
  }

  /// Rotates where that is asked for; the rows are there after the next __syncthreads.
  template <int kSlots>
  __device__ __forceinline__ void Store(const DecodeParams& p, int sequence, int work_head,
                                        NewRows<kHeadDim, kSlots>& rows) const {
    const int warp = WarpIndex(), lane = threadIdx.x & 31;
    const bool has_query = warp < RowsOf(p, work_head).count;
    bool fits = true;
    const auto put = [&](uint32_t* row, float2 pair, float limit) {
      fits = fits && Within(pair, limit);
      *reinterpret_cast<__half2*>(row) = __floats2half2_rn(pair.x, pair.y);
    };
    if (has_query) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        put(rows.query[warp] + 32 * i + lane, Turned(query[i].x, query[i].y, turn[i]), kLargestHalf);
      }
    }
    if (warp >= kKeyWarp) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const bool is_value = warp == kValueWarp;
        put((is_value ? rows.value : rows.key) + 32 * i + lane,
            is_value ? other[i] : Turned(other[i].x, other[i].y, turn[i]), kLargestStored);
      }
    }
    if (!fits) atomicMin(p.rope.error, p.rope.targets[sequence].position);
  }
};

}  // namespace blockgtq::cuda
