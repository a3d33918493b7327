// What surrounds the attention kernel of latent_attention.h: queries into the codes' space, the merge of
// partial outputs, and the codes' output back from their space. Both rotations are products of fp16 rows with
// constant fragments; a warp has 16 columns of output, a block 16 or 64 rows.
#include <algorithm>

#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

using namespace latents;

/// Halves between rows in shared memory: an odd number of 16-byte chunks, so that eight rows' chunks lie in
/// different banks. inputs: a multiple of 16.
__host__ __device__ constexpr int RowStride(int inputs) { return inputs + 8; }

constexpr int kMergeThreads = 128, kMostParts = 128;
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
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  __half* rows = reinterpret_cast<__half*>(shared);
  const int warp = WarpIndex(), lane = threadIdx.x & 31, stride = RowStride(inputs);
  const int unit_blocks = (units + kWarps - 1) / kWarps;
  const int64_t all = static_cast<int64_t>(p.rows) * p.heads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) / unit_blocks * kVectors;
  const int unit = static_cast<int>(blockIdx.x) % unit_blocks * kWarps + warp;
  const int count = static_cast<int>(all - first < kVectors ? all - first : kVectors);
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
  const uint4* b = reinterpret_cast<const uint4*>(kQueries ? p.query_fragments : p.unrotate_fragments) +
                   static_cast<int64_t>(unit) * (inputs / 16) * 32 + lane;
  const __half* a_row = rows + (lane & 15) * stride + 8 * (lane >> 4);
#pragma unroll 4
  for (int k = 0; k < inputs; k += 16) {
    const uint4 column = b[2 * k];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      uint32_t a[4];
      LoadMatrixRows<false>(a, a_row + 16 * r * stride + k);
      MmaF16(sums[r], {a[0], a[1], a[2], a[3]}, column.x, column.y);
      MmaF16(sums[r] + 4, {a[0], a[1], a[2], a[3]}, column.z, column.w);
    }
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

__global__ void __launch_bounds__(kMergeThreads) MergeKernel(const __grid_constant__ LatentParams p) {
  __shared__ float weights[kMostParts];
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t all = static_cast<int64_t>(p.rows) * p.heads, vector = blockIdx.x;
  const int parts = p.code_splits + p.exact_splits, values = p.columns - p.key_columns;
  const float offset = p.query_offset != nullptr ? p.query_offset[vector] * p.logit_scale : 0.0f;
  if (static_cast<int>(threadIdx.x) < parts)
    weights[threadIdx.x] = p.part_lse[threadIdx.x * all + vector] +
                           (static_cast<int>(threadIdx.x) < p.code_splits ? offset : 0.0f);
  __syncthreads();
  float largest = -INFINITY, sum = 0, codes = 0;
  for (int s = 0; s < parts; ++s) largest = fmaxf(largest, weights[s]);
  if (largest == -INFINITY) largest = 0;
  for (int s = 0; s < parts; ++s) {
    const float weight = Exp2(weights[s] - largest);
    sum += weight;
    codes += s < p.code_splits ? weight : 0.0f;
  }
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  const auto merged = [&](const float* from, int begin, int end, int columns, int c) {
    float x = 0;
    for (int s = begin; s < end; ++s) {
      const float weight = Exp2(weights[s] - largest) * inverse;
      if (weight > 0) x = fmaf(weight, from[((s - begin) * all + vector) * columns + c], x);
    }
    return x;
  };
  if (p.code_splits > 0) {
    for (int c = threadIdx.x; c < values; c += kMergeThreads)
      reinterpret_cast<__half*>(p.merged_codes)[vector * values + c] =
          __float2half(merged(p.code_parts, 0, p.code_splits, values, c));
  }
  const int rope_dims = p.head_dim - p.latent_dims;
  for (int d = threadIdx.x; d < p.latent_dims; d += kMergeThreads) {
    float x = merged(p.exact_parts, p.code_splits, parts, p.latent_dims, d);
    if (p.code_splits == 0) {
      reinterpret_cast<__half*>(p.out)[vector * p.head_dim + rope_dims + d] = __float2half(x);
      continue;
    }
    if (p.has_latent_mean) x = fmaf(codes * inverse, p.key_mean[rope_dims + d], x);
    p.merged[vector * p.latent_dims + d] = x;
  }
}

template <Rotation kWhich, int kRowTiles>
Status LaunchRotation(const LatentParams& p, int inputs, int units, cudaStream_t stream) {
  constexpr int kVectors = 16 * kRowTiles;
  const auto kernel = RotateKernel<kWhich, kRowTiles>;
  const int bytes = 2 * kVectors * RowStride(inputs);
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "rotating latents"));
  const int64_t blocks =
      (int64_t{p.rows} * p.heads + kVectors - 1) / kVectors * ((units + kWarps - 1) / kWarps);
  return Launch("rotating latents", kernel, blocks, kThreads, static_cast<size_t>(bytes), true, stream, p,
                inputs, units);
}

/// Rows of 64 where there are enough of them; 64 rows of the widest head fit in any GPU's shared memory.
template <Rotation kWhich>
Status Rotate(const LatentParams& p, int inputs, int units, cudaStream_t stream) {
  constexpr int64_t kManyVectors = 1024;
  if (int64_t{p.rows} * p.heads >= kManyVectors) return LaunchRotation<kWhich, 4>(p, inputs, units, stream);
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
  BGTQ_RETURN_IF_ERROR(Launch("merging latents", MergeKernel, int64_t{params.rows} * params.heads,
                              kMergeThreads, 0, true, stream, params));
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
