// The encoder. A block encodes the keys or the values of one KV head of one layer for one page, page after
// page of a contiguous range of such items, so that it loads a transform only when the head changes. A warp
// has 16 of the page's tokens.
//
//   1. The tile comes to shared memory; fragments of 16 tokens go to registers, less the rotated mean.
//   2. Coordinates in the rotated space, by groups, and their norms (tensor products, fp16 with fp32 sums).
//   3. Each group searches its scale and rounds (encode_search.cuh).
//   4. Codes of the four warps meet in shared memory and become the units' words (encode_pack.cuh).
#include <algorithm>
#include <string>

#include "src/cuda/encode.h"
#include "src/cuda/encode_mean.cuh"
#include "src/cuda/encode_pack.cuh"
#include "src/cuda/encode_pair.cuh"
#include "src/cuda/encode_search.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4;
constexpr int kTokens = 64;                  // a page
constexpr int kUnitTile = kTokens * 16 * 2;  // shared bytes of a unit's coordinates: [4][32] uint4
constexpr int kFragmentBytes = 512;          // a unit's fragments of 16 columns
constexpr float kLargestInverse = 60000.0f;  // fp16, finite

/// Shared memory, in this order: transform, tile (fp16 tokens, then coordinates, then quad words), tables.
struct Tables {
  float2 mean[128];                           // the mean of each frequency block, turned to the page's start
  float norm[kEncodeGroups][kTokens];         // over the norm's reference
  uint8_t norm_byte[kEncodeGroups][kTokens];  // by NormSlot
  uint32_t bad[2];                            // bit t: the token is not finite
};

struct Item {
  const EncodeHead* head;
  const EncodeGroup* groups;
  int group_count;
  int layer, kv_head, head_index;
  bool value;
  EncodeJob job;
};

template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(uint32_t (&a)[4], uint32_t address) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address));
  }
}

/// The tile in shared memory: rows of 16-byte chunks, chunk c of row r at place c ^ (r % 8).
__device__ __forceinline__ uint32_t ChunkAddress(uint32_t tile, int row, int chunk, int chunks) {
  return tile + 16 * (row * chunks + (chunk ^ (row & 7)));
}

/// Starts the copy of the item's 64 tokens: keys of the window [head_dim][64], otherwise [64][head_dim].
template <int kHeadDim>
__device__ void LoadTile(const EncodeParams& p, const Item& item, uint32_t tile) {
  const EncodeJob& job = item.job;
  constexpr int kTileHalves = kTokens * kHeadDim;
  if (p.keys) {
    constexpr int kChunks = kHeadDim / 8;
    const uint16_t* rows = item.value ? p.values : p.keys;
    for (int i = threadIdx.x; i < kTokens * kChunks; i += kThreads) {
      const int slot = i / kChunks, chunk = i % kChunks;
      const uint32_t to = ChunkAddress(tile, slot, chunk, kChunks);
      if (slot >= job.begin && slot < job.end) {
        const int64_t row = job.first_row + slot - job.begin;
        CopyAsync(to, rows + (row * p.kv_heads + item.kv_head) * kHeadDim + 8 * chunk);
      } else {
        ClearAsync(to, rows);
      }
    }
    return;
  }
  const int ring = static_cast<int>(job.position / kTokens % p.window_tiles);
  const uint16_t* from = reinterpret_cast<const uint16_t*>(job.exact + p.window_offset[item.layer]) +
                         (static_cast<int64_t>(item.kv_head) * p.window_tiles + ring) * 2 * kTileHalves +
                         (item.value ? kTileHalves : 0);
  const int chunks = item.value ? kHeadDim / 8 : kTokens / 8;
  for (int i = threadIdx.x; i < kTileHalves / 8; i += kThreads) {
    CopyAsync(ChunkAddress(tile, i / chunks, i % chunks, chunks), from + 8 * i);
  }
}

/// A fragments of the warp's 16 tokens. step s, register r of a lane 4 g + t: token g + 8 (r % 2), dims
/// 16 s + 8 (r / 2) + 2 t and the next.
template <int kHeadDim, bool kTransposed>
__device__ __forceinline__ void LoadTokens(uint32_t (&a)[kHeadDim / 16][4], uint32_t tile, int warp,
                                           int lane) {
  const int matrix = lane >> 3, row = lane & 7;
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
    if constexpr (kTransposed) {
      LoadMatrices<true>(
          a[s], ChunkAddress(tile, 16 * s + row + 8 * (matrix >> 1), 2 * warp + (matrix & 1), kTokens / 8));
    } else {
      LoadMatrices<false>(
          a[s], ChunkAddress(tile, 16 * warp + row + 8 * (matrix & 1), 2 * s + (matrix >> 1), kHeadDim / 8));
    }
  }
}

