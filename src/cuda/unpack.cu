// The unpacker. A block turns the keys or the values of one KV head into rows, tile after tile (64 tokens) of
// a contiguous range, with the un-rotation in shared memory and the next tile's codes on their way. A warp
// has 32 tokens and 64 output dims: its codes become fp16 A fragments, scaled by the tokens' norms, and meet
// the un-rotation's B fragments unit by unit.
#include <algorithm>
#include <string>

#include "src/cuda/encode_mean.cuh"
#include "src/cuda/encode_pair.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/record_codes.cuh"
#include "src/cuda/unpack.h"

namespace blockgtq::cuda {
namespace {

constexpr int kTokens = 64;          // a tile
constexpr int kWarpDims = 64;        // output dims of a warp
constexpr int kWarpTiles = 8;        // 8-wide tiles of them
constexpr int kMaxUnitBytes = 1024;  // width 8

/// Two dims of four codes as fp16: bytes of `biased` (code + 128) that `selector` names.
__device__ __forceinline__ uint32_t CodesToPair(uint32_t biased, uint32_t selector) {
  return PairAdd(SelectBytes(biased, 0x64646464u, selector), HalfPair(-1152.0f));
}

/// A fragments of one unit: 16 tokens a block m of the warp's 32, norms not yet applied.
template <int kWidth, int kHalf, bool kValue>
__device__ __forceinline__ void UnitFragments(const uint32_t* codes, uint32_t (&a)[2][4]) {
  uint32_t quads[8];
  DecodeUnit<kWidth>(codes, quads);
  constexpr uint32_t kBias = 0x80808080u;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint32_t first = quads[4 * kHalf + 2 * m], second = quads[4 * kHalf + 2 * m + 1];
    if constexpr (kValue) {  // quads are tokens of one dim: bytes of dims d and d + 8 travel together
      const uint32_t low = TransposeB16(SelectBytes(first, second, 0x6240)) ^ kBias;
      const uint32_t high = TransposeB16(SelectBytes(first, second, 0x7351)) ^ kBias;
      a[m][0] = CodesToPair(low, 0x4240);
      a[m][1] = CodesToPair(high, 0x4240);
      a[m][2] = CodesToPair(low, 0x4341);
      a[m][3] = CodesToPair(high, 0x4341);
    } else {
      a[m][0] = CodesToPair(first ^ kBias, 0x4140);
      a[m][1] = CodesToPair(second ^ kBias, 0x4140);
      a[m][2] = CodesToPair(first ^ kBias, 0x4342);
      a[m][3] = CodesToPair(second ^ kBias, 0x4342);
    }
  }
}

constexpr int BlocksPerProcessor(int head_dim) { return head_dim <= 128 ? 512 / head_dim : 1; }

using Rows = float[2][kWarpTiles][4];  // [16-token block][8-wide tile][accumulator]

/// One group's share of the warp's rows. codes: plus the lane. norms: of tokens g, g + 8 of both blocks.
template <int kHeadDim, int kWidth, int kHalf, bool kValue>
__device__ __forceinline__ void AddGroup(const uint32_t* codes, const uint4* fragments, int units,
                                         const uint32_t (&norms)[4], Rows& rows) {
  constexpr bool kHalves = kWidth == 4 || kWidth == 5;  // codes stand for n + 1/2
  uint32_t halves[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) halves[i] = kHalves ? PairMultiply(norms[i], HalfPair(0.5f)) : 0;
#pragma unroll 1
  for (int u = 0; u < units; ++u) {
    uint32_t a[2][4];
    UnitFragments<kWidth, kHalf, kValue>(codes, a);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int token = 2 * m + (r & 1);
        a[m][r] =
            kHalves ? PairFma(a[m][r], norms[token], halves[token]) : PairMultiply(a[m][r], norms[token]);
      }
    }
#pragma unroll
    for (int j = 0; j < kWarpTiles / 2; ++j) {
      const uint4 b = fragments[32 * j];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint4 tokens = {a[m][0], a[m][1], a[m][2], a[m][3]};
        MmaF16(rows[m][2 * j], tokens, b.x, b.y);
        MmaF16(rows[m][2 * j + 1], tokens, b.z, b.w);
      }
    }
    codes += 32 * kWidth;
    fragments += kHeadDim / 16 * 32;
  }
}

