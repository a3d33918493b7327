// The encoder. A block encodes the keys or the values (a side) of one KV head of one layer for one page, page
// after page of a contiguous range of such items: it loads a transform only when the side changes, and the
// next tokens arrive while it works. A warp has 16 of the page's tokens.
//
//   1. Fragments of 16 tokens go to registers, less the rotated mean (encode_tile.cuh).
//   2. Coordinates in the rotated space, by groups, and their norms (tensor products, fp16 with fp32 sums).
//   3. Each group searches its scale and rounds (encode_round.cuh, encode_search.cuh).
//   4. Codes of the four warps meet in shared memory and become the units' words (encode_pack.cuh).
#include <algorithm>
#include <string>

#include "src/cuda/encode.h"
#include "src/cuda/encode_pack.cuh"
#include "src/cuda/encode_round.cuh"
#include "src/cuda/encode_tile.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kUnitTile = kPageSlots * 16 * 2;  // shared bytes of a unit's coordinates: [4][32] uint4
constexpr int kFragmentBytes = 512;             // of 16 rows and 16 columns of a transform
constexpr int kJobs = 4;                        // ring of jobs: the current one and those ahead

/// Shared memory: transform (where it fits), coordinates [units][4 warps][32 lanes] (later quad words),
/// tokens, and these.
template <int kHeadDim>
struct Tables {
  EncodeHead head;
  EncodeJob jobs[kJobs];
  float2 mean[kHeadDim / 2];                     // of each frequency block, turned to the page's start
  float norm[kEncodeGroups][kPageSlots];         // over the norm's reference
  uint8_t norm_byte[kEncodeGroups][kPageSlots];  // by NormSlot
  uint32_t bad[2];                               // bit t: the token is not finite
};

/// Coordinates of every unit to shared memory, and norms by group to table.norm.
template <int kHeadDim>
__device__ __forceinline__ void Rotate(const uint32_t (&a)[kHeadDim / 16][4], const uint4* transform,
                                       const EncodeGroup* groups, int group_count, uint4* coordinates,
                                       Tables<kHeadDim>& table, int warp, int lane) {
  constexpr int kSteps = kHeadDim / 16;
  transform += lane;
  coordinates += warp * 32 + lane;
  int g = 0;
  do {
    const EncodeGroup& group = groups[g];
    const float factor = group.factor;
    int units = group.units;
    float square[2] = {0, 0};
#pragma unroll 1
    do {
      float y[2][8] = {};  // of even and odd steps: shorter chains
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4 b = transform[32 * s];
        const uint4 tokens = {a[s][0], a[s][1], a[s][2], a[s][3]};
        MmaF16(y[s & 1], tokens, b.x, b.y);
        MmaF16(y[s & 1] + 4, tokens, b.z, b.w);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        y[0][i] = (y[0][i] + y[1][i]) * factor;
        square[(i >> 1) & 1] = fmaf(y[0][i], y[0][i], square[(i >> 1) & 1]);
      }
      *coordinates = {PackPair(y[0][0], y[0][1]), PackPair(y[0][4], y[0][5]), PackPair(y[0][2], y[0][3]),
                      PackPair(y[0][6], y[0][7])};
      transform += 32 * kSteps;
      coordinates += 32 * kEncodeWarps;
    } while (--units > 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      square[r] += __shfl_xor_sync(~0u, square[r], 1);
      square[r] += __shfl_xor_sync(~0u, square[r], 2);
      if ((lane & 3) == 0) table.norm[g][16 * warp + (lane >> 2) + 8 * r] = sqrtf(square[r]);
    }
  } while (++g < group_count);
}

__device__ __forceinline__ uint64_t SlotMask(int begin, int end) {
  return (end >= kPageSlots ? ~uint64_t{0} : (uint64_t{1} << end) - 1) & ~((uint64_t{1} << begin) - 1);
}

__device__ __forceinline__ EncodeSide SideAt(const EncodeParams& p, int index) {
  const int head = index >> 1;
  return {p.first_layer * p.kv_heads + head, head % p.kv_heads, p.first_layer + head / p.kv_heads,
          (index & 1) != 0};
}

/// Starts the copy of a side's transform, with kShared, and of its head's description. Returns where the
/// transform is, or is going to be.
template <int kHeadDim, bool kShared>
__device__ __forceinline__ const uint4* LoadSide(const EncodeParams& p, const EncodeSide& side, uint4* shared,
                                                 EncodeHead* head) {
  constexpr int kSteps = kHeadDim / 16;
  const int pieces = (side.value ? kSteps : p.key_units) * kSteps * (kFragmentBytes / 16);
  const uint4* from = reinterpret_cast<const uint4*>(side.value ? p.value_transform : p.key_transform) +
                      static_cast<int64_t>(side.head_index) * pieces;
  for (int k = threadIdx.x; kShared && k < pieces; k += kEncodeThreads) {
    CopyAsync(SharedAddress(shared + k), from + k);
  }
  const uint4* description = reinterpret_cast<const uint4*>(p.heads + side.head_index);
  if (threadIdx.x < sizeof(EncodeHead) / 16) {
    CopyAsync(SharedAddress(head) + 16 * threadIdx.x, description + threadIdx.x);
  }
  return kShared ? shared : from;
}