/// k - R_t mu, where R_t turns the page's start (in table.mean) on by the token's slot.
template <int kHeadDim>
__device__ __forceinline__ void RemoveMean(uint32_t (&a)[kHeadDim / 16][4], const EncodeParams& p,
                                           uint32_t mean_units, const Tables& table, int warp, int lane) {
  const float2* rotation = reinterpret_cast<const float2*>(p.slot_rotation);
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
    if (!(mean_units >> s & 1)) continue;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int slot = 16 * warp + (lane >> 2) + 8 * (r & 1), block = 8 * s + 4 * (r >> 1) + (lane & 3);
      const float2 mean = MeanAt(table.mean[block], rotation[slot * (kHeadDim / 2) + block]);
      const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&a[s][r]));
      a[s][r] = PackPair(x.x - mean.x, x.y - mean.y);
    }
  }
}

/// Marks tokens that are not finite: an exponent of all ones times zero is NaN.
template <int kHeadDim>
__device__ __forceinline__ void FindBad(const uint32_t (&a)[kHeadDim / 16][4], const EncodeParams& p,
                                        const EncodeJob& job, Tables& table, int warp, int lane) {
  uint32_t zero[2] = {0, 0};
#pragma unroll
  for (int s = 0; s < kHeadDim / 16; ++s) {
#pragma unroll
    for (int r = 0; r < 4; ++r) zero[r & 1] = PairFma(a[s][r], 0, zero[r & 1]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int slot = 16 * warp + (lane >> 2) + 8 * r;
    if ((zero[r] & kPairMagnitude) != 0 && slot >= job.begin && slot < job.end) {
      atomicOr(&table.bad[slot >> 5], 1u << (slot & 31));
      atomicMin(p.error, static_cast<int32_t>(job.position + slot));
    }
  }
}

/// Coordinates of every unit to the tile, and norms by group to table.norm.
template <int kHeadDim>
__device__ __forceinline__ void Rotate(const uint32_t (&a)[kHeadDim / 16][4], const uint4* transform,
                                       const Item& item, uint4* coordinates, Tables& table, int warp,
                                       int lane) {
  constexpr int kSteps = kHeadDim / 16;
#pragma unroll 1
  for (int g = 0; g < item.group_count; ++g) {
    const EncodeGroup& group = item.groups[g];
    const float factor = group.factor;
    const int first = group.first_unit, end = first + group.units;
    float square[2] = {0, 0};
#pragma unroll 1
    for (int u = first; u < end; ++u) {
      float y[8] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4 b = transform[(u * kSteps + s) * 32 + lane];
        const uint4 tokens = {a[s][0], a[s][1], a[s][2], a[s][3]};
        MmaF16(y, tokens, b.x, b.y);
        MmaF16(y + 4, tokens, b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        y[i] *= factor;
        square[(i >> 1) & 1] = fmaf(y[i], y[i], square[(i >> 1) & 1]);
      }
      coordinates[(u * kWarps + warp) * 32 + lane] = {PackPair(y[0], y[1]), PackPair(y[4], y[5]),
                                                      PackPair(y[2], y[3]), PackPair(y[6], y[7])};
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      square[r] += __shfl_xor_sync(~0u, square[r], 1);
      square[r] += __shfl_xor_sync(~0u, square[r], 2);
      if ((lane & 3) == 0) table.norm[g][16 * warp + (lane >> 2) + 8 * r] = sqrtf(square[r]);
    }
  }
}

/// The byte of a norm that is given over its reference (core/log_norm.h).
__device__ __forceinline__ uint8_t LogNormByte(float norm) {
  if (!(norm > 0)) return 0;
  return static_cast<uint8_t>(fminf(fmaxf(roundf(log2f(norm) * 32.0f) + 128.0f, 0.0f), 255.0f));
}

/// Searches, rounds and leaves quad words in place of the coordinates: x: low nibbles, y: high ones.
template <int kWidth>
__device__ __noinline__ void RoundGroup(const EncodeGroup& group, bool value, bool searched,
                                        uint4* coordinates, const float* norm, uint8_t* norm_byte, int warp,
                                        int lane) {
  const int first = group.first_unit, end = first + group.units;
  const int padding = 16 * group.units - group.dims;
  const float root = sqrtf(static_cast<float>(group.dims));
  uint32_t to_unit[2], scale[2];
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    const int slot = 16 * warp + (lane >> 2) + 8 * r;
    const float length = norm[slot];
    const float inverse = length > 0 ? fminf(__fdividef(root, length), kLargestInverse) : 0.0f;
    const uint32_t unit = PackPair(inverse, inverse);
    SearchSums sums = {};
#pragma unroll 1
    for (int u = first; u < end; ++u) {
      const uint2 y = reinterpret_cast<const uint2*>(&coordinates[(u * kWarps + warp) * 32 + lane])[r];
      AddSearch<kWidth>(PairMultiply(y.x, unit) & kPairMagnitude, PairMultiply(y.y, unit) & kPairMagnitude,
                        sums);
    }
    const BestScale best = ChooseScale<kWidth>(sums, padding, searched, lane);
    if ((lane & 3) == 0) {
      const float correction = best.energy > 0 ? root * rsqrtf(best.energy) : 1.0f;
      norm_byte[8 * (slot & 7) + (slot >> 3)] = LogNormByte(length * correction);
    }
    const uint32_t chosen = CodeScale<kWidth>(best.index);
    if (r == 0) {
      to_unit[0] = unit;
      scale[0] = chosen;
    } else {
      to_unit[1] = unit;
      scale[1] = chosen;
    }
  }
#pragma unroll 1
  for (int u = first; u < end; ++u) {
    uint4& place = coordinates[(u * kWarps + warp) * 32 + lane];
    const uint4 y = place;
    const uint32_t a0 = RoundPair<kWidth>(PairMultiply(y.x, to_unit[0]), scale[0]);
    const uint32_t a1 = RoundPair<kWidth>(PairMultiply(y.y, to_unit[0]), scale[0]);
    const uint32_t b0 = RoundPair<kWidth>(PairMultiply(y.z, to_unit[1]), scale[1]);
    const uint32_t b1 = RoundPair<kWidth>(PairMultiply(y.w, to_unit[1]), scale[1]);
    const auto word = [&](int shift) {
      constexpr uint32_t kNibble = 0x000f000fu;
      const uint32_t c[4] = {(a0 >> shift) & kNibble, (a1 >> shift) & kNibble, (b0 >> shift) & kNibble,
                             (b1 >> shift) & kNibble};
      return value ? ValueQuadWord(c[0], c[1], c[2], c[3]) : KeyQuadWord(c[0], c[1], c[2], c[3]);
    };
    uint2 words = {word(0), 0};
    if constexpr (kWidth > 4) words.y = word(4);
    if (16 * (u + 1 - first) > group.dims) {  // padding has code 0
      const int dims = min(max(group.dims - 16 * (u - first) - 4 * (lane & 3), 0), 4);
      const uint32_t keep = ((1u << (4 * dims)) - 1) * 0x10001u;
      words.x &= keep;
      words.y &= keep;
    }
    *reinterpret_cast<uint2*>(&place) = words;
  }
}