template <int kHeadDim, int kHalf, bool kValue>
__device__ __forceinline__ void AddGroup(int width, const uint32_t* codes, const uint4* fragments, int units,
                                         const uint32_t (&norms)[4], Rows& rows) {
  switch (width) {
    case 1:
      return AddGroup<kHeadDim, 1, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 2:
      return AddGroup<kHeadDim, 2, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 3:
      return AddGroup<kHeadDim, 3, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 4:
      return AddGroup<kHeadDim, 4, kHalf, kValue>(codes, fragments, units, norms, rows);
    case 5:
      return AddGroup<kHeadDim, 5, kHalf, kValue>(codes, fragments, units, norms, rows);
    default:
      return AddGroup<kHeadDim, 8, kHalf, kValue>(codes, fragments, units, norms, rows);
  }
}

/// The norms of tokens g and g + 8 of both blocks as fp16 pairs, over the reference. bytes: of the group.
__device__ __forceinline__ void LoadNorms(const uint8_t* bytes, int half, int lane, uint32_t (&norms)[4]) {
  const uint32_t four = *reinterpret_cast<const uint32_t*>(bytes + 8 * (lane >> 2) + 4 * half);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float norm = Exp2(static_cast<float>(static_cast<int>(four >> (8 * i) & 255) - 128) * (1.0f / 32));
    norms[i] = PackPair(norm, norm);
  }
}

/// What one item reads: a head's keys or values.
struct Side {
  const EncodeGroup* groups;
  int group_count, units;
  int begin, bytes;  // its part of the record
  uint32_t mean_units;
  bool value;
};

__device__ __forceinline__ Side FindSide(const EncodeHead& head, bool value) {
  Side side;
  side.value = value;
  side.groups = value ? &head.value : head.key;
  side.group_count = value ? 1 : head.groups;
  const EncodeGroup& last = side.groups[side.group_count - 1];
  side.units = last.first_unit + last.units;
  side.begin = side.groups[0].codes;
  side.bytes = last.norms + kTokens - side.begin;
  side.mean_units = value ? 0 : head.mean_units;
  return side;
}

template <int kHeadDim, int kHalf, bool kValue>
__device__ __forceinline__ void DecodeTile(const Side& side, const uint8_t* codes, const uint4* fragments,
                                           int lane, Rows& rows) {
#pragma unroll 1
  for (int g = 0; g < side.group_count; ++g) {
    const EncodeGroup& group = side.groups[g];
    uint32_t norms[4];
    LoadNorms(codes + group.norms - side.begin, kHalf, lane, norms);
    AddGroup<kHeadDim, kHalf, kValue>(
        group.width, reinterpret_cast<const uint32_t*>(codes + group.codes - side.begin) + lane,
        fragments + group.first_unit * (kHeadDim / 16 * 32), group.units, norms, rows);
  }
}

/// Tokens of the tile that are exact and wanted, by the whole block. Few tiles have any.
template <int kHeadDim>
__device__ void CopyExact(const UnpackParams& p, int head, bool value, int64_t tile, uint16_t* out) {
  for (int i = threadIdx.x; i < kTokens * kHeadDim; i += blockDim.x) {
    const int slot = i % kTokens, d = i / kTokens;
    const int64_t t = tile * kTokens + slot;
    if (t < p.first || t >= p.first + p.count || (t >= p.sinks && t < p.coded_end)) continue;
    const bool sink = t < p.sinks;
    const int tokens = sink ? p.sink_tile_tokens : kTokens;
    const int64_t index = sink ? head : static_cast<int64_t>(head) * p.window_tiles + tile % p.window_tiles;
    const uint16_t* from =
        reinterpret_cast<const uint16_t*>(p.exact + (sink ? p.sink_offset : p.window_offset)) +
        index * 2 * kHeadDim * tokens;
    out[((t - p.first) * p.kv_heads + head) * kHeadDim + d] =
        value ? from[tokens * kHeadDim + slot * kHeadDim + d] : from[d * tokens + slot];
  }
}

