// The attention kernel of latent_attention.h. A block has 16 or 64 vectors and a share of their group's
// tiles, of codes or of exact tokens. A tile is in shared memory once, as fp16 rows, for both products (fp16
// tensor cores, sums in fp32); each warp has a share of its tokens in the first and of its values' columns in
// the second.
#include <algorithm>
#include <limits>
#include <string>

#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

using namespace latents;

constexpr int kLogitStride = kTileTokens + 4;   // floats
constexpr int kWeightStride = kTileTokens + 8;  // halves
constexpr int kMaxVectors = 64;

/// What a block keeps of each of its vectors.
struct Vectors {
  int begin[kMaxVectors], end[kMaxVectors], sink_end[kMaxVectors];  // tokens that it sees of the block's kind
  float scale[kMaxVectors];                                         // of its logits, base 2
  float maximum[kMaxVectors], sum[kMaxVectors], rescale[kMaxVectors];
};

/// Shared memory, as byte offsets.
struct Places {
  int vectors, queries, tile, logits, weights, norms, record, bytes;
};
__host__ __device__ inline Places PlacesOf(const LatentParams& p, int vectors) {
  const int columns =
      p.code_splits > 0 && (p.exact_splits == 0 || p.columns > p.head_dim) ? p.columns : p.head_dim;
  Places at;
  at.vectors = 128;  // behind the barrier
  at.queries = at.vectors + static_cast<int>(sizeof(Vectors));
  at.tile = at.queries + 2 * vectors * Stride(columns);
  at.logits = at.tile + 2 * kTileTokens * Stride(columns);
  at.weights = at.logits + 4 * vectors * kLogitStride;
  at.norms = at.weights + 2 * vectors * kWeightStride;
  at.record = at.norms + (p.code_splits > 0 ? 4 * p.norm_count : 0);
  at.bytes = at.record + (p.code_splits > 0 ? p.record_bytes : 0);
  return at;
}

/// Row (lane mod 16) and 16-byte chunk of a lane's part of a 16 x 16 matrix, in the order of an A fragment
/// and of a transposed B fragment.
__device__ __forceinline__ int FragmentOffset(int lane, int stride) {
  return (lane & 15) * stride + 8 * (lane >> 4);
}

