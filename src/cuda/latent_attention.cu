// The attention kernel of latent_attention.h. A block has 16 or 64 vectors and a share of their group's
// tiles, of codes or of exact tokens. A tile is in shared memory once, as fp16 rows, for both products (fp16
// tensor cores, sums in fp32); each warp has a share of its tokens in the first and of its values' columns in
// the second.
#include <algorithm>
#include <limits>
#include <string>

#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_products.cuh"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/shared_memory.cuh"

namespace blockgtq::cuda {
namespace {

using namespace latents;

/// Of the kind of keys that has more.
__host__ __device__ inline int MostColumns(const LatentParams& p) {
  return p.code_splits > 0 && (p.exact_splits == 0 || p.columns > p.head_dim) ? p.columns : p.head_dim;
}

/// Shared memory, as byte offsets.
struct Places {
  int vectors, queries, tile, logits, weights, norms, record, bytes;
};
__host__ __device__ inline Places PlacesOf(const LatentParams& p, int vectors) {
  const int columns = MostColumns(p);
  Places at;
  at.vectors = 128;  // behind the barrier
  at.queries = at.vectors + static_cast<int>(sizeof(Vectors));
  at.tile = at.queries + (vectors == kMaxVectors ? 2 * vectors * Stride(columns) : 0);
  at.logits = at.tile + 2 * kTileTokens * Stride(columns);
  at.weights = at.logits + 4 * kMaxVectors * kLogitStride;  // 64 vectors, or 16 in kColumnParts parts
  at.norms = at.weights + 2 * vectors * kWeightStride;
  at.record = at.norms + (p.code_splits > 0 ? 4 * p.norm_count : 0);
  at.bytes = at.record + (p.code_splits > 0 ? p.record_bytes : 0);
  return at;
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
    *reinterpret_cast<uint4*>(to + ChunkAt(vector, chunk, Stride(columns))) = x;
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

/// Columns that a kernel of 16 vectors has its queries for, in steps of 16 * kColumnParts.
constexpr int ColumnSteps(int units) { return units == 1 ? 4 : units == 4 ? 10 : 17; }

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
  LetNextKernelStart();
  const Work w = WorkOf(p, kVectors);
  const int columns = w.codes ? p.columns : p.head_dim;
  const int value_begin = w.codes ? p.key_columns : p.head_dim - p.latent_dims;
  const int stride = Stride(columns), units = (columns - value_begin) / 16;
  LoadVectors(p, w, kVectors, v);
  constexpr int kSteps = kRowTiles == 1 ? ColumnSteps(kUnits) : 0;
  QueryFragments<kSteps> fragments;
  if constexpr (kRowTiles == 1) {
    LoadQueryFragments<kSteps>((w.codes ? p.code_queries : p.queries) + w.first * columns, w.count, columns,
                               warp, lane, fragments);
  } else {
    LoadQueries(w.codes ? p.code_queries : p.queries, w, kVectors, columns, queries);
  }
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
    if constexpr (kRowTiles == 1) {
      LogitsOfFragments<kSteps>(fragments, tile, columns, warp, lane, logits);
    } else {
      LogitsOfRows(queries, tile, columns, warp, lane, logits);
    }
    __syncthreads();
    Softmax<kVectors, kRowTiles == 1 ? kColumnParts : 1>(v, sinks, start, logits, weights, warp, lane);
    __syncthreads();
    AddValues(v, weights, tile, stride, value_begin / 8, units, warp, lane, sums);
    __syncthreads();
  }
  StorePart(p, w, v, columns - value_begin, units, warp, lane, sums);
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
                    PlacesOf(p, 64).bytes <= SharedMemoryLimit();
  return wide ? 4 : 1;
}

int64_t GroupTiles(const LatentParams& p) {
  const int64_t vectors = 16 * RowTiles(p), groups = p.rows / p.group_rows;
  return groups * ((int64_t{p.group_rows} * p.heads + vectors - 1) / vectors);
}

template <int kRowTiles, int kUnits>
Status LaunchFor(const LatentParams& p, cudaStream_t stream) {
  const int bytes = PlacesOf(p, 16 * kRowTiles).bytes;
  const auto kernel = LatentKernel<kRowTiles, kUnits>;
  BGTQ_RETURN_IF_ERROR(AllowSharedMemory(kernel, bytes,
                                         "attention over latents: a tile of " +
                                             std::to_string(std::max(p.columns, p.head_dim)) +
                                             " coordinates"));
  return Launch("attention over latents", kernel, GroupTiles(p) * (p.code_splits + p.exact_splits), kThreads,
                static_cast<size_t>(bytes), true, stream, p);
}

}  // namespace

int LatentSplits(const LatentParams& params, int processors, int64_t tiles) {
  constexpr int64_t kMostSplits = 128, kBlocksAProcessor = 2;
  const int64_t wanted = kBlocksAProcessor * processors / std::max<int64_t>(1, GroupTiles(params));
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, tiles), 1, kMostSplits));
}

Status LaunchLatentAttention(const LatentParams& params, CUstream_st* stream) {
  if (params.rows < 1 || params.heads < 1 || params.group_rows < 1 || params.rows % params.group_rows != 0 ||
      params.code_splits + params.exact_splits < 1)
    return Status(ErrorCode::kInvalidArgument, "attention over latents: an empty batch");
  const int units = (ValueUnits(params) + kWarps - 1) / kWarps, columns = MostColumns(params);
  if (RowTiles(params) == 4)
    return units <= 1 ? LaunchFor<4, 1>(params, stream) : LaunchFor<4, 4>(params, stream);
  const int steps = (columns + 16 * kColumnParts - 1) / (16 * kColumnParts);
  if (units <= 1 && steps <= ColumnSteps(1)) return LaunchFor<1, 1>(params, stream);
  if (units <= 4 && steps <= ColumnSteps(4)) return LaunchFor<1, 4>(params, stream);
  if (units <= 8 && steps <= ColumnSteps(8)) return LaunchFor<1, 8>(params, stream);
  return Status(ErrorCode::kUnsupported, "attention over latents: keys of " + std::to_string(columns) +
                                             " coordinates, " + std::to_string(16 * ValueUnits(params)) +
                                             " of them values; the kernel has up to " +
                                             std::to_string(16 * kColumnParts * ColumnSteps(8)) + " and " +
                                             std::to_string(16 * 8 * kWarps));
}

}  // namespace blockgtq::cuda
