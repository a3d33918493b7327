// What surrounds the attention kernel of latent_attention.h: queries into the codes' space, the merge of
// partial outputs, and the codes' output back from their space. Both rotations are products of fp16 rows with
// constant fragments; a warp has 16 columns of output, a block 16 or 64 rows.
#include <algorithm>

#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/shared_memory.cuh"

namespace blockgtq::cuda {
namespace {

using namespace latents;

/// Halves between rows in shared memory: an odd number of 16-byte chunks, so that eight rows' chunks lie in
/// different banks. inputs: a multiple of 16.
__host__ __device__ constexpr int RowStride(int inputs) { return inputs + 8; }

constexpr int kMergeThreads = 128, kMostParts = 256;  // parts: twice what LatentSplits gives
enum class Rotation { kQueries, kOutput };

template <Rotation kWhich>
__device__ __forceinline__ void StoreQuad(const LatentParams& p, int64_t vector, int unit, int lane,
                                          const float* x) {
  const int column = 2 * (lane & 3);
  if constexpr (kWhich == Rotation::kQueries) {
    const LatentUnit u = p.units[unit];
    __half2* to = reinterpret_cast<__half2*>(p.code_queries + vector * p.columns + u.column + column);
    to[0] = __floats2half2_rn(x[0] * u.query_factor, x[1] * u.query_factor);
    to[4] = __floats2half2_rn(x[4] * u.query_factor, x[5] * u.query_factor);
  } else {
    const int d = 16 * unit + column;
    const float* exact = p.merged + vector * p.latent_dims + d;
    __half2* to = reinterpret_cast<__half2*>(p.out + vector * p.head_dim + p.head_dim - p.latent_dims + d);
    to[0] = __floats2half2_rn(fmaf(x[0], p.unrotate_scale, exact[0]), fmaf(x[1], p.unrotate_scale, exact[1]));
    to[4] = __floats2half2_rn(fmaf(x[4], p.unrotate_scale, exact[8]), fmaf(x[5], p.unrotate_scale, exact[9]));
  }
}

/// The queries' own channels beside the mean's coordinates.
__device__ __forceinline__ void StoreMeanColumns(const LatentParams& p, int64_t first, int count, int stride,
                                                 const __half* rows) {
  const int columns = 16 * p.mean_unit_count;
  for (int i = threadIdx.x; i < count * columns; i += kThreads) {
    const int vector = i / columns, c = i % columns, dim = 16 * p.mean_units[c / 16] + c % 16;
    reinterpret_cast<__half*>(p.code_queries)[(first + vector) * p.columns + p.key_columns - columns + c] =
        __float2half(__half2float(rows[vector * stride + dim]) * p.mean_query);
  }
}

template <Rotation kWhich, int kRowTiles>
__global__ void __launch_bounds__(kThreads, 2)
    RotateKernel(const __grid_constant__ LatentParams p, int inputs, int units) {
  constexpr int kVectors = 16 * kRowTiles;
  constexpr bool kQueries = kWhich == Rotation::kQueries;
  constexpr int kAhead = kRowTiles == 1 ? 12 : 4;  // fragments under way
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  __half* rows = reinterpret_cast<__half*>(shared);
  const int warp = WarpIndex(), lane = threadIdx.x & 31, stride = RowStride(inputs);
  const int unit_blocks = (units + kWarps - 1) / kWarps;
  const int64_t all = static_cast<int64_t>(p.rows) * p.heads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) / unit_blocks * kVectors;
  const int unit = static_cast<int>(blockIdx.x) % unit_blocks * kWarps + warp;
  const int count = static_cast<int>(all - first < kVectors ? all - first : kVectors);
  // Constants: the first of them arrive while the kernel ahead finishes.
  const int steps = inputs / 16;
  const uint4* b = reinterpret_cast<const uint4*>(kQueries ? p.query_fragments : p.unrotate_fragments) +
                   static_cast<int64_t>(unit) * steps * 32 + lane;
  uint4 columns[kAhead];
  const auto load = [&](int first_step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      columns[i] = {0, 0, 0, 0};
      if (unit < units && first_step + i < steps) columns[i] = b[32 * (first_step + i)];
    }
  };
  load(0);
  WaitForPreviousKernel();
  LetNextKernelStart();
  const uint4* from = reinterpret_cast<const uint4*>(kQueries ? p.queries : p.merged_codes);
  for (int i = threadIdx.x; i < kVectors * (inputs / 8); i += kThreads) {
    const int vector = i / (inputs / 8), chunk = i % (inputs / 8);
    uint4 x = {0, 0, 0, 0};
    if (vector < count) x = from[(first + vector) * (inputs / 8) + chunk];
    *reinterpret_cast<uint4*>(rows + vector * stride + 8 * chunk) = x;
  }
  __syncthreads();
  if (kQueries && p.mean_unit_count > 0 && static_cast<int>(blockIdx.x) % unit_blocks == 0)
    StoreMeanColumns(p, first, count, stride, rows);
  if (unit >= units) return;
  float sums[kRowTiles][8] = {};
  const __half* a_row = rows + (lane & 15) * stride + 8 * (lane >> 4);
#pragma unroll 1
  for (int step = 0; step < steps; step += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (step + i >= steps) break;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        uint32_t a[4];
        LoadMatrixRows<false>(a, a_row + 16 * r * stride + 16 * (step + i));
        MmaF16(sums[r], {a[0], a[1], a[2], a[3]}, columns[i].x, columns[i].y);
        MmaF16(sums[r] + 4, {a[0], a[1], a[2], a[3]}, columns[i].z, columns[i].w);
      }
    }
    load(step + kAhead);
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int vector = 16 * r + 8 * half + (lane >> 2);
      if (vector < count) StoreQuad<kWhich>(p, first + vector, unit, lane, sums[r] + 2 * half);
    }
  }
}

