// See latent_store.h. A warp has a query or a key, a lane every 32nd frequency block of it.
#include "src/cuda/latent_store.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256, kPageSlots = 64;
constexpr float kLargestFloat = 3.4028235e38f, kLargestStored = 32752.0f;

/// Two channels of a vector, in block order.
struct Rotation {
  const LatentStoreCall& p;
  const float* from;
  int64_t position;

  __device__ float2 operator()(int j) const {
    if (2 * j >= p.rotary_dims) return *reinterpret_cast<const float2*>(from + 2 * j);
    const float a = from[p.neox ? j : 2 * j], b = from[p.neox ? j + p.rotary_dims / 2 : 2 * j + 1];
    const uint64_t phase = static_cast<uint64_t>(position) * p.steps[j];
    float sine, cosine;
    // High word, signed: half turns in [-1, 1) times 2^31.
    sincospif(static_cast<float>(static_cast<int32_t>(phase >> 32)) * 0x1p-31f, &sine, &cosine);
    sine *= p.attention_factor;
    cosine *= p.attention_factor;
    return {a * cosine - b * sine, a * sine + b * cosine};
  }
};

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

/// 2^n that brings a largest magnitude to [128, 256); a number so small that 2^n has no float counts as zero.
__device__ __forceinline__ float ScaleOf(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  return exponent < -100 ? 1.0f : __uint_as_float(static_cast<uint32_t>(127 + 7 - exponent) << 23);
}

__device__ __forceinline__ void StoreQuery(const LatentStoreCall& p, const Rotation& rotated, int64_t vector,
                                           int lane) {
  float largest = 0, offset = 0;
  bool finite = true;
  for (int j = lane; j < p.head_dim / 2; j += 32) {
    const float2 x = rotated(j);
    finite = finite && fabsf(x.x) <= kLargestFloat && fabsf(x.y) <= kLargestFloat;
    largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
    if (p.mean != nullptr && 2 * j >= p.rope_dims) offset += x.x * p.mean[2 * j] + x.y * p.mean[2 * j + 1];
  }
  if (!finite) atomicMin(p.error, static_cast<int32_t>(rotated.position));
  largest = WarpMax(largest);
  if (p.mean != nullptr) offset = WarpSum(offset);
  const float scale = ScaleOf(largest);
  if (lane == 0) {
    p.query_scale[vector] = 1.0f / scale;
    if (p.mean != nullptr) p.query_offset[vector] = offset;
  }
  __half2* out = reinterpret_cast<__half2*>(p.queries + vector * p.head_dim);
  for (int j = lane; j < p.head_dim / 2; j += 32) {
    const float2 x = rotated(j);
    out[j] = __floats2half2_rn(x.x * scale, x.y * scale);
  }
}

__device__ __forceinline__ void StoreKey(const LatentStoreCall& p, const Rotation& rotated, int64_t row,
                                         const RowTarget& target, int lane) {
  const int64_t slot = target.position % kPageSlots, dim = p.head_dim, tile_bytes = 2 * kPageSlots * dim;
  const auto row_at = [&](uint8_t* tile, int64_t at) {
    return reinterpret_cast<__half2*>(tile + 2 * dim * at);
  };
  const bool in_window = target.exact != nullptr && target.window_tile >= 0;
  const bool in_sinks = target.exact != nullptr && target.sink_slot >= 0;
  for (int j = lane; j < p.head_dim / 2; j += 32) {
    const float2 x = rotated(j);
    if (!(fabsf(x.x) <= kLargestStored && fabsf(x.y) <= kLargestStored)) atomicMin(p.error, target.position);
    const __half2 pair = __floats2half2_rn(x.x, x.y);
    if (p.keys != nullptr) reinterpret_cast<__half2*>(p.keys + row * dim)[j] = pair;
    if (in_window)
      row_at(target.exact + p.tiles.window_offset + target.window_tile * tile_bytes, slot)[j] = pair;
    if (in_sinks) row_at(target.exact + p.tiles.sink_offset, target.sink_slot)[j] = pair;
    if (target.page[0] >= 0) row_at(p.tiles.pool + target.page[0] * p.tiles.page_bytes, slot)[j] = pair;
  }
}

__global__ void __launch_bounds__(kThreads) LatentStoreKernel(const __grid_constant__ LatentStoreCall p) {
  const int lane = threadIdx.x & 31;
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + WarpIndex();
  WaitForPreviousKernel();
  LetNextKernelStart();
  if (vector >= p.rows * (p.heads + 1)) return;
  const int64_t row = vector / (p.heads + 1), head = vector % (p.heads + 1);
  const RowTarget target = p.targets[row];
  if (head < p.heads) {
    const int64_t query = row * p.heads + head;
    StoreQuery(p, {p, p.q + query * p.head_dim, target.position}, query, lane);
  } else {
    StoreKey(p, {p, p.k + row * p.head_dim, target.position}, row, target, lane);
  }
}

__global__ void __launch_bounds__(kThreads)
    LatentGatherKernel(const uint8_t* window, int window_tiles, int chunks, int64_t first, int64_t count,
                       int64_t base, uint4* rows) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count * chunks) return;
  const int64_t t = first + i / chunks;
  const int64_t from = (t / kPageSlots % window_tiles * kPageSlots + t % kPageSlots) * chunks + i % chunks;
  rows[(t - base) * chunks + i % chunks] = reinterpret_cast<const uint4*>(window)[from];
}

}  // namespace

Status LaunchLatentStore(const LatentStoreCall& call, CUstream_st* stream) {
  if (call.rows < 1 || call.heads < 1 || call.head_dim < 2)
    return Status(ErrorCode::kInvalidArgument, "CUDA latents: an empty batch");
  const int64_t vectors = call.rows * (call.heads + 1);
  return Launch("storing latents", LatentStoreKernel, (vectors + kThreads / 32 - 1) / (kThreads / 32),
                kThreads, 0, true, stream, call);
}

Status LaunchLatentGather(const uint8_t* exact, const LatentTiles& tiles, int32_t head_dim, int64_t first,
                          int64_t count, int64_t base, uint16_t* rows, CUstream_st* stream) {
  if (count <= 0) return Status::Ok();
  const int chunks = head_dim / 8;
  return Launch("gathering latents", LatentGatherKernel, (count * chunks + kThreads - 1) / kThreads, kThreads,
                0, true, stream, exact + tiles.window_offset, tiles.window_tiles, chunks, first, count, base,
                reinterpret_cast<uint4*>(rows));
}

}  // namespace blockgtq::cuda