/// Products of the block's vectors with the tile's tokens. A warp has kRows blocks of 16 vectors from
/// first_vector on, and 8 kTokens tokens from first_token on.
template <int kRows, int kTokens>
__device__ __forceinline__ void Logits(const __half* queries, const __half* tile, int columns,
                                       int first_vector, int first_token, int lane, float* logits) {
  const int stride = Stride(columns);
  float sums[kRows][kTokens][4] = {};
  const __half* q = queries + first_vector * stride + FragmentOffset(lane, stride);
  if constexpr (kTokens == 2) {
    const __half* k = tile + (first_token + (lane & 7) + 8 * (lane >> 4)) * stride + 8 * ((lane >> 3) & 1);
#pragma unroll 2
    for (int c = 0; c < columns; c += 16) {
      uint32_t b[4];
      LoadMatrixRows<false>(b, k + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t a[4];
        LoadMatrixRows<false>(a, q + 16 * r * stride + c);
        MmaF16(sums[r][0], {a[0], a[1], a[2], a[3]}, b[0], b[1]);
        MmaF16(sums[r][1], {a[0], a[1], a[2], a[3]}, b[2], b[3]);
      }
    }
  } else {  // 32 columns at a time
    const __half* k = tile + (first_token + (lane & 7)) * stride;
#pragma unroll 2
    for (int c = 0; c < columns; c += 32) {
      uint32_t b[4];
      LoadMatrixRows<false>(b, k + min(c + 8 * (lane >> 3), columns - 8));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (c + 16 * half >= columns) break;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          uint32_t a[4];
          LoadMatrixRows<false>(a, q + 16 * r * stride + c + 16 * half);
          MmaF16(sums[r][0], {a[0], a[1], a[2], a[3]}, b[2 * half], b[2 * half + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float* to = logits + (first_vector + 16 * r + (lane >> 2)) * kLogitStride + first_token + 8 * t +
                  2 * (lane & 3);
      *reinterpret_cast<float2*>(to) = {sums[r][t][0], sums[r][t][1]};
      *reinterpret_cast<float2*>(to + 8 * kLogitStride) = {sums[r][t][2], sums[r][t][3]};
    }
  }
}

/// Weights of the tile's tokens, whose first is at `start`, for the warp's vectors, and their running sums.
__device__ __forceinline__ void Softmax(Vectors& v, int vectors, bool sinks, int start, const float* logits,
                                        __half* weights, int warp, int lane) {
#pragma unroll 1
  for (int i = warp; i < vectors; i += kWarps) {
    const int begin = sinks ? 0 : v.begin[i], end = sinks ? v.sink_end[i] : v.end[i];
    const float2 x = *reinterpret_cast<const float2*>(logits + i * kLogitStride + 2 * lane);
    const float scale = v.scale[i], before = v.maximum[i], nothing = -INFINITY;
    const int t = start + 2 * lane;
    const float a = t >= begin && t < end ? x.x * scale : nothing;
    const float b = t + 1 >= begin && t + 1 < end ? x.y * scale : nothing;
    float largest = fmaxf(a, b);
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
    const float after = fmaxf(before, largest), base = after == nothing ? 0.0f : after;
    const __half2 pair = __floats2half2_rn(Exp2(a - base), Exp2(b - base));
    *reinterpret_cast<__half2*>(weights + i * kWeightStride + 2 * lane) = pair;
    const float2 rounded = __half22float2(pair);
    float sum = rounded.x + rounded.y;
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
    __syncwarp();
    if (lane == 0) {
      const float rescale = Exp2(before - base);
      v.rescale[i] = rescale;
      v.maximum[i] = after;
      v.sum[i] = v.sum[i] * rescale + sum;
    }
  }
}

/// sums += weights times the tile's values: units warp, warp + 8, .. of the warp.
template <int kRowTiles, int kUnits>
__device__ __forceinline__ void AddValues(const Vectors& v, const __half* weights, const __half* values,
                                          int stride, int units, int warp, int lane,
                                          float (&sums)[kRowTiles][kUnits][8]) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const float low = v.rescale[16 * r + (lane >> 2)], high = v.rescale[16 * r + 8 + (lane >> 2)];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[r][u][e] *= (e & 2) != 0 ? high : low;
    }
  }
#pragma unroll
  for (int k = 0; k < kTileTokens; k += 16) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      LoadMatrixRows<false>(a[r], weights + 16 * r * kWeightStride + k + FragmentOffset(lane, kWeightStride));
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = warp + kWarps * u;
      if (unit >= units) break;
      uint32_t b[4];
      LoadMatrixRows<true>(b, values + k * stride + 16 * unit + FragmentOffset(lane, stride));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MmaF16(sums[r][u], {a[r][0], a[r][1], a[r][2], a[r][3]}, b[0], b[1]);
        MmaF16(sums[r][u] + 4, {a[r][0], a[r][1], a[r][2], a[r][3]}, b[2], b[3]);
      }
    }
  }
}

/// What of its group a block works on.
struct Work {
  int64_t first;  // vector
  int count;      // vectors
  int first_row, group, split, splits;
  bool codes;
};
__device__ __forceinline__ Work WorkOf(const LatentParams& p, int vectors) {
  const int all_splits = p.code_splits + p.exact_splits, group_vectors = p.group_rows * p.heads;
  const int tiles = (group_vectors + vectors - 1) / vectors;
  const int split = static_cast<int>(blockIdx.x) % all_splits,
            tile = static_cast<int>(blockIdx.x) / all_splits;
  Work w;
  w.group = tile / tiles;
  w.first_row = w.group * p.group_rows;
  const int within = tile % tiles * vectors;
  w.first = static_cast<int64_t>(w.group) * group_vectors + within;
  w.count = min(vectors, group_vectors - within);
  w.codes = split < p.code_splits;
  w.split = w.codes ? split : split - p.code_splits;
  w.splits = w.codes ? p.code_splits : p.exact_splits;
  return w;
}

