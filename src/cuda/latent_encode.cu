// The encoder of latents, in two kernels. The first computes coordinates (latent_coordinates.cuh). In the
// second a block has one group of one layer for one page, 16 tokens at a time:
//
//   1. The group's coordinates to shared memory.
//   2. A warp a token: scale, codes, norm (latent_round.cuh).
//   3. Codes become quad words (encode_pack.cuh).
//
// The page's quad words then become the units' words.
#include <algorithm>
#include <string>

#include "src/cuda/encode_pack.cuh"
#include "src/cuda/latent_coordinates.cuh"
#include "src/cuda/latent_encode.h"
#include "src/cuda/latent_round.cuh"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/shared_memory.cuh"

namespace blockgtq::cuda {
namespace {

using namespace latents;

constexpr int kTokens = 16;  // at a time

/// Shared memory, as byte offsets: for a group of so many units.
struct Places {
  int coordinates, codes, quads, norms, good, bytes;
};
__host__ __device__ inline Places PlacesOf(int units) {
  Places at;
  at.coordinates = 0;                          // float [16 tokens][16 units]
  at.codes = 4 * kTokens * 16 * units;         // uint8 [16 tokens][16 units]
  at.quads = at.codes + kTokens * 16 * units;  // uint2 [units][4][32 lanes]
  at.norms = at.quads + 8 * 4 * 32 * units;    // uint8 [64] by NormSlot
  at.good = at.norms + kTileTokens;            // uint8 [64]: 0 where a key is not finite
  at.bytes = at.good + kTileTokens;
  return at;
}

/// A group's coordinates of the tokens at slots [first, first + 16).
__device__ __forceinline__ void LoadCoordinates(const float* from, int stride, const LatentGroup& group,
                                                int first, float* to) {
  const int quads = 4 * group.units;
  for (int i = threadIdx.x; i < kTokens * quads; i += kThreads) {
    const int t = i / quads, quad = i % quads;
    float4 y = *reinterpret_cast<const float4*>(from + static_cast<int64_t>(first + t) * stride +
                                                16 * group.first_unit + 4 * quad);
    y.x *= group.factor, y.y *= group.factor, y.z *= group.factor, y.w *= group.factor;
    *reinterpret_cast<float4*>(to + t * 16 * group.units + 4 * quad) = y;
  }
}

/// The nibbles of four bytes below 16.
__device__ __forceinline__ uint32_t Nibbles(uint32_t bytes) {
  bytes = (bytes | bytes >> 4) & 0x00ff00ffu;
  return (bytes | bytes >> 8) & 0xffffu;
}

/// Quad word m, of these 16 tokens, of every unit and lane.
__device__ __forceinline__ void MakeQuads(const uint8_t* codes, int units, int m, uint2* quads) {
  for (int i = threadIdx.x; i < 32 * units; i += kThreads) {
    const int unit = i / 32, lane = i % 32;
    const uint8_t* from = codes + (lane >> 2) * 16 * units + 16 * unit + 4 * (lane & 3);
    const uint32_t a = *reinterpret_cast<const uint32_t*>(from);
    const uint32_t b = *reinterpret_cast<const uint32_t*>(from + 8 * 16 * units);
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    quads[(unit * 4 + m) * 32 + lane] = {Nibbles(a & kLow) | Nibbles(b & kLow) << 16,
                                         Nibbles(a >> 4 & kLow) | Nibbles(b >> 4 & kLow) << 16};
  }
}

template <int kWidth>
__device__ __forceinline__ void WriteCodes(const uint2* quads, uint64_t tokens, uint32_t* unit, int lane) {
  uint32_t low[4], high[4], words[kWidth], mask[kWidth];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    low[m] = quads[32 * m + lane].x;
    high[m] = quads[32 * m + lane].y;
  }
  PackPlanes<kWidth>(low, high, words);
#pragma unroll
  for (int m = 0; m < 4; ++m) low[m] = high[m] = OwnedNibbles(tokens, false, m, lane);
  PackPlanes<kWidth>(low, high, mask);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (mask[i] != 0) unit[32 * i + lane] = (unit[32 * i + lane] & ~mask[i]) | (words[i] & mask[i]);
  }
}

