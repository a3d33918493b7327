// Attention of one block to exact tiles: sinks and recent window, in fp16, on tensor cores. A warp takes 16
// dims: of K for its part of the logits (summed over warps through shared memory), then of V for the output.
#pragma once

#include "src/cuda/decode_layout.h"
#include "src/cuda/ptx.cuh"
#include "src/cuda/query_block.cuh"
#include "src/cuda/tile_attention.cuh"

namespace blockgtq::cuda {

struct ExactTile {
  const __half* data;  // K^T [head_dim, tokens], V [tokens, head_dim]
  int tokens;          // slots
  int begin, end;      // slots to attend
};

/// The first recent token that a sequence attends to.
__device__ __forceinline__ int FirstRecent(const DecodeParams& p, int coded_end, int length) {
  return max(max(coded_end, p.sinks), CodeRange::FirstSeen(p.window, length));
}

/// Exact tiles that a sequence may have now: the sinks' and the recent ones.
__device__ __forceinline__ int CountExactTiles(const DecodeParams& p, int coded_end, int length) {
  const int first = FirstRecent(p, coded_end, length);
  return 1 + (length > first ? (length - 1) / kTileTokens - first / kTileTokens + 1 : 0);
}

/// Tile 0 is the sinks', tile 1 + i the i-th recent one that is attended to.
__device__ __forceinline__ ExactTile FindExactTile(const DecodeParams& p, int sequence, int head,
                                                   int coded_end, int length, int tile) {
  ExactTile t;
  const uint8_t* exact = p.exact[sequence];
  if (tile == 0) {
    t.tokens = p.sink_tile_tokens;
    t.begin = CodeRange::FirstSeen(p.window, length);
    t.end = min(p.sinks, length);
    t.data = reinterpret_cast<const __half*>(exact + p.sink_offset +
                                             static_cast<size_t>(head) * 4 * p.head_dim * t.tokens);
    return t;
  }
  const int first = FirstRecent(p, coded_end, length);
  const int page = first / kTileTokens + tile - 1;
  t.tokens = kTileTokens;
  t.begin = max(first - page * kTileTokens, 0);
  t.end = min(length - page * kTileTokens, kTileTokens);
  t.data = reinterpret_cast<const __half*>(
      exact + p.window_offset +
      static_cast<size_t>(head * p.window_tiles + page % p.window_tiles) * 4 * p.head_dim * kTileTokens);
  return t;
}

template <int kHeadDim, int kSlots>
struct ExactScratch {
  float logits[kHeadDim / kUnitWidth][kSlots][kTileTokens];  // parts of the dot products
  __half weights[kSlots][kTileTokens + 8];
  float shrink[kSlots];
};

/// A warp's part of an exact tile, its keys and values in registers: they are asked for long before they are
/// needed, so that one wait covers both, and what else the block prepares.
template <int kHeadDim, int kWarps>
struct ExactLoads {
  static constexpr int kSlices = kHeadDim / kUnitWidth, kSlicesAWarp = (kSlices + kWarps - 1) / kWarps;
  static constexpr int kSteps = kTileTokens / 16;
  ExactTile tile;                            // the same for all warps; begin >= end: nothing to attend
  uint4 keys[kSlicesAWarp][4];               // dims 2 tq, 2 tq + 1, 2 tq + 8, 2 tq + 9; tokens 8 g + j
  uint32_t values[kSlicesAWarp][kSteps][4];  // tokens 2 tq (+ 0, 1, 8, 9) of 16; dims 2 g, 2 g + 1