__device__ __forceinline__ void LoadVectors(const LatentParams& p, const Work& w, int vectors, Vectors& v) {
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    v.begin[i] = v.end[i] = v.sink_end[i] = 0;
    v.scale[i] = v.sum[i] = v.rescale[i] = 0;
    v.maximum[i] = -INFINITY;
    if (i >= w.count) continue;
    const int row = static_cast<int>((w.first + i) / p.heads), coded = p.coded_end[row],
              length = p.length[row];
    v.begin[i] = w.codes ? p.sinks : max(coded, p.sinks);
    v.end[i] = w.codes ? coded : length;
    v.sink_end[i] = w.codes ? 0 : min(p.sinks, length);
    v.scale[i] = p.logit_scale * p.query_scale[w.first + i] * (w.codes ? p.code_scale : 1.0f);
  }
}

__device__ __forceinline__ void LoadQueries(const uint16_t* queries, const Work& w, int vectors, int columns,
                                            __half* to) {
  const int chunks = columns / 8;
  for (int i = threadIdx.x; i < vectors * chunks; i += kThreads) {
    const int vector = i / chunks, chunk = i % chunks;
    uint4 x = {0, 0, 0, 0};
    if (vector < w.count) x = reinterpret_cast<const uint4*>(queries + (w.first + vector) * columns)[chunk];
    *reinterpret_cast<uint4*>(to + vector * Stride(columns) + 8 * chunk) = x;
  }
}

/// Rows of exact tile `tile`, or of the sinks' tile (-1).
__device__ __forceinline__ const uint16_t* ExactRows(const LatentParams& p, const Work& w,
                                                     const int32_t* block_table, int tile) {
  const int64_t tile_halves = static_cast<int64_t>(kTileTokens) * p.head_dim;
  if (tile < 0) return reinterpret_cast<const uint16_t*>(p.exact[w.first_row] + p.sink_offset);
  if (p.exact_kind == LatentExact::kRows)
    return p.exact_rows + tile * tile_halves - p.first_exact_row * p.head_dim;
  if (p.exact_kind == LatentExact::kPages)
    return reinterpret_cast<const uint16_t*>(p.pool + block_table[tile] * p.block_bytes);
  return reinterpret_cast<const uint16_t*>(p.exact[w.first_row] + p.window_offset) +
         tile % p.window_tiles * tile_halves;
}

template <int kRowTiles, int kUnits>
__device__ __forceinline__ void StorePart(const LatentParams& p, const Work& w, const Vectors& v,
                                          int value_columns, int units, int warp, int lane,
                                          const float (&sums)[kRowTiles][kUnits][8]) {
  const int64_t all = static_cast<int64_t>(p.rows) * p.heads;
  float* part = (w.codes ? p.code_parts : p.exact_parts) + (w.split * all + w.first) * value_columns;
  float* lse = p.part_lse + ((w.codes ? 0 : p.code_splits) + w.split) * all + w.first;
  for (int i = threadIdx.x; i < w.count; i += kThreads)
    lse[i] = v.sum[i] > 0 ? v.maximum[i] + Log2(v.sum[i]) : -INFINITY;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int vector = 16 * r + 8 * half + (lane >> 2);
      if (vector >= w.count || !(v.sum[vector] > 0)) continue;
      const float scale = 1.0f / v.sum[vector];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int unit = warp + kWarps * u;
        if (unit >= units) break;
        float* to = part + static_cast<int64_t>(vector) * value_columns + 16 * unit + 2 * (lane & 3);
        const float* from = sums[r][u] + 2 * half;
        *reinterpret_cast<float2*>(to) = {from[0] * scale, from[1] * scale};
        *reinterpret_cast<float2*>(to + 8) = {from[4] * scale, from[5] * scale};
      }
    }
  }
}