/// Rows of the warp's coded tokens: a lane has 8 dims of a token at a time. mean: turned to the tile's start
/// (zero where the head has none), with kMean.
template <int kHeadDim, bool kMean>
__device__ __forceinline__ void StoreRows(const UnpackParams& p, const Rows& rows, float scale,
                                          const float2* mean, int64_t tile, int half, int first_dim, int lane,
                                          uint16_t* out) {
  // Slots of the tile that are wanted and coded.
  const int64_t start = tile * kTokens;
  const int begin = static_cast<int>(max(max(p.first, static_cast<int64_t>(p.sinks)) - start, int64_t{0}));
  const int end = static_cast<int>(min(min(p.first + p.count, p.coded_end) - start, int64_t{kTokens}));
  const int row = p.kv_heads * kHeadDim;
  out += (start - p.first) * row + first_dim + 8 * (lane & 3);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int slot = 32 * half + 16 * m + 8 * r + (lane >> 2);
      if (slot < begin || slot >= end) continue;
#pragma unroll
      for (int c = 0; c < kWarpDims / 32; ++c) {
        const int dim = first_dim + 32 * c + 8 * (lane & 3);
        const float4* rotation = reinterpret_cast<const float4*>(p.slot_rotation + slot * kHeadDim + dim);
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* y = &rows[m][4 * c + i][2 * r];
          if constexpr (kMean) {
            const float4 turn = rotation[i >> 1];
            const float2 add =
                MeanAt(mean[dim / 2 + i], i & 1 ? float2{turn.z, turn.w} : float2{turn.x, turn.y});
            words[i] = PackPair(fmaf(y[0], scale, add.x), fmaf(y[1], scale, add.y));
          } else {
            words[i] = PackPair(y[0] * scale, y[1] * scale);
          }
        }
        *reinterpret_cast<uint4*>(out + slot * row + 32 * c) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kHeadDim, BlocksPerProcessor(kHeadDim))
    UnpackKernel(const __grid_constant__ UnpackParams p) {
  constexpr int kThreads = kHeadDim;  // 2 token halves x head_dim / 64
  constexpr int kPairs = kHeadDim / 16;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float2 mean[kHeadDim / 2];
  __shared__ EncodeHead heads[2];  // head h at h % 2: the current one and the next
  const int units = max(p.key_units, kPairs);
  uint4* fragments = reinterpret_cast<uint4*>(shared);
  uint8_t* ring = shared + units * kPairs * 512;
  const int stage_bytes = units * (kMaxUnitBytes + kTokens);
  const int thread = threadIdx.x, lane = thread & 31;
  const int warp = __shfl_sync(~0u, thread >> 5, 0);  // the compiler then knows it for the same in all lanes
  const int half = warp & 1, first_dim = kWarpDims * (warp >> 1);

  WaitForPreviousKernel();
  LetNextKernelStart();
  const int first_tile = static_cast<int>(p.first / kTokens);
  const int tiles = static_cast<int>((p.first + p.count + kTokens - 1) / kTokens) - first_tile;
  const int64_t items = static_cast<int64_t>(tiles) * p.kv_heads * 2;
  const int64_t begin = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;
  const int coded_tiles = static_cast<int>((p.coded_end + kTokens - 1) / kTokens);
  if (begin >= end) return;
  // An item: a tile (counted from first_tile) of a side (keys, values of a head).
  struct Place {
    int side, tile;
  };
  const auto next_of = [&](Place at) {
    return at.tile + 1 < tiles ? Place{at.side, at.tile + 1} : Place{at.side + 1, 0};
  };
  const auto block_of = [&](Place at) {
    const int tile = first_tile + at.tile;
    return tile < coded_tiles ? p.block_table[tile] : 0;
  };
  const auto load_head = [&](int h) {
    const uint4* from = reinterpret_cast<const uint4*>(p.heads + p.layer * p.kv_heads + h);
    for (int k = thread; h < p.kv_heads && k < static_cast<int>(sizeof(EncodeHead) / 16); k += kThreads) {
      CopyAsync(SharedAddress(&heads[h & 1]) + 16 * k, from + k);
    }
  };
  const auto load_codes = [&](Place at, int block, int stage) {
    if (first_tile + at.tile < coded_tiles) {
      const EncodeHead& head = heads[at.side / 2 & 1];
      const Side side = FindSide(head, at.side & 1);
      const uint8_t* from = p.pool + block * p.block_bytes + head.record_offset + side.begin;
      const uint32_t to = SharedAddress(ring + stage * stage_bytes);
      for (int k = 16 * thread; k < side.bytes; k += 16 * kThreads) CopyAsync(to + k, from + k);
    }
  };

  Place at = {static_cast<int>(begin / tiles), static_cast<int>(begin % tiles)};
  load_head(at.side / 2);
  load_head(at.side / 2 + 1);
  WaitForCopies();
  __syncthreads();
  load_codes(at, block_of(at), 0);
  EndCopyGroup();
  int loaded = -1, next_block = block_of(next_of(at));
  for (int64_t i = begin; i < end; ++i) {
    const Place next = next_of(at);
    const int h = at.side / 2, tile = first_tile + at.tile;
    const int64_t head_index = static_cast<int64_t>(p.layer) * p.kv_heads + h;
    const Side side = FindSide(heads[h & 1], at.side & 1);
    if (at.side != loaded) {
      loaded = at.side;
      const uint4* from = reinterpret_cast<const uint4*>(side.value ? p.value_fragments : p.key_fragments) +
                          head_index * (side.value ? kPairs : p.key_units) * kPairs * 32;
      for (int k = thread; k < side.units * kPairs * 32; k += kThreads) {
        CopyAsync(SharedAddress(fragments + k), from + k);
      }
      if (at.side & 1) load_head(h + 1);
      WaitForCopies();
      __syncthreads();
    }
    if (i + 1 < end) load_codes(next, next_block, static_cast<int>(i + 1 - begin) & 1);
    EndCopyGroup();
    next_block = block_of(next_of(next));
    if (side.mean_units) {
      TurnMean(reinterpret_cast<const float2*>(p.key_mean) + head_index * (kHeadDim / 2), p.steps,
               int64_t{tile} * kTokens, kHeadDim / 2, mean);
    }
    WaitForCopiesBut<1>();
    __syncthreads();

    uint16_t* out = side.value ? p.values : p.keys;
    if (tile < coded_tiles) {
      Rows rows = {};
      const uint8_t* codes = ring + (static_cast<int>(i - begin) & 1) * stage_bytes;
      const uint4* warp_fragments = fragments + (first_dim / 16) * 32 + lane;
      if (side.value) {
        if (half == 0) {
          DecodeTile<kHeadDim, 0, true>(side, codes, warp_fragments, lane, rows);
        } else {
          DecodeTile<kHeadDim, 1, true>(side, codes, warp_fragments, lane, rows);
        }
      } else if (half == 0) {
        DecodeTile<kHeadDim, 0, false>(side, codes, warp_fragments, lane, rows);
      } else {
        DecodeTile<kHeadDim, 1, false>(side, codes, warp_fragments, lane, rows);
      }
      const float scale = p.scale[2 * head_index + side.value];
      if (side.mean_units) {
        StoreRows<kHeadDim, true>(p, rows, scale, mean, tile, half, first_dim, lane, out + h * kHeadDim);
      } else {
        StoreRows<kHeadDim, false>(p, rows, scale, mean, tile, half, first_dim, lane, out + h * kHeadDim);
      }
    }
    if (int64_t{tile} * kTokens < p.sinks || (int64_t{tile} + 1) * kTokens > p.coded_end) {
      CopyExact<kHeadDim>(p, h, side.value, tile, out);
    }
    __syncthreads();
    at = next;
  }
}