  /// Tile `index`, where the sequence has it.
  __device__ __forceinline__ void Find(const DecodeParams& p, int sequence, int head, int coded_end,
                                       int length, int index) {
    tile = FindExactTile(p, sequence, head, coded_end, length, index);
    if (index >= CountExactTiles(p, coded_end, length)) tile.end = tile.begin;
  }
  __device__ __forceinline__ void LoadKeys() {
    const int lane = threadIdx.x & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
    const bool has_keys = 8 * g < tile.tokens && tile.begin < tile.end;
#pragma unroll
    for (int i = 0; i < kSlicesAWarp; ++i) {
      const int slice = warp + i * kWarps;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int d = slice * kUnitWidth + 2 * tq + (r & 1) + 4 * (r & 2);
        keys[i][r] = slice < kSlices && has_keys
                         ? *reinterpret_cast<const uint4*>(tile.data + d * tile.tokens + 8 * g)
                         : make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ __forceinline__ void LoadValues() {
    const int lane = threadIdx.x & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
    const __half* from = tile.data + static_cast<size_t>(kHeadDim) * tile.tokens + 2 * g;
#pragma unroll
    for (int i = 0; i < kSlicesAWarp; ++i) {
      const int slice = warp + i * kWarps;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int token = 16 * s + 2 * tq + (r & 1) + 4 * (r & 2);
          values[i][s][r] =
              slice < kSlices && token >= tile.begin && token < tile.end
                  ? *reinterpret_cast<const uint32_t*>(from + token * kHeadDim + slice * kUnitWidth)
                  : 0;
        }
      }
    }
  }
  /// Puts the key and the value of the token in `slot` into what has been loaded; both as fp16 pairs
  /// [kHeadDim / 2] in shared memory.
  __device__ __forceinline__ void Replace(int slot, const uint32_t* key, const uint32_t* value) {
    const int lane = threadIdx.x & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
    const uint32_t half = slot & 1 ? 0x5410 : 0x3254;  // the key's half in the word's upper or lower one
    const int pair = (slot >> 1) - 4 * g;              // of the lane's eight tokens, if 0..3
#pragma unroll
    for (int i = 0; i < kSlicesAWarp; ++i) {
      const int slice = min(warp + i * kWarps, kSlices - 1);
      const uint32_t own_value = value[slice * (kUnitWidth / 2) + g];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const uint32_t two = key[slice * (kUnitWidth / 2) + tq + 2 * (r & 2)];
        const uint32_t one = r & 1 ? two >> 16 : two & 0xffff;
        uint4& k = keys[i][r];
        if (pair == 0) k.x = SelectBytes(k.x, one, half);
        if (pair == 1) k.y = SelectBytes(k.y, one, half);
        if (pair == 2) k.z = SelectBytes(k.z, one, half);
        if (pair == 3) k.w = SelectBytes(k.w, one, half);
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if (16 * s + 2 * tq + (r & 1) + 4 * (r & 2) == slot) values[i][s][r] = own_value;
        }
      }
    }
  }
};

/// Attends to tiles first_tile, first_tile + tile_step, ..., of which `loads` has the first. All threads of
/// the block call it; `out` is ready, and `scratch` free, when it returns. out [kSlots][MergeRow(kHeadDim)]
/// shared: sums of exp2(logit - largest) V, then the SoftmaxState; state [kSlots] shared, for its own use
/// with_last: called where the sequence's last tile, which has its newest token, is in `loads`
/// beside_last: called later with that tile, when warps without a softmax have nothing to do
template <int kHeadDim, int kWarps, int kSlots, typename WithLast, typename BesideLast>
__device__ __forceinline__ void AttendExactTiles(const DecodeParams& p, int sequence, int work_head,
                                                 int coded_end, int length, int first_tile, int tile_step,
                                                 QueryWords queries, ExactLoads<kHeadDim, kWarps>& loads,
                                                 ExactScratch<kHeadDim, kSlots>& scratch, float* out,
                                                 SoftmaxState* state, WithLast with_last,
                                                 BesideLast beside_last) {
  using Loads = ExactLoads<kHeadDim, kWarps>;
  constexpr int kSlices = Loads::kSlices, kSlicesAWarp = Loads::kSlicesAWarp;
  const int thread = threadIdx.x, lane = thread & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
  const int tiles = CountExactTiles(p, coded_end, length);
  const QueryRows rows = RowsOf(p, work_head);
  if (thread < kSlots) state[thread] = {kMaskedLogit, 0.0f};
  float sum[kSlicesAWarp][2][4] = {};  // head g; dims 2 (2 tq + e) + n of the slice
  const ExactTile& tile = loads.tile;
#pragma unroll 1
  for (int index = first_tile; index < tiles; index += tile_step) {
    if (index > first_tile) {
      loads.Find(p, sequence, p.KvHead(work_head), coded_end, length, index);
      loads.LoadKeys();
      loads.LoadValues();
      __syncthreads();  // the scratch of the tile before is read
    }
    if (tile.begin >= tile.end) continue;
    if (index == tiles - 1) with_last();
#pragma unroll
    for (int i = 0; i < kSlicesAWarp; ++i) {
      const int slice = warp + i * kWarps;
      if (slice >= kSlices) continue;
      // Column g of product j is token 8 g + j: a lane's eight tokens are one load a dim.
      const uint4(&k)[4] = loads.keys[i];
      uint4 a = make_uint4(0, 0, 0, 0);
      if (g < rows.count) {
        const uint32_t* q = queries.rows + g * queries.row_words + slice * (kUnitWidth / 2);
        a.x = q[tq];
        a.z = q[tq + 4];
      }
      float c[8][4];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto word = [&](const uint4& v) { return j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w; };
        const uint32_t half = j & 1 ? 0x7632 : 0x5410;
        c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
        MmaF16(c[j], a, SelectBytes(word(k[0]), word(k[1]), half), SelectBytes(word(k[2]), word(k[3]), half));
      }
      if (g < kSlots) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float4* to = reinterpret_cast<float4*>(&scratch.logits[slice][g][8 * (2 * tq + e)]);
          to[0] = make_float4(c[0][e], c[1][e], c[2][e], c[3][e]);
          to[1] = make_float4(c[4][e], c[5][e], c[6][e], c[7][e]);
        }
      }
    }
    __syncthreads();
    if (index == tiles - 1) beside_last();