__device__ __forceinline__ void RoundGroup(const EncodeGroup& group, bool value, bool searched,
                                           uint4* coordinates, const float* norm, uint8_t* norm_byte,
                                           int warp, int lane) {
  switch (group.width) {
    case 1:
      return RoundGroup<1>(group, value, searched, coordinates, norm, norm_byte, warp, lane);
    case 2:
      return RoundGroup<2>(group, value, searched, coordinates, norm, norm_byte, warp, lane);
    case 3:
      return RoundGroup<3>(group, value, searched, coordinates, norm, norm_byte, warp, lane);
    case 4:
      return RoundGroup<4>(group, value, searched, coordinates, norm, norm_byte, warp, lane);
    case 5:
      return RoundGroup<5>(group, value, searched, coordinates, norm, norm_byte, warp, lane);
    default:
      return RoundGroup<8>(group, value, searched, coordinates, norm, norm_byte, warp, lane);
  }
}

/// All ones in the nibbles of quad word m whose tokens are in `tokens`.
__device__ __forceinline__ uint32_t OwnedNibbles(uint64_t tokens, bool value, int m, int lane) {
  const uint32_t of_tile = static_cast<uint32_t>(tokens >> (16 * m)) & 0xffffu;
  if (!value) {
    const int g = lane >> 2;
    return (of_tile >> g & 1 ? 0xffffu : 0u) | (of_tile >> (g + 8) & 1 ? 0xffff0000u : 0u);
  }
  const uint32_t t = of_tile >> (2 * (lane & 3));
  return ((t & 1 ? 0xfu : 0u) | (t >> 8 & 1 ? 0xf0u : 0u) | (t >> 1 & 1 ? 0xf00u : 0u) |
          (t >> 9 & 1 ? 0xf000u : 0u)) *
         0x10001u;
}

