// The unpacker. A block turns the keys or the values of one KV head into rows, tile after tile (64 tokens) of
// a contiguous range, with the un-rotation in shared memory (where it fits) and the next tile's codes on
// their way. A warp has 32 tokens and 64 output dims: its codes become fp16 A fragments, scaled by the
// tokens' norms, and meet the un-rotation's B fragments unit by unit.
#include <algorithm>
#include <string>

#include "src/cuda/encode_mean.cuh"
#include "src/cuda/encode_pair.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/unpack.h"
#include "src/cuda/unpack_tile.cuh"

namespace blockgtq::cuda {
namespace {

using namespace unpacking;

/// kShared: the un-rotation is read from shared memory, not from where it is (from L2, mostly).
template <int kHeadDim, bool kShared>
__global__ void __launch_bounds__(kHeadDim, BlocksPerProcessor(kHeadDim))
    UnpackKernel(const __grid_constant__ UnpackParams p) {
  constexpr int kThreads = kHeadDim;  // 2 token halves x head_dim / 64
  constexpr int kPairs = kHeadDim / 16;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float2 mean[kHeadDim / 2];
  __shared__ EncodeHead heads[2];  // head h at h % 2: the current one and the next
  const int units = max(p.key_units, kPairs);
  const uint4* fragments = reinterpret_cast<const uint4*>(shared);
  uint8_t* ring = shared + (kShared ? units * kPairs * 512 : 0);
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
      for (int k = thread; kShared && k < side.units * kPairs * 32; k += kThreads) {
        CopyAsync(SharedAddress(fragments + k), from + k);
      }
      if (!kShared) fragments = from;
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

template <int kHeadDim, bool kShared = true>
Status LaunchFor(const UnpackParams& p, bool early, cudaStream_t stream) {
  const int units = std::max(p.key_units, kHeadDim / 16);
  const int bytes = units * ((kShared ? kHeadDim / 16 * 512 : 0) + 2 * (kMaxUnitBytes + kTokens));
  constexpr int kStaticBytes = kHeadDim / 2 * sizeof(float2) + 2 * sizeof(EncodeHead);
  int device = 0, processors = 0, limit = 0;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "unpacking"));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "unpacking"));
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "unpacking"));
  if constexpr (kShared && kHeadDim == 256) {  // other un-rotations fit everywhere
    if (bytes + kStaticBytes > limit) return LaunchFor<kHeadDim, false>(p, early, stream);
  }
  if (bytes + kStaticBytes > limit) {
    return Status(ErrorCode::kUnsupported,
                  "CUDA unpacking: a head with " + std::to_string(p.key_units) + " key units of head dim " +
                      std::to_string(kHeadDim) + " needs " + std::to_string(bytes + kStaticBytes) +
                      " bytes of shared memory, the GPU has " + std::to_string(limit));
  }
  const auto kernel = UnpackKernel<kHeadDim, kShared>;
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