template <int kHeadDim>
Status LaunchFor(const UnpackParams& p, bool early, cudaStream_t stream) {
  const int units = std::max(p.key_units, kHeadDim / 16);
  const int bytes = units * (kHeadDim / 16 * 512 + 2 * (kMaxUnitBytes + kTokens));
  int device = 0, processors = 0, limit = 0;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "unpacking"));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "unpacking"));
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "unpacking"));
  if (bytes > limit) {
    return Status(ErrorCode::kUnsupported,
                  "CUDA unpacking: a head with " + std::to_string(p.key_units) + " key units of head dim " +
                      std::to_string(kHeadDim) + " needs " + std::to_string(bytes) +
                      " bytes of shared memory, the GPU has " + std::to_string(limit));
  }
  const auto kernel = UnpackKernel<kHeadDim>;
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "unpacking"));
  const int64_t tiles = (p.first + p.count + kTokens - 1) / kTokens - p.first / kTokens;
  const int64_t blocks = int64_t{processors} * BlocksPerProcessor(kHeadDim);
  return Launch("unpacking", kernel, std::min(tiles * p.kv_heads * 2, blocks), kHeadDim, bytes, early, stream,
                p);
}

}  // namespace

Status LaunchUnpack(const UnpackParams& params, bool early, CUstream_st* stream) {
  if (params.count <= 0 || params.first < 0 || params.kv_heads <= 0) {
    return Status(ErrorCode::kInvalidArgument, "CUDA unpacking: no tokens or heads to unpack");
  }
  if (!params.exact && (params.first < params.sinks || params.first + params.count > params.coded_end)) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA unpacking: tokens [" + std::to_string(params.first) + ", " +
                      std::to_string(params.first + params.count) + ") need exact tiles outside of codes [" +
                      std::to_string(params.sinks) + ", " + std::to_string(params.coded_end) + ")");
  }
  switch (params.head_dim) {
    case 64:
      return LaunchFor<64>(params, early, stream);
    case 128:
      return LaunchFor<128>(params, early, stream);
    case 256:
      return LaunchFor<256>(params, early, stream);
    default:
      return Status(ErrorCode::kUnsupported, "CUDA unpacking: head dim " + std::to_string(params.head_dim) +
                                                 "; the kernel has 64, 128 and 256");
  }
}

}  // namespace blockgtq::cuda