/// Shares of a vector's parts in its output, by every warp for itself. Returns that of the codes. shares
/// [kMostParts]: zero behind the last.
__device__ __forceinline__ float FindShares(const LatentParams& p, int64_t vector, int lane, float* shares) {
  constexpr int kMine = kMostParts / 32;
  const int64_t all = static_cast<int64_t>(p.rows) * p.heads;
  const int parts = p.code_splits + p.exact_splits;
  const float offset = p.query_offset != nullptr ? p.query_offset[vector] * p.logit_scale : 0.0f;
  float share[kMine], largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int s = lane + 32 * i;
    share[i] = s < parts ? p.part_lse[s * all + vector] + (s < p.code_splits ? offset : 0.0f) : -INFINITY;
    largest = fmaxf(largest, share[i]);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
  if (largest == -INFINITY) largest = 0;
  float sum = 0, codes = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    share[i] = Exp2(share[i] - largest);
    sum += share[i];
    codes += lane + 32 * i < p.code_splits ? share[i] : 0.0f;
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) {
    sum += __shfl_xor_sync(~0u, sum, mask);
    codes += __shfl_xor_sync(~0u, codes, mask);
  }
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
  for (int i = 0; i < kMine; ++i) shares[lane + 32 * i] = share[i] * inverse;
  return codes * inverse;
}

/// A column of a vector's parts [begin, end) by their shares; what a part without a share holds does not
/// matter.
__device__ __forceinline__ float MergeColumn(const float* from, int64_t stride, int begin, int end,
                                             const float* shares) {
  float x = 0;
#pragma unroll 8
  for (int s = begin; s < end; ++s, from += stride) {
    const float part = *from, share = shares[s];
    x = share > 0 ? fmaf(share, part, x) : x;
  }
  return x;
}

/// A block has kMergeThreads columns of a vector: of the codes' values, then of the exact tokens'.
__global__ void __launch_bounds__(kMergeThreads) MergeKernel(const __grid_constant__ LatentParams p) {
  __shared__ float shares[kMergeThreads / 32][kMostParts];
  const int warp = WarpIndex(), lane = threadIdx.x & 31;
  const int values = p.code_splits > 0 ? p.columns - p.key_columns : 0, columns = values + p.latent_dims;
  const int blocks = (columns + kMergeThreads - 1) / kMergeThreads;
  const int64_t all = static_cast<int64_t>(p.rows) * p.heads, vector = blockIdx.x / blocks;
  const int column = static_cast<int>(blockIdx.x) % blocks * kMergeThreads + threadIdx.x;
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int rope_dims = p.head_dim - p.latent_dims;
  for (int d = column; d < rope_dims; d += kMergeThreads * blocks) p.out[vector * p.head_dim + d] = 0;
  const float codes = FindShares(p, vector, lane, shares[warp]);
  __syncwarp();
  if (column >= columns) return;
  if (column < values) {
    const float x =
        MergeColumn(p.code_parts + vector * values + column, all * values, 0, p.code_splits, shares[warp]);
    reinterpret_cast<__half*>(p.merged_codes)[vector * values + column] = __float2half(x);
    return;
  }
  const int d = column - values;
  float x = MergeColumn(p.exact_parts + vector * p.latent_dims + d, all * p.latent_dims, p.code_splits,
                        p.code_splits + p.exact_splits, shares[warp]);
  if (p.code_splits == 0) {
    reinterpret_cast<__half*>(p.out)[vector * p.head_dim + rope_dims + d] = __float2half(x);
    return;
  }
  if (p.has_latent_mean) x = fmaf(codes, p.key_mean[rope_dims + d], x);
  p.merged[vector * p.latent_dims + d] = x;
}