#pragma unroll 1
    for (int h = warp; h < kSlots; h += kWarps) {  // softmax of one head
      float logit[2], top = kMaskedLogit;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = lane + 32 * i;
        float dot = 0;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) dot += scratch.logits[s][h][token];
        logit[i] = token >= tile.begin && token < tile.end ? dot * p.logit_scale : kMaskedLogit;
        top = fmaxf(top, logit[i]);
      }
#pragma unroll
      for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
      const SoftmaxState old = state[h];
      top = fmaxf(top, old.largest);
      float total = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float w = Exp2(logit[i] - top);
        scratch.weights[h][lane + 32 * i] = __float2half(w);
        total += w;
      }
#pragma unroll
      for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
      __syncwarp();
      if (lane == 0) {
        const float shrink = Exp2(old.largest - top);
        scratch.shrink[h] = shrink;
        state[h] = {top, fmaf(old.sum, shrink, total)};
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSlicesAWarp; ++i) {
      const int slice = warp + i * kWarps;
      if (slice >= kSlices) continue;
      if (g < kSlots) {
        const float shrink = scratch.shrink[g];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          sum[i][n][0] *= shrink;
          sum[i][n][1] *= shrink;
        }
      }
#pragma unroll
      for (int s = 0; s < Loads::kSteps; ++s) {
        const uint32_t(&v)[4] = loads.values[i][s];
        uint4 a = make_uint4(0, 0, 0, 0);
        if (g < kSlots) {
          a.x = *reinterpret_cast<const uint32_t*>(&scratch.weights[g][16 * s + 2 * tq]);
          a.z = *reinterpret_cast<const uint32_t*>(&scratch.weights[g][16 * s + 2 * tq + 8]);
        }
        MmaF16(sum[i][0], a, SelectBytes(v[0], v[1], 0x5410), SelectBytes(v[2], v[3], 0x5410));
        MmaF16(sum[i][1], a, SelectBytes(v[0], v[1], 0x7632), SelectBytes(v[2], v[3], 0x7632));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSlicesAWarp; ++i) {
    const int slice = warp + i * kWarps;
    if (slice >= kSlices || g >= kSlots) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        out[g * MergeRow(kHeadDim) + slice * kUnitWidth + 2 * (2 * tq + e) + n] = sum[i][n][e];
      }
    }
  }
  if (thread < kSlots) {
    *reinterpret_cast<SoftmaxState*>(out + thread * MergeRow(kHeadDim) + kHeadDim) = state[thread];
  }
  __syncthreads();
}

}  // namespace blockgtq::cuda
