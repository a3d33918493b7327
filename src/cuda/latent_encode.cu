// The encoder of latents. A block has one group of one layer for one page. 16 tokens at a time:
//
//   1. Keys, less the rotated mean, to shared memory.
//   2. The group's coordinates (fp32).
//   3. A warp a token: scale, codes, norm (latent_round.cuh).
//   4. Codes become quad words (encode_pack.cuh).
//
// The page's quad words then become the units' words.
#include <algorithm>
#include <string>

#include "src/cuda/encode_pack.cuh"
#include "src/cuda/latent_encode.h"
#include "src/cuda/latent_round.cuh"
#include "src/cuda/latent_tile.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/shared_memory.cuh"

namespace blockgtq::cuda {
namespace {

using namespace latents;

constexpr int kTokens = 16;     // at a time
constexpr int kManyRows = 384;  // of a group: then a thread has two rows for all tokens

/// Shared memory, as byte offsets: for a group of so many units.
struct Places {
  int keys, coordinates, codes, quads, bytes;
};
__host__ __device__ inline Places PlacesOf(int head_dim, int units) {
  Places at;
  at.keys = 0;                                           // float [head_dim][16 tokens]
  at.coordinates = at.keys + 4 * kTokens * head_dim;     // float [16 tokens][16 units]
  at.codes = at.coordinates + 4 * kTokens * 16 * units;  // uint8 [16 tokens][16 units]
  at.quads = at.codes + kTokens * 16 * units;            // uint2 [units][4][32 lanes]
  at.bytes = at.quads + 8 * 4 * 32 * units;
  return at;
}

/// Keys of the tokens at slots [first, first + 16), less their mean; zero outside the job. good [64]: 0 where
/// a key is not finite.
__device__ __forceinline__ void LoadKeys(const LatentEncodeParams& p, const LatentCodec& layer,
                                         const EncodeJob& job, int first, float* keys, int* good) {
  const int chunks = p.head_dim / 8;
  const uint16_t* rows = p.keys;
  int64_t at = job.first_row - p.first_row - job.begin;  // of slot 0
  if (rows == nullptr) {
    rows = reinterpret_cast<const uint16_t*>(job.exact + layer.window_offset);
    at = job.position / kTileTokens % p.window_tiles * kTileTokens;
  }
  for (int i = threadIdx.x; i < kTokens * chunks; i += kThreads) {
    const int t = i % kTokens, chunk = i / kTokens, slot = first + t;
    uint4 words = {0, 0, 0, 0};
    const bool wanted = slot >= job.begin && slot < job.end;
    if (wanted) words = reinterpret_cast<const uint4*>(rows + (at + slot) * p.head_dim)[chunk];
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int block = 4 * chunk + j;
      float2 x = __half22float2(AsPair(pairs[j]));
      if (!(fabsf(x.x) <= 65504.0f && fabsf(x.y) <= 65504.0f)) {
        atomicMin(&good[slot], 0);
        x = {0, 0};
      }
      if (wanted && layer.mean != nullptr && (layer.mean[2 * block] != 0 || layer.mean[2 * block + 1] != 0)) {
        const float2 m = RotatedMean(layer.mean, block, p.steps[block], job.position + slot, p.rotary_dims,
                                     p.attention_factor);
        x.x -= m.x;
        x.y -= m.y;
      }
      keys[(2 * block) * kTokens + t] = x.x;
      keys[(2 * block + 1) * kTokens + t] = x.y;
    }
  }
}

/// Coordinates of rows row + kThreads i (i < kRows) for kCount tokens. transform: column 0 at the group's
/// first row.
template <int kRows, int kCount>
__device__ __forceinline__ void Coordinates(const float* transform, int stride, int dims, const float* keys,
                                            int row, int rows, float* out) {
  float sums[kRows][kCount] = {};
#pragma unroll 4
  for (int d = 0; d < dims; ++d) {
    float t[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) t[r] = row + kThreads * r < rows ? transform[row + kThreads * r] : 0.0f;
    transform += stride;
#pragma unroll
    for (int c = 0; c < kCount; c += 4) {
      const float4 k = *reinterpret_cast<const float4*>(keys + d * kTokens + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        sums[r][c] = fmaf(t[r], k.x, sums[r][c]);
        sums[r][c + 1] = fmaf(t[r], k.y, sums[r][c + 1]);
        sums[r][c + 2] = fmaf(t[r], k.z, sums[r][c + 2]);
        sums[r][c + 3] = fmaf(t[r], k.w, sums[r][c + 3]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + kThreads * r >= rows) break;
#pragma unroll
    for (int c = 0; c < kCount; ++c) out[c * rows + row + kThreads * r] = sums[r][c];
  }
}

__device__ __forceinline__ void RotateKeys(const LatentEncodeParams& p, const LatentCodec& layer,
                                           const LatentGroup& group, const float* keys, float* coordinates) {
  const int rows = 16 * group.units, stride = 16 * layer.unit_count;
  const float* transform = layer.transform + 16 * group.first_unit;
  if (rows >= kManyRows) {
    for (int row = threadIdx.x; row < rows; row += 2 * kThreads)
      Coordinates<2, kTokens>(transform, stride, p.head_dim, keys, row, rows, coordinates);
    return;
  }
  constexpr int kCount = 4;
  for (int i = threadIdx.x; i < rows * (kTokens / kCount); i += kThreads) {
    const int first = i / rows * kCount;
    Coordinates<1, kCount>(transform, stride, p.head_dim, keys + first, i % rows, rows,
                           coordinates + first * rows);
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
  __shared__ int good[kTileTokens];
  __shared__ uint8_t norms[kTileTokens];  // by NormSlot
  const int warp = WarpIndex(), lane = threadIdx.x & 31;
  WaitForPreviousKernel();
  LetNextKernelStart();
  // Blocks: jobs, then layers, then groups.
  const int job_index = static_cast<int>(blockIdx.x) % p.max_jobs,
            rest = static_cast<int>(blockIdx.x) / p.max_jobs;
  if (job_index >= *p.job_count) return;
  const LatentCodec layer = p.layers[rest % p.layer_count];
  const int g = rest / p.layer_count;
  if (g >= layer.group_count) return;
  const LatentGroup group = layer.groups[g];
  const EncodeJob job = p.jobs[job_index];
  const Places at = PlacesOf(p.head_dim, group.units);
  float* keys = reinterpret_cast<float*>(shared + at.keys);
  float* coordinates = reinterpret_cast<float*>(shared + at.coordinates);
  uint8_t* codes = shared + at.codes;
  uint2* quads = reinterpret_cast<uint2*>(shared + at.quads);
  const int padded = 16 * group.units;
  if (threadIdx.x < kTileTokens) good[threadIdx.x] = 1;
  __syncthreads();

#pragma unroll 1
  for (int m = job.begin / kTokens; kTokens * m < job.end; ++m) {
    LoadKeys(p, layer, job, kTokens * m, keys, good);
    __syncthreads();
    RotateKeys(p, layer, group, keys, coordinates);
    __syncthreads();
    for (int t = warp; t < kTokens; t += kWarps) {
      const int slot = kTokens * m + t;
      const uint8_t byte = RoundToken(group.width, coordinates + t * padded, group.dims, padded,
                                      group.reference, layer.searched != 0, lane, codes + t * padded);
      if (lane == 0) norms[8 * (slot & 7) + (slot >> 3)] = byte;
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

}  // namespace

Status LaunchLatentEncode(const LatentEncodeParams& params, CUstream_st* stream) {
  if (params.max_jobs <= 0 || params.layer_count <= 0 || params.most_groups <= 0)
    return Status(ErrorCode::kInvalidArgument, "encoding latents: no jobs, layers or groups");
  if (params.keys != nullptr && params.layer_count != 1)
    return Status(ErrorCode::kInvalidArgument, "encoding latents: rows are of one layer, not of " +
                                                   std::to_string(params.layer_count) +
                                                   "; launch each layer");
  const int bytes = PlacesOf(params.head_dim, params.most_group_units).bytes;
  BGTQ_RETURN_IF_ERROR(AllowSharedMemory(
      LatentEncodeKernel, bytes,
      "encoding latents: a group of " + std::to_string(16 * params.most_group_units) + " dims"));
  const int64_t blocks = int64_t{params.max_jobs} * params.layer_count * params.most_groups;
  return Launch("encoding latents", LatentEncodeKernel, blocks, kThreads, static_cast<size_t>(bytes), true,
                stream, params);
}

}  // namespace blockgtq::cuda