/// kUnits: units of values a warp has at most.
template <int kRowTiles, int kUnits>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 && kUnits <= 4 ? 2 : 1)
    LatentKernel(const __grid_constant__ LatentParams p) {
  constexpr int kVectors = 16 * kRowTiles;
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  const Places at = PlacesOf(p, kVectors);
  Vectors& v = *reinterpret_cast<Vectors*>(shared + at.vectors);
  __half* queries = reinterpret_cast<__half*>(shared + at.queries);
  __half* tile = reinterpret_cast<__half*>(shared + at.tile);
  float* logits = reinterpret_cast<float*>(shared + at.logits);
  __half* weights = reinterpret_cast<__half*>(shared + at.weights);
  uint32_t* norms = reinterpret_cast<uint32_t*>(shared + at.norms);
  const uint8_t* record = shared + at.record;
  const uint32_t barrier = SharedAddress(shared);
  const int warp = WarpIndex(), lane = threadIdx.x & 31;

  if (threadIdx.x == 0) {
    BarrierInit(barrier, kThreads);
    BarrierInitFence();
  }
  WaitForPreviousKernel();
  const Work w = WorkOf(p, kVectors);
  const int columns = w.codes ? p.columns : p.head_dim;
  const int value_begin = w.codes ? p.key_columns : p.head_dim - p.latent_dims;
  const int stride = Stride(columns), units = (columns - value_begin) / 16;
  LoadVectors(p, w, kVectors, v);
  LoadQueries(w.codes ? p.code_queries : p.queries, w, kVectors, columns, queries);
  __syncthreads();
  int begin = std::numeric_limits<int>::max(), end = 0, sink_end = 0;
  for (int i = 0; i < w.count; ++i) {
    if (v.begin[i] < v.end[i]) begin = min(begin, v.begin[i]);
    end = max(end, v.end[i]);
    sink_end = max(sink_end, v.sink_end[i]);
  }
  const int sink_tiles = sink_end > 0 ? 1 : 0, first_tile = begin / kTileTokens;
  const int tiles = begin < end ? (end - 1) / kTileTokens - first_tile + 1 : 0, items = sink_tiles + tiles;
  const int first = static_cast<int>(static_cast<int64_t>(items) * w.split / w.splits);
  const int last = static_cast<int>(static_cast<int64_t>(items) * (w.split + 1) / w.splits);
  const int32_t* block_table = p.block_table + w.group * p.table_stride;

  float sums[kRowTiles][kUnits][8] = {};
  uint32_t phase = 0;
  if (w.codes && first < last)
    StartRecord(p, block_table, first_tile + first, SharedAddress(record), barrier);
#pragma unroll 1
  for (int item = first; item < last; ++item) {
    const bool sinks = item < sink_tiles;
    const int index = first_tile + item - sink_tiles, start = sinks ? 0 : index * kTileTokens;
    if (w.codes) {
      BarrierWait(barrier, phase);
      DecodeNorms(p, record, norms);
      __syncthreads();
      DecodeUnits(p, record, norms, warp, lane, stride, tile);
      if (p.mean_unit_count > 0) WriteMeans(p, start, stride, tile);
      __syncthreads();
      if (item + 1 < last) StartRecord(p, block_table, index + 1, SharedAddress(record), barrier);
    } else {
      const int from = sinks ? 0 : max(begin - start, 0), to = (sinks ? sink_end : end) - start;
      StartRows(ExactRows(p, w, block_table, sinks ? -1 : index), p.head_dim, from, to, tile, barrier);
      BarrierWait(barrier, phase);
      __syncthreads();
    }
    phase ^= 1;
    if constexpr (kRowTiles == 4) {
      Logits<2, 2>(queries, tile, columns, 32 * (warp & 1), 16 * (warp >> 1), lane, logits);
    } else {
      Logits<1, 1>(queries, tile, columns, 0, 8 * warp, lane, logits);
    }
    __syncthreads();
    Softmax(v, kVectors, sinks, start, logits, weights, warp, lane);
    __syncthreads();
    AddValues(v, weights, tile + value_begin, stride, units, warp, lane, sums);
    __syncthreads();
  }
  StorePart(p, w, v, columns - value_begin, units, warp, lane, sums);
}