__device__ __forceinline__ void LoadJob(const EncodeParams& p, int job, EncodeJob* to) {
  static_assert(sizeof(EncodeJob) % 16 == 0 && sizeof(EncodeHead) % 16 == 0);
  if (threadIdx.x < sizeof(EncodeJob) / 16) {
    CopyAsync(SharedAddress(to) + 16 * threadIdx.x,
              reinterpret_cast<const uint4*>(p.jobs + job) + threadIdx.x);
  }
}

/// kWhole: `tokens` are all.
template <int kHeadDim, bool kWhole>
__device__ __forceinline__ void WriteSide(const EncodeGroup* groups, int group_count, bool value,
                                          const uint4* coordinates, const Tables<kHeadDim>& table,
                                          uint64_t tokens, uint8_t* record, int warp, int lane) {
#pragma unroll 1
  for (int g = 0; g < group_count; ++g) {
    const EncodeGroup& group = groups[g];
#pragma unroll 1
    for (int i = (warp - group.first_unit) & (kEncodeWarps - 1); i < group.units; i += kEncodeWarps) {
      const uint4* codes = coordinates + (group.first_unit + i) * kEncodeWarps * 32;
      uint32_t* unit = reinterpret_cast<uint32_t*>(record + group.codes + 128 * group.width * i);
      WriteUnit<kWhole>(group.width, codes, tokens, value, unit, lane);
    }
    if (g % kEncodeWarps == warp) WriteNorms<kWhole>(table.norm_byte[g], tokens, record + group.norms, lane);
  }
}