__device__ __forceinline__ void WriteCodes(int width, const uint2* quads, uint64_t tokens, uint32_t* unit,
                                           int lane) {
  switch (width) {
    case 1:
      return WriteCodes<1>(quads, tokens, unit, lane);
    case 2:
      return WriteCodes<2>(quads, tokens, unit, lane);
    case 3:
      return WriteCodes<3>(quads, tokens, unit, lane);
    case 4:
      return WriteCodes<4>(quads, tokens, unit, lane);
    case 5:
      return WriteCodes<5>(quads, tokens, unit, lane);
    default:
      return WriteCodes<8>(quads, tokens, unit, lane);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    LatentEncodeKernel(const __grid_constant__ LatentEncodeParams p) {
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  const int warp = WarpIndex(), lane = threadIdx.x & 31;
  WaitForPreviousKernel();
  LetNextKernelStart();
  // Blocks: jobs, then layers, then groups.
  const int job_index = static_cast<int>(blockIdx.x) % p.max_jobs,
            rest = static_cast<int>(blockIdx.x) / p.max_jobs;
  if (job_index >= *p.job_count) return;
  const int layer_index = rest % p.layer_count, g = rest / p.layer_count;
  const LatentCodec layer = p.layers[layer_index];
  if (g >= layer.group_count) return;
  const LatentGroup group = layer.groups[g];
  const EncodeJob job = p.jobs[job_index];
  const Places at = PlacesOf(group.units);
  float* coordinates = reinterpret_cast<float*>(shared + at.coordinates);
  uint8_t* codes = shared + at.codes;
  uint2* quads = reinterpret_cast<uint2*>(shared + at.quads);
  uint8_t *norms = shared + at.norms, *good = shared + at.good;
  const int padded = 16 * group.units;

#pragma unroll 1
  for (int m = job.begin / kTokens; kTokens * m < job.end; ++m) {
    LoadCoordinates(CoordinatesOf(p, job_index, layer_index), 16 * p.most_units, group, kTokens * m,
                    coordinates);
    __syncthreads();
    for (int t = warp; t < kTokens; t += kWarps) {
      const int slot = kTokens * m + t;
      bool finite = true;
      const uint8_t byte = RoundToken(group.width, coordinates + t * padded, group.dims, padded,
                                      group.reference, layer.searched != 0, lane, codes + t * padded, finite);
      if (lane == 0) {
        norms[8 * (slot & 7) + (slot >> 3)] = byte;
        good[slot] = finite ? 1 : 0;
      }
    }
    __syncthreads();
    MakeQuads(codes, group.units, m, quads);
    __syncthreads();
  }

  uint64_t tokens = 0;
  for (int slot = job.begin; slot < job.end; ++slot) {
    if (good[slot] != 0) {
      tokens |= uint64_t{1} << slot;
    } else if (threadIdx.x == 0) {
      atomicMin(p.error, static_cast<int32_t>(job.position + slot));
    }
  }
  uint8_t* record = p.pool + job.block[0] * p.block_bytes + layer.record_offset;
  for (int u = warp; u < group.units; u += kWarps) {
    uint32_t* unit = reinterpret_cast<uint32_t*>(record + group.codes + 128 * group.width * u);
    WriteCodes(group.width, quads + 4 * 32 * u, tokens, unit, lane);
  }
  if (warp == 0) WriteNorms<false>(norms, tokens, record + group.norms, lane);
}

template <int kRowTiles, bool kMean>
int CoordinatesSharedBytes(const LatentEncodeParams& p) {
  return 2 * 16 * kRowTiles * KeyStride(p.head_dim) * (kMean ? 2 : 1);
}

template <int kRowTiles, bool kMean>
Status LaunchCoordinates(const LatentEncodeParams& p, CUstream_st* stream) {
  const auto kernel = LatentCoordinatesKernel<kRowTiles, kMean>;
  const int bytes = CoordinatesSharedBytes<kRowTiles, kMean>(p);
  BGTQ_RETURN_IF_ERROR(
      AllowSharedMemory(kernel, bytes, "encoding latents: keys of " + std::to_string(p.head_dim) + " dims"));
  const int64_t blocks = int64_t{p.max_jobs} * p.layer_count * (kTileTokens / (16 * kRowTiles)) *
                         ((p.most_units + kWarps - 1) / kWarps);
  return Launch("encoding latents", kernel, blocks, kThreads, static_cast<size_t>(bytes), true, stream, p);
}

/// Whole pages where their keys fit in shared memory, otherwise 16 tokens a block.
template <bool kMean>
Status LaunchPageCoordinates(const LatentEncodeParams& p, CUstream_st* stream) {
  if (CoordinatesSharedBytes<4, kMean>(p) <= SharedMemoryLimit())
    return LaunchCoordinates<4, kMean>(p, stream);
  return LaunchCoordinates<1, kMean>(p, stream);
}

}  // namespace

int64_t LatentCoordinateBytes(const LatentEncodeParams& params) {
  return int64_t{4} * params.max_jobs * params.layer_count * kTileTokens * 16 * params.most_units;
}

Status LaunchLatentEncode(const LatentEncodeParams& params, CUstream_st* stream) {
  if (params.max_jobs <= 0 || params.layer_count <= 0 || params.most_groups <= 0)
    return Status(ErrorCode::kInvalidArgument, "encoding latents: no jobs, layers or groups");
  if (params.keys != nullptr && params.layer_count != 1)
    return Status(ErrorCode::kInvalidArgument, "encoding latents: rows are of one layer, not of " +
                                                   std::to_string(params.layer_count) +
                                                   "; launch each layer");
  BGTQ_RETURN_IF_ERROR(params.has_mean ? LaunchPageCoordinates<true>(params, stream)
                                       : LaunchPageCoordinates<false>(params, stream));
  const int bytes = PlacesOf(params.most_group_units).bytes;
  BGTQ_RETURN_IF_ERROR(AllowSharedMemory(
      LatentEncodeKernel, bytes,
      "encoding latents: a group of " + std::to_string(16 * params.most_group_units) + " dims"));
  const int64_t blocks = int64_t{params.max_jobs} * params.layer_count * params.most_groups;
  return Launch("encoding latents", LatentEncodeKernel, blocks, kThreads, static_cast<size_t>(bytes), true,
                stream, params);
}

}  // namespace blockgtq::cuda