int RotationBytes(int vectors, int inputs) { return 2 * vectors * RowStride(inputs); }

template <Rotation kWhich, int kRowTiles>
Status LaunchRotation(const LatentParams& p, int inputs, int units, cudaStream_t stream) {
  constexpr int kVectors = 16 * kRowTiles;
  const auto kernel = RotateKernel<kWhich, kRowTiles>;
  const int bytes = RotationBytes(kVectors, inputs);
  BGTQ_RETURN_IF_ERROR(
      AllowSharedMemory(kernel, bytes, "rotating latents: vectors of " + std::to_string(inputs) + " dims"));
  const int64_t blocks =
      (int64_t{p.rows} * p.heads + kVectors - 1) / kVectors * ((units + kWarps - 1) / kWarps);
  return Launch("rotating latents", kernel, blocks, kThreads, static_cast<size_t>(bytes), true, stream, p,
                inputs, units);
}

/// Blocks of 64 vectors where there are enough of them and they find room.
template <Rotation kWhich>
Status Rotate(const LatentParams& p, int inputs, int units, cudaStream_t stream) {
  constexpr int64_t kManyVectors = 1024;
  if (int64_t{p.rows} * p.heads >= kManyVectors && RotationBytes(64, inputs) <= SharedMemoryLimit())
    return LaunchRotation<kWhich, 4>(p, inputs, units, stream);
  return LaunchRotation<kWhich, 1>(p, inputs, units, stream);
}

/// The memory between the kernels, as byte offsets.
struct Places {
  int64_t part_lse, exact_parts, code_queries, code_parts, merged_codes, merged, bytes;
};
Places PlacesOf(const LatentParams& p) {
  constexpr int64_t kAlignment = 256;
  const int64_t vectors = int64_t{p.rows} * p.heads, coded = p.code_splits > 0 ? vectors : 0;
  const int64_t values = p.columns - p.key_columns;
  int64_t end = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t at = end;
    end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  Places at{};
  at.part_lse = take(4 * vectors * (p.code_splits + p.exact_splits));
  at.exact_parts = take(4 * vectors * p.exact_splits * p.latent_dims);
  at.code_queries = take(2 * coded * p.columns);
  at.code_parts = take(4 * coded * p.code_splits * values);
  at.merged_codes = take(2 * coded * values);
  at.merged = take(4 * coded * p.latent_dims);
  at.bytes = end;
  return at;
}

}  // namespace

int64_t LatentScratchBytes(const LatentParams& params) { return PlacesOf(params).bytes; }

void BindLatentScratch(uint8_t* scratch, LatentParams& params) {
  const Places at = PlacesOf(params);
  params.part_lse = reinterpret_cast<float*>(scratch + at.part_lse);
  params.exact_parts = reinterpret_cast<float*>(scratch + at.exact_parts);
  params.code_queries = reinterpret_cast<uint16_t*>(scratch + at.code_queries);
  params.code_parts = reinterpret_cast<float*>(scratch + at.code_parts);
  params.merged_codes = reinterpret_cast<uint16_t*>(scratch + at.merged_codes);
  params.merged = reinterpret_cast<float*>(scratch + at.merged);
}

Status LaunchLatentQueries(const LatentParams& params, CUstream_st* stream) {
  return Rotate<Rotation::kQueries>(params, params.head_dim, params.unit_count, stream);
}

Status LaunchLatentMerge(const LatentParams& params, CUstream_st* stream) {
  const int64_t columns =
      (params.code_splits > 0 ? params.columns - params.key_columns : 0) + params.latent_dims;
  const int64_t blocks =
      int64_t{params.rows} * params.heads * ((columns + kMergeThreads - 1) / kMergeThreads);
  BGTQ_RETURN_IF_ERROR(
      Launch("merging latents", MergeKernel, blocks, kMergeThreads, 0, true, stream, params));
  if (params.code_splits == 0) return Status::Ok();
  return Rotate<Rotation::kOutput>(params, params.columns - params.key_columns, params.latent_dims / 16,
                                   stream);
}

Status LaunchLatents(const LatentParams& params, CUstream_st* stream) {
  if (params.code_splits > 0) BGTQ_RETURN_IF_ERROR(LaunchLatentQueries(params, stream));
  BGTQ_RETURN_IF_ERROR(LaunchLatentAttention(params, stream));
  return LaunchLatentMerge(params, stream);
}

}  // namespace blockgtq::cuda