/// kShared: the transform is read from shared memory, not from where it is (from L2, mostly).
template <int kHeadDim, int kBlocks, bool kShared>
__global__ void __launch_bounds__(kEncodeThreads, kBlocks)
    EncodeKernel(const __grid_constant__ EncodeParams p) {
  constexpr int kSteps = kHeadDim / 16;
  extern __shared__ __align__(128) uint8_t shared[];
  const int units = max(p.key_units, kSteps);
  const int transform_bytes = kShared ? units * kSteps * kFragmentBytes : 0;
  const uint4* transform = nullptr;
  uint4* coordinates = reinterpret_cast<uint4*>(shared + transform_bytes);
  uint8_t* tile = shared + transform_bytes + units * kUnitTile;
  Tables<kHeadDim>& table = *reinterpret_cast<Tables<kHeadDim>*>(tile + kSteps * kUnitTile);
  const int thread = threadIdx.x, lane = thread & 31;
  const int warp = __shfl_sync(~0u, thread >> 5, 0);  // the compiler then knows it for the same in all lanes

  WaitForPreviousKernel();
  LetNextKernelStart();
  const int jobs = min(*p.job_count, p.max_jobs);
  const int64_t items = static_cast<int64_t>(jobs) * p.layers * p.kv_heads * 2;
  const int64_t begin = items * blockIdx.x / gridDim.x, end = items * (blockIdx.x + 1) / gridDim.x;
  if (begin >= end) return;
  int side_index = static_cast<int>(begin / jobs), job_index = static_cast<int>(begin % jobs), loaded = -1;
  const auto next_of = [&](int job) { return job + 1 < jobs ? job + 1 : 0; };
  LoadJob(p, job_index, &table.jobs[begin % kJobs]);
  LoadJob(p, next_of(job_index), &table.jobs[(begin + 1) % kJobs]);
  WaitForCopies();
  __syncthreads();
  LoadTile<kHeadDim>(p, SideAt(p, side_index), table.jobs[begin % kJobs], SharedAddress(tile));

  for (int64_t i = begin; i < end; ++i) {
    const EncodeSide side = SideAt(p, side_index);
    const EncodeJob& job = table.jobs[i % kJobs];
    const int next_job = next_of(job_index), next_side = side_index + (next_job == 0 ? 1 : 0);
    if (side_index != loaded) {
      transform = LoadSide<kHeadDim, kShared>(p, side, reinterpret_cast<uint4*>(shared), &table.head);
    }
    loaded = side_index;
    LoadJob(p, next_of(next_job), &table.jobs[(i + 2) % kJobs]);
    if (thread < 2) table.bad[thread] = 0;
    WaitForCopies();
    __syncthreads();

    const EncodeGroup* groups = side.value ? &table.head.value : table.head.key;
    const int group_count = side.value ? 1 : table.head.groups;
    const uint32_t mean_units = side.value ? 0 : table.head.mean_units;
    if (mean_units) {
      TurnMean(
          reinterpret_cast<const float2*>(p.key_mean) + static_cast<int64_t>(side.head_index) * kHeadDim / 2,
          p.steps + table.head.rope * (kHeadDim / 2), job.position, kHeadDim / 2, table.mean);
      __syncthreads();
    }
    uint32_t a[kSteps][4];
    if (side.value || p.keys) {
      LoadTokens<kHeadDim, false>(a, SharedAddress(tile), warp, lane);
    } else {
      LoadTokens<kHeadDim, true>(a, SharedAddress(tile), warp, lane);
    }
    __syncthreads();
    if (i + 1 < end) {
      LoadTile<kHeadDim>(p, SideAt(p, next_side), table.jobs[(i + 1) % kJobs], SharedAddress(tile));
    }
    const uint32_t bad = NotFinite<kHeadDim>(a);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int slot = 16 * warp + (lane >> 2) + 8 * r;
      if ((bad >> r & 1) && slot >= job.begin && slot < job.end) {
        atomicOr(&table.bad[slot >> 5], 1u << (slot & 31));
        atomicMin(p.error, static_cast<int32_t>(job.position + slot));
      }
    }
    if (mean_units) {
      const float* rotation = p.slot_rotation + table.head.rope * (kPageSlots * kHeadDim);
      RemoveMean<kHeadDim>(a, reinterpret_cast<const float2*>(rotation), mean_units, table.mean, warp, lane);
    }
    Rotate<kHeadDim>(a, transform, groups, group_count, coordinates, table, warp, lane);
    __syncwarp();
    const bool searched = table.head.searched;
#pragma unroll 1
    for (int g = 0; g < group_count; ++g) {
      if (side.value) {
        RoundGroup<true>(groups[g], searched, coordinates, table.norm[g], table.norm_byte[g], warp, lane);
      } else {
        RoundGroup<false>(groups[g], searched, coordinates, table.norm[g], table.norm_byte[g], warp, lane);
      }
    }
    __syncthreads();
    const uint64_t tokens =
        SlotMask(job.begin, job.end) & ~(static_cast<uint64_t>(table.bad[1]) << 32 | table.bad[0]);
    const int group = table.head.group;
    uint8_t* record = p.pool[group] + job.block[group] * p.block_bytes[group] + table.head.record_offset;
    if (tokens == ~uint64_t{0}) {
      WriteSide<kHeadDim, true>(groups, group_count, side.value, coordinates, table, tokens, record, warp,
                                lane);
    } else {
      WriteSide<kHeadDim, false>(groups, group_count, side.value, coordinates, table, tokens, record, warp,
                                 lane);
    }
    __syncthreads();
    side_index = next_side;
    job_index = next_job;
  }
}

template <int kHeadDim, int kBlocks, bool kShared = true>
Status LaunchFor(const EncodeParams& p, bool early, cudaStream_t stream) {
  const int units = std::max(p.key_units, kHeadDim / 16);
  const int bytes = units * ((kShared ? kHeadDim / 16 * kFragmentBytes : 0) + kUnitTile) +
                    kHeadDim / 16 * kUnitTile + static_cast<int>(sizeof(Tables<kHeadDim>));
  int device = 0, processors = 0, limit = 0;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "encoder"));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "encoder"));
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "encoder"));
  if constexpr (kShared && kHeadDim == 256) {  // other transforms fit everywhere
    if (bytes > limit) return LaunchFor<kHeadDim, kBlocks, false>(p, early, stream);
  }
  if (bytes > limit) {
    return Status(ErrorCode::kUnsupported,
                  "CUDA encoder: a head with " + std::to_string(p.key_units) + " key units of head dim " +
                      std::to_string(kHeadDim) + " needs " + std::to_string(bytes) +
                      " bytes of shared memory, the GPU has " + std::to_string(limit));
  }
  const auto kernel = EncodeKernel<kHeadDim, kBlocks, kShared>;
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "encoder"));
  const int64_t items = int64_t{2} * p.max_jobs * p.layers * p.kv_heads;
  return Launch("encoder", kernel, std::min<int64_t>(items, int64_t{processors} * kBlocks), kEncodeThreads,
                bytes, early, stream, p);
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
      return LaunchFor<128, 3>(params, early, stream);
    case 256:
      return LaunchFor<256, 1>(params, early, stream);
    default:
      return Status(ErrorCode::kUnsupported, "CUDA encoder: head dim " + std::to_string(params.head_dim) +
                                                 "; the encoder has 64, 128 and 256");
  }
}

}  // namespace blockgtq::cuda