/// Writes the lane's words of one unit: all of them, or the bits of `tokens`.
template <int kWidth>
__device__ __forceinline__ void WriteUnit(const uint4* coordinates, uint64_t tokens, bool value,
                                          uint32_t* unit, int lane) {
  uint32_t low[4], high[4], words[kWidth];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const uint2 quads = *reinterpret_cast<const uint2*>(&coordinates[m * 32 + lane]);
    low[m] = quads.x;
    high[m] = quads.y;
  }
  PackPlanes<kWidth>(low, high, words);
  if (tokens == ~uint64_t{0}) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) unit[32 * i + lane] = words[i];
    return;
  }
  uint32_t mask[kWidth];
#pragma unroll
  for (int m = 0; m < 4; ++m) low[m] = high[m] = OwnedNibbles(tokens, value, m, lane);
  PackPlanes<kWidth>(low, high, mask);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (mask[i] != 0) unit[32 * i + lane] = (unit[32 * i + lane] & ~mask[i]) | (words[i] & mask[i]);
  }
}

__device__ __forceinline__ void WriteRecord(const Item& item, const uint4* coordinates, const Tables& table,
                                            uint64_t tokens, uint8_t* record, int warp, int lane) {
  for (int g = 0; g < item.group_count; ++g) {
    const EncodeGroup& group = item.groups[g];
    for (int i = 0; i < group.units; ++i) {
      const int u = group.first_unit + i;
      if (u % kWarps != warp) continue;
      const uint4* codes = coordinates + u * kWarps * 32;
      uint32_t* unit = reinterpret_cast<uint32_t*>(record + group.codes + 128 * group.width * i);
      switch (group.width) {
        case 1:
          WriteUnit<1>(codes, tokens, item.value, unit, lane);
          break;
        case 2:
          WriteUnit<2>(codes, tokens, item.value, unit, lane);
          break;
        case 3:
          WriteUnit<3>(codes, tokens, item.value, unit, lane);
          break;
        case 4:
          WriteUnit<4>(codes, tokens, item.value, unit, lane);
          break;
        case 5:
          WriteUnit<5>(codes, tokens, item.value, unit, lane);
          break;
        default:
          WriteUnit<8>(codes, tokens, item.value, unit, lane);
      }
    }
    uint8_t* norms = record + group.norms;
    if (g % kWarps != warp) continue;
    if (tokens == ~uint64_t{0}) {
      if (lane < 16) {
        reinterpret_cast<uint32_t*>(norms)[lane] =
            reinterpret_cast<const uint32_t*>(table.norm_byte[g])[lane];
      }
      continue;
    }
#pragma unroll
    for (int t = lane; t < kTokens; t += 32) {
      const int slot = 8 * (t & 7) + (t >> 3);
      if (tokens >> t & 1) norms[slot] = table.norm_byte[g][slot];
    }
  }
}

__device__ __forceinline__ uint64_t SlotMask(int begin, int end) {
  return (end >= kTokens ? ~uint64_t{0} : (uint64_t{1} << end) - 1) & ~((uint64_t{1} << begin) - 1);
}