int64_t DeviceValue(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) return 0;
  return value;
}

/// Units of values of the larger kind.
int ValueUnits(const LatentParams& p) {
  const int exact = p.exact_splits > 0 ? p.latent_dims : 0,
            coded = p.code_splits > 0 ? p.columns - p.key_columns : 0;
  return std::max(exact, coded) / 16;
}

/// Blocks of 64 vectors where a group has more than 16 and their tiles find room.
int RowTiles(const LatentParams& p) {
  const bool wide = p.group_rows * p.heads > 16 && ValueUnits(p) <= 4 * kWarps &&
                    PlacesOf(p, 64).bytes <= DeviceValue(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return wide ? 4 : 1;
}

int64_t GroupTiles(const LatentParams& p) {
  const int64_t vectors = 16 * RowTiles(p), groups = p.rows / p.group_rows;
  return groups * ((int64_t{p.group_rows} * p.heads + vectors - 1) / vectors);
}

template <int kRowTiles, int kUnits>
Status LaunchFor(const LatentParams& p, cudaStream_t stream) {
  const int bytes = PlacesOf(p, 16 * kRowTiles).bytes;
  const int64_t limit = DeviceValue(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (bytes > limit) {
    return Status(ErrorCode::kUnsupported,
                  "attention over latents: a tile of " + std::to_string(std::max(p.columns, p.head_dim)) +
                      " coordinates needs " + std::to_string(bytes) +
                      " bytes of shared memory, the GPU has " + std::to_string(limit));
  }
  const auto kernel = LatentKernel<kRowTiles, kUnits>;
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                 "attention over latents"));
  return Launch("attention over latents", kernel, GroupTiles(p) * (p.code_splits + p.exact_splits), kThreads,
                static_cast<size_t>(bytes), false, stream, p);
}

}  // namespace

int LatentSplits(const LatentParams& params, int processors, int64_t tiles) {
  constexpr int64_t kMostSplits = 64, kBlocksAProcessor = 2;
  const int64_t wanted = kBlocksAProcessor * processors / std::max<int64_t>(1, GroupTiles(params));
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, tiles), 1, kMostSplits));
}

Status LaunchLatentAttention(const LatentParams& params, CUstream_st* stream) {
  if (params.rows < 1 || params.heads < 1 || params.group_rows < 1 || params.rows % params.group_rows != 0 ||
      params.code_splits + params.exact_splits < 1)
    return Status(ErrorCode::kInvalidArgument, "attention over latents: an empty batch");
  const int units = (ValueUnits(params) + kWarps - 1) / kWarps;
  if (RowTiles(params) == 4)
    return units <= 1 ? LaunchFor<4, 1>(params, stream) : LaunchFor<4, 4>(params, stream);
  if (units <= 1) return LaunchFor<1, 1>(params, stream);
  if (units <= 4) return LaunchFor<1, 4>(params, stream);
  if (units <= 8) return LaunchFor<1, 8>(params, stream);
  return Status(ErrorCode::kUnsupported,
                "attention over latents: values of " + std::to_string(16 * ValueUnits(params)) +
                    " coordinates; the kernel has up to " + std::to_string(16 * 8 * kWarps));
}

}  // namespace blockgtq::cuda
