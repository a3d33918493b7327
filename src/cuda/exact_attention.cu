// One block a (sequence, KV head, exact tile): logits, softmax and weighted values of up to 64 tokens.
#include "src/cuda/exact_attention.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kNoLogit = -1e30f;

struct ExactTile {
  const __half* data = nullptr;  // K^T [head_dim, tokens], V [tokens, head_dim]
  int tokens = 0;                // slots
  int begin = 0, end = 0;        // slots to attend
};

// Tile 0 is the sinks', tile 1 + i the window's i-th from coded_end on.
__device__ ExactTile FindTile(const DecodeParams& p, int b, int h, int tile) {
  ExactTile t;
  const int length = p.length[b], coded_end = p.coded_end[b];
  const uint8_t* exact = p.exact[b];
  if (tile == 0) {
    t.tokens = p.sink_tile_tokens;
    t.end = min(p.sinks, length);
    if (t.end > 0) {
      t.data = reinterpret_cast<const __half*>(exact + p.sink_offset +
                                               static_cast<size_t>(h) * 4 * p.head_dim * t.tokens);
    }
    return t;
  }
  const int first = max(coded_end, p.sinks);
  const int page = first / kTileTokens + tile - 1;
  t.tokens = kTileTokens;
  t.begin = max(first - page * kTileTokens, 0);
  t.end = min(length - page * kTileTokens, kTileTokens);
  if (t.begin < t.end) {
    t.data = reinterpret_cast<const __half*>(exact + p.window_offset +
                                             static_cast<size_t>(h * p.window_tiles + page % p.window_tiles) *
                                                 4 * p.head_dim * kTileTokens);
  }
  return t;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) ExactKernel(const __grid_constant__ DecodeParams p) {
  LetNextKernelStart();
  constexpr int kTokenSlices = kThreads / kHeadDim, kDimSlices = kThreads / kTileTokens;
  __shared__ float query[kMaxQueryHeads][kHeadDim];
  __shared__ float weight[kMaxQueryHeads][kTileTokens];
  __shared__ float
      reduce[kMaxQueryHeads * (kDimSlices * kTileTokens > kThreads ? kDimSlices * kTileTokens : kThreads)];
  const int pair = blockIdx.x / p.exact_tiles, index = blockIdx.x % p.exact_tiles;
  const int b = pair / p.kv_heads, h = pair % p.kv_heads, thread = threadIdx.x;
  const int lane = thread & 31, warp = thread >> 5;
  SoftmaxState* state = p.exact_state + static_cast<size_t>(blockIdx.x) * kMaxQueryHeads;
  WaitForPreviousKernel();
  const ExactTile tile = FindTile(p, b, h, index);
  if (tile.begin >= tile.end) {
    if (thread < kMaxQueryHeads) state[thread] = {kNoLogit, 0.0f};
    return;
  }
  const __half* q =
      reinterpret_cast<const __half*>(p.queries) + static_cast<size_t>(pair) * p.query_heads * kHeadDim;
  for (int i = thread; i < kMaxQueryHeads * kHeadDim; i += kThreads) {
    query[i / kHeadDim][i % kHeadDim] =
        i < p.query_heads * kHeadDim ? __half2float(q[i]) * p.logit_scale : 0.0f;
  }
  __syncthreads();

  {  // logits: a thread has one token and a slice of the dims
    const int token = thread % kTileTokens, slice = thread / kTileTokens;
    float sum[kMaxQueryHeads] = {};
    if (token >= tile.begin && token < tile.end) {
#pragma unroll 8
      for (int i = 0; i < kHeadDim / kDimSlices; ++i) {
        const int d = slice * (kHeadDim / kDimSlices) + i;
        const float k = __half2float(tile.data[d * tile.tokens + token]);
#pragma unroll
        for (int hd = 0; hd < kMaxQueryHeads; ++hd) sum[hd] = fmaf(k, query[hd][d], sum[hd]);
      }
    }
#pragma unroll
    for (int hd = 0; hd < kMaxQueryHeads; ++hd) reduce[hd * kThreads + thread] = sum[hd];
  }
  __syncthreads();
  if (warp < p.query_heads) {  // softmax of one query head
    float logit[2], largest = kNoLogit;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = lane + 32 * i;
      logit[i] = kNoLogit;
      if (token >= tile.begin && token < tile.end) {
        logit[i] = 0;
#pragma unroll
        for (int s = 0; s < kDimSlices; ++s) logit[i] += reduce[warp * kThreads + s * kTileTokens + token];
      }
      largest = fmaxf(largest, logit[i]);
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float w = Exp2(logit[i] - largest);
      weight[warp][lane + 32 * i] = w;
      sum += w;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) state[warp] = {largest, sum};
  }
  __syncthreads();
  {  // values: a thread has one dim and every kTokenSlices-th token
    const int d = thread % kHeadDim, slice = thread / kHeadDim;
    const __half* values = tile.data + static_cast<size_t>(kHeadDim) * tile.tokens;
    float sum[kMaxQueryHeads] = {};
#pragma unroll 8
    for (int token = tile.begin + slice; token < tile.end; token += kTokenSlices) {
      const float v = __half2float(values[token * kHeadDim + d]);
#pragma unroll
      for (int hd = 0; hd < kMaxQueryHeads; ++hd) sum[hd] = fmaf(v, weight[hd][token], sum[hd]);
    }
#pragma unroll
    for (int hd = 0; hd < kMaxQueryHeads; ++hd) reduce[hd * kThreads + thread] = sum[hd];
  }
  __syncthreads();
  float* out = p.exact_partial + static_cast<size_t>(blockIdx.x) * kMaxQueryHeads * kHeadDim;
  for (int i = thread; i < p.query_heads * kHeadDim; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kTokenSlices; ++s)
      sum += reduce[i / kHeadDim * kThreads + s * kHeadDim + i % kHeadDim];
    out[i] = sum;
  }
}

}  // namespace

Status LaunchExactAttention(const DecodeParams& params, bool early, CUstream_st* stream) {
  const int64_t blocks = static_cast<int64_t>(params.batch) * params.kv_heads * params.exact_tiles;
  return Launch("exact attention", params.head_dim == 64 ? ExactKernel<64> : ExactKernel<128>, blocks,
                kThreads, 0, early, stream, params);
}

}  // namespace blockgtq::cuda