template <int kHeadDim, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) EncodeKernel(const __grid_constant__ EncodeParams p) {
  constexpr int kSteps = kHeadDim / 16;
  extern __shared__ __align__(128) uint8_t shared[];
  const int units = max(p.key_units, kSteps);
  uint4* transform = reinterpret_cast<uint4*>(shared);
  uint4* coordinates = reinterpret_cast<uint4*>(shared + units * kSteps * kFragmentBytes);
  Tables& table = *reinterpret_cast<Tables*>(shared + units * (kSteps * kFragmentBytes + kUnitTile));
  const uint32_t tile = SharedAddress(coordinates);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;

  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t jobs = min(*p.job_count, p.max_jobs);
  const int64_t items = jobs * p.layers * p.kv_heads * 2;
  const int64_t begin = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;
  int64_t loaded = -1;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t side = i / jobs;  // of (layer, head): keys, values
    Item item;
    item.job = p.jobs[i % jobs];
    item.value = side & 1;
    const int head_of_launch = static_cast<int>(side >> 1);
    item.head_index = p.first_layer * p.kv_heads + head_of_launch;
    item.kv_head = head_of_launch % p.kv_heads;
    item.layer = p.first_layer + head_of_launch / p.kv_heads;
    item.head = p.heads + item.head_index;
    item.groups = item.value ? &item.head->value : item.head->key;
    item.group_count = item.value ? 1 : item.head->groups;
    LoadTile<kHeadDim>(p, item, tile);
    if (side != loaded) {
      loaded = side;
      const int64_t stride = static_cast<int64_t>(item.value ? kSteps : p.key_units) * 16 * kHeadDim;
      const uint4* from = reinterpret_cast<const uint4*>((item.value ? p.value_transform : p.key_transform) +
                                                         item.head_index * stride);
      const EncodeGroup& last = item.groups[item.group_count - 1];
      const int pieces = (last.first_unit + last.units) * kSteps * 32;
      for (int k = thread; k < pieces; k += kThreads) CopyAsync(SharedAddress(transform + k), from + k);
    }
    const uint32_t mean_units = item.value ? 0 : item.head->mean_units;
    if (mean_units) {
      const float2* means = reinterpret_cast<const float2*>(p.key_mean);
      TurnMean(means + static_cast<int64_t>(item.head_index) * (kHeadDim / 2), p.steps, item.job.position,
               kHeadDim / 2, table.mean);
    }
    if (thread < 2) table.bad[thread] = 0;
    WaitForCopies();
    __syncthreads();

    const bool active = 16 * warp < item.job.end && 16 * warp + 16 > item.job.begin;
    uint32_t a[kSteps][4];
    if (active) {
      if (item.value || p.keys) {
        LoadTokens<kHeadDim, false>(a, tile, warp, lane);
      } else {
        LoadTokens<kHeadDim, true>(a, tile, warp, lane);
      }
      FindBad<kHeadDim>(a, p, item.job, table, warp, lane);
      if (mean_units) RemoveMean<kHeadDim>(a, p, mean_units, table, warp, lane);
    }
    __syncthreads();  // coordinates overwrite the tokens
    if (active) {
      Rotate<kHeadDim>(a, transform, item, coordinates, table, warp, lane);
      __syncwarp();
      const bool searched = item.head->searched;
#pragma unroll 1
      for (int g = 0; g < item.group_count; ++g) {
        RoundGroup(item.groups[g], item.value, searched, coordinates, table.norm[g], table.norm_byte[g], warp,
                   lane);
      }
    }
    __syncthreads();
    const uint64_t tokens =
        SlotMask(item.job.begin, item.job.end) & ~(static_cast<uint64_t>(table.bad[1]) << 32 | table.bad[0]);
    WriteRecord(item, coordinates, table, tokens,
                p.pool + item.job.block * p.block_bytes + item.head->record_offset, warp, lane);
    __syncthreads();
  }
}

template <int kHeadDim, int kBlocks>
Status LaunchFor(const EncodeParams& p, bool early, cudaStream_t stream) {
  const int units = std::max(p.key_units, kHeadDim / 16);
  const int bytes = units * (kHeadDim / 16 * kFragmentBytes + kUnitTile) + static_cast<int>(sizeof(Tables));
  int device = 0, processors = 0, limit = 0;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "encoder"));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "encoder"));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "encoder"));
  if (bytes > limit) {
    return Status(ErrorCode::kUnsupported,
                  "CUDA encoder: a head with " + std::to_string(p.key_units) + " key units of head dim " +
                      std::to_string(kHeadDim) + " needs " + std::to_string(bytes) +
                      " bytes of shared memory, the GPU has " + std::to_string(limit));
  }
  const auto kernel = EncodeKernel<kHeadDim, kBlocks>;
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "encoder"));
  const int64_t items = int64_t{2} * p.max_jobs * p.layers * p.kv_heads;
  return Launch("encoder", kernel, std::min<int64_t>(items, int64_t{processors} * kBlocks), kThreads, bytes,
                early, stream, p);
}

}  // namespace

Status LaunchEncode(const EncodeParams& params, bool early, CUstream_st* stream) {
  if (params.max_jobs <= 0 || params.layers <= 0 || params.kv_heads <= 0) {
    return Status(ErrorCode::kInvalidArgument, "CUDA encoder: no jobs, layers or heads to encode");
  }
  if (params.keys && params.layers != 1) {
    return Status(ErrorCode::kInvalidArgument, "CUDA encoder: rows are of one layer, not of " +
                                                   std::to_string(params.layers) + "; launch each layer");
  }
  switch (params.head_dim) {
    case 64:
      return LaunchFor<64, 4>(params, early, stream);
    case 128:
      return LaunchFor<128, 4>(params, early, stream);
    case 256:
      return LaunchFor<256, 1>(params, early, stream);
    default:
      return Status(ErrorCode::kUnsupported, "CUDA encoder: head dim " + std::to_string(params.head_dim) +
                                                 "; the encoder has 64, 128 and 256");
  }
}

}  // namespace blockgtq::cuda
