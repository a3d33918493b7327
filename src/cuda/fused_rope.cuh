// The new token's rows on their way into an attention kernel that rotates them (FusedRope): they come as the
// products leave them. Each warp loads a query head's row, coalesced; in shared memory, in fp16 and block
// order, all warps read them. Two warps bring the new key and value, which the cache does not have yet: the
// block that attends to their tile puts them into what it has loaded of it, and stores them.
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
  uint32_t key[kWords], value[kWords];

  /// Stores key and value in the cache. Every warp calls it, once they are there; the last ones do it.
  template <int kWarps>
  __device__ __forceinline__ void StoreToken(const DecodeParams& p, int sequence, int kv_head) const {
    constexpr int kWarpsARow = kHeadDim / 64;
    static_assert(2 * kWarpsARow <= kWarps);
    const int warp = kWarps - 1 - WarpIndex(), lane = threadIdx.x & 31;
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
  float2 query[kPairs];
  float2 other[kPairs];  // of key or value
  float2 turn[kPairs];   // cosine, sine

  /// What depends on the token's position alone.
  __device__ __forceinline__ void Turn(const DecodeParams& p, int sequence) {
    const int lane = threadIdx.x & 31, position = __ldg(&p.rope.targets[sequence].position);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int j = 32 * i + lane;
      turn[i] = RopeTurn(position, __ldg(p.rope.steps + j), j, p.rope.rotary_dims, p.rope.attention_factor);
    }
  }

  /// Where the lane's elements lie: known before the rows are there. 32 bits are enough for a
  /// batch that fits a block's shared memory.
  struct Places {
    const float* other;                                          // the layer's keys or values
    int x[kPairs], y[kPairs], other_x[kPairs], other_y[kPairs];  // in the layer's queries; in `other`
    bool has_query, has_other;
  };
  static __device__ __forceinline__ Places Find(const DecodeParams& p, int sequence, int work_head) {
    const int warp = WarpIndex(), lane = threadIdx.x & 31;
    const QueryRows rows = RowsOf(p, work_head);
    const bool is_value = warp == kValueWarp;
    const int row = (sequence * p.kv_heads * p.query_heads + rows.first + warp) * kHeadDim;
    const int other_row = (sequence * p.kv_heads + p.KvHead(work_head)) * kHeadDim;
    Places places;
    places.other = is_value ? p.rope.v : p.rope.k;
    places.has_query = warp < rows.count;
    places.has_other = warp >= kKeyWarp;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int j = 32 * i + lane;
      const RopeChannels at = ChannelsOf(j, p.rope.rotary_dims, p.rope.neox);
      places.x[i] = row + at.x;
      places.y[i] = row + at.y;
      places.other_x[i] = other_row + (is_value ? 2 * j : at.x);
      places.other_y[i] = other_row + (is_value ? 2 * j + 1 : at.y);
    }
    return places;
  }
  __device__ __forceinline__ void LoadFrom(const DecodeParams& p, const Places& places) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      query[i] =
          places.has_query ? make_float2(p.rope.q[places.x[i]], p.rope.q[places.y[i]]) : make_float2(0, 0);
      other[i] = places.has_other
                     ? make_float2(places.other[places.other_x[i]], places.other[places.other_y[i]])
                     : make_float2(0, 0);
    }
  }

  /// Waits for the kernel that writes the rows, with all but the loads done before.
  __device__ __forceinline__ void WaitAndLoad(const DecodeParams& p, int sequence, int work_head) {
    Places places = Find(p, sequence, work_head);
    places.other = Fresh(places.other);
    int all = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      for (int* at : {&places.x[i], &places.y[i], &places.other_x[i], &places.other_y[i]}) {
        *at = Fresh(*at);
        all |= *at;
      }
    }
    // Always: but the compiler, which does not know, cannot compute the places after it.
    if (all >= 0) WaitForPreviousKernel();
    LoadFrom(p, places);
  }

  /// After the wait for the kernel that writes the rows. Defines every register, so that none is live across
  /// the tiles.
  __device__ __forceinline__ void Load(const DecodeParams& p, int sequence, int work_head) {
    LoadFrom(p, Find(p, sequence, work_head));
  }

  /// Rotates them; the rows are there after the next __syncthreads.
  template <int kSlots>
  __device__ __forceinline__ void Store(const DecodeParams& p, int sequence, int work_head,
                                        NewRows<kHeadDim, kSlots>& rows) const {
    const int warp = WarpIndex(), lane = threadIdx.x & 31;
    const bool has_query = warp < RowsOf(p, work_head).count;
    bool fits = true;
    const auto put = [&](uint32_t* row, float2 pair, float limit) {
      fits &= Within(pair, limit);
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
