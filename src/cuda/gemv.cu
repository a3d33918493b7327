// Weights are the tensor product's A operand, 16 of their rows a tile; rows of x are its 8 columns. The order
// of the input dimension within a product does not matter as long as both sides agree: lane (g, t) of a warp
// takes the 8 consecutive elements 32 c + 8 t .. + 7 of weight rows g and g + 8, and of row g of x, in
// 16-byte loads, and two products of depth 16 consume them.
//
// The 8 warps of a block (and the blocks of a cluster, where there are few weight rows) divide the input
// dimension; chunk c of 32 elements is warp c mod 8's. Every lane copies what it will consume itself through
// its own queue in shared memory (cp.async), so the stream of loads runs on across tiles and needs no
// barrier. A tile's partial sums meet in shared memory and are added in a fixed order.
#include <cooperative_groups.h>

#include <algorithm>

#include "src/cuda/gemv.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTileRows = 16;  // weight rows of a tensor product
constexpr int kColumns = 8;    // rows of x of one
constexpr int kChunk = 32;     // input elements that a warp takes at a time
constexpr int kSlotBytes = 32 * 16;
// Two blocks fit a processor, so that the next product's weights are on their way while this one runs.
constexpr int kQueueBytes = 12 << 10;  // a warp, at most

struct GemvItem {
  const uint16_t* weight;
  const float* bias;
  float* y;
  int64_t y_stride;
  int32_t out, first_group;  // groups of tiles, counted over all items
  float alpha;
  int32_t accumulate;
};

struct GemvParams {
  GemvItem item[kGemvMaxItems];
  int32_t items, groups, rows, in, split;
  const uint16_t* x[2];  // of column tile 0 and 1
  int32_t x_rows[2];     // live columns of each
  float second_scale;    // of column tile 1, which is added to tile 0 when it is the low half; else 0
};

template <int kTiles, int kColumnTiles>
struct Shape {
  static constexpr int kSlots =
      2 * kTiles + kColumnTiles;  // of a stage: weight rows g, g + 8 of each tile; x
  static constexpr int kStageBytes = kSlots * kSlotBytes;
  static constexpr int kStages = kQueueBytes / kStageBytes;
  static constexpr int kGroupRows = kTiles * kTileRows;
  static constexpr int kElements = kGroupRows * kColumns * kColumnTiles;  // of a group's result
  static constexpr int kOwned = (kElements + kThreads - 1) / kThreads;    // that a thread finishes
  static constexpr int kSharedBytes = kWarps * kStages * kStageBytes + kWarps * kElements * 4;
};

// bytes: 16, or 0 to write zeros without a read.
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16,%2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ uint4 LoadShared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ __forceinline__ const GemvItem& ItemOf(const GemvParams& p, int group) {
  int i = 0;
  while (i + 1 < p.items && group >= p.item[i + 1].first_group) ++i;
  return p.item[i];
}

// Where a lane's next weights are: steps of one group after another.
template <int kTiles>
struct WeightCursor {
  const uint16_t* row[2 * kTiles];  // rows past the matrix repeat its last one
  int group, step;

  __device__ __forceinline__ void Open(const GemvParams& p, int at, int g) {
    group = at;
    step = 0;
    if (group >= p.groups) return;
    const GemvItem& item = ItemOf(p, group);
    const int first = (group - item.first_group) * kTiles * kTileRows + g;
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      row[j] = item.weight + static_cast<int64_t>(min(first + 8 * j, item.out - 1)) * p.in;
    }
  }
};

template <int kTiles, int kColumnTiles>
__global__ void __launch_bounds__(kThreads, 2) GemvKernel(const __grid_constant__ GemvParams p) {
  using S = Shape<kTiles, kColumnTiles>;
  constexpr int kAhead = S::kStages - 1;
  extern __shared__ __align__(16) uint8_t shared[];
  float* partial = reinterpret_cast<float*>(shared + kWarps * S::kStages * S::kStageBytes);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const int rank = blockIdx.x % p.split, group_stride = gridDim.x / p.split;
  const int first_group = blockIdx.x / p.split;
  const int chunks = (p.in + kChunk - 1) / kChunk;
  const int steps =
      (chunks + kWarps * p.split - 1) / (kWarps * p.split);  // of a group, the same for all warps
  const uint32_t queue = SharedAddress(shared) + warp * S::kStages * S::kStageBytes + lane * 16;

  const auto element = [&](int step) {  // first of the 8 input elements of this lane
    return ((step * p.split + rank) * kWarps + warp) * kChunk + 8 * t;
  };
  WeightCursor<kTiles> weights;
  weights.Open(p, first_group, g);
  const auto issue_weights = [&](int stage) {
    if (weights.group >= p.groups) return;
    const int k = element(weights.step);
    const int bytes = k < p.in ? 16 : 0, at = k < p.in ? k : 0;
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      CopyAsync(queue + stage * S::kStageBytes + j * kSlotBytes, weights.row[j] + at, bytes);
    }
    if (++weights.step == steps) weights.Open(p, weights.group + group_stride, g);
  };
  const auto issue_x = [&](int stage, int step) {
    const int k = element(step);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const bool live = k < p.in && g < p.x_rows[n];
      CopyAsync(queue + stage * S::kStageBytes + (2 * kTiles + n) * kSlotBytes,
                p.x[n] + (live ? static_cast<int64_t>(g) * p.in + k : 0), live ? 16 : 0);
    }
  };

#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    issue_weights(i);
    CommitCopies();
  }
  WaitForPreviousKernel();
  LetNextKernelStart();
  int x_step = 0;  // of the next stage to fill
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    issue_x(i, x_step);
    CommitCopies();
    x_step = x_step + 1 == steps ? 0 : x_step + 1;
  }

  int stage = 0, fill = kAhead;
#pragma unroll 1
  for (int group = first_group; group < p.groups; group += group_stride) {
    const GemvItem& item = ItemOf(p, group);
    const int first_row = (group - item.first_group) * S::kGroupRows;
    // What this thread's results are added to, on its way while the group runs.
    const bool low = p.second_scale != 0;
    const int elements = low ? S::kGroupRows * kColumns : S::kElements;
    float base[S::kOwned];
    int64_t place[S::kOwned];  // in y; -1: nothing to write
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
      const int e = thread + i * kThreads, m = first_row + e % S::kGroupRows, column = e / S::kGroupRows;
      const bool owned = e < elements && m < item.out && column < p.rows && e / kTileRows % p.split == rank;
      place[i] = owned ? column * item.y_stride + m : -1;
      base[i] = owned && item.bias ? item.bias[m] : 0.0f;
      if (owned && item.accumulate) base[i] += item.y[place[i]];
    }

    float sum[kTiles][kColumnTiles][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      issue_weights(fill);
      issue_x(fill, x_step);
      CommitCopies();
      x_step = x_step + 1 == steps ? 0 : x_step + 1;
      fill = fill + 1 == S::kStages ? 0 : fill + 1;
      WaitForCopies<kAhead>();
      const uint32_t slots = queue + stage * S::kStageBytes;
      uint4 x[kColumnTiles];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) x[n] = LoadShared(slots + (2 * kTiles + n) * kSlotBytes);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 upper = LoadShared(slots + 2 * i * kSlotBytes);
        const uint4 lower = LoadShared(slots + (2 * i + 1) * kSlotBytes);
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          MmaF16(sum[i][n], make_uint4(upper.x, lower.x, upper.y, lower.y), x[n].x, x[n].y);
          MmaF16(sum[i][n], make_uint4(upper.z, lower.z, upper.w, lower.w), x[n].z, x[n].w);
        }
      }
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }

    // [warp][column][row of the group]
    float* mine = partial + warp * S::kElements;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (2 * t + (j & 1)) * S::kGroupRows + i * kTileRows + g + 8 * (j >> 1);
        if constexpr (kColumnTiles == 2) {
          mine[at] = low ? fmaf(sum[i][1][j], p.second_scale, sum[i][0][j]) : sum[i][0][j];
          mine[at + kColumns * S::kGroupRows] = sum[i][1][j];
        } else {
          mine[at] = sum[i][0][j];
        }
      }
    }
    __syncthreads();
    float total[S::kOwned] = {};
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
      const int e = thread + i * kThreads;
      if (e >= elements) continue;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total[i] += partial[w * S::kElements + e];
    }
    if (p.split > 1) {
      const auto cluster = cooperative_groups::this_cluster();
#pragma unroll
      for (int i = 0; i < S::kOwned; ++i) {
        const int e = thread + i * kThreads;
        if (e < elements) partial[e] = total[i];  // nobody else reads this element of warp 0's
      }
      cluster.sync();
#pragma unroll
      for (int i = 0; i < S::kOwned; ++i) {
        if (place[i] < 0) continue;
        total[i] = 0;
        for (int r = 0; r < p.split; ++r) {
          total[i] += cluster.map_shared_rank(partial, r)[thread + i * kThreads];
        }
      }
      cluster.sync();
    } else {
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
      if (place[i] >= 0) item.y[place[i]] = fmaf(total[i], item.alpha, base[i]);
    }
  }
  WaitForCopies<0>();
}

using KernelPointer = void (*)(GemvParams);

template <int kTiles, int kColumnTiles>
Status LaunchShape(const GemvParams& params, int processors, bool early, cudaStream_t stream) {
  using S = Shape<kTiles, kColumnTiles>;
  const KernelPointer kernel = GemvKernel<kTiles, kColumnTiles>;
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
                 "the shared memory of a matrix product"));
  cudaLaunchConfig_t config = {};
  const int teams = std::min(params.groups, std::max(processors / params.split, 1));
  config.gridDim = dim3(static_cast<unsigned>(teams * params.split));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = S::kSharedBytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (params.split > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(params.split), 1, 1};
  }
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, params), "a matrix product of few rows");
}

Status Invalid(const std::string& what) {
  return Status(ErrorCode::kInvalidArgument, "CUDA matrix product of few rows: " + what);
}

}  // namespace

GemvTiling ChooseGemvTiling(std::span<const MatMulItem> items, int64_t rows, bool has_low, int processors) {
  GemvTiling tiling;
  if (rows <= 2 && !has_low)
    return tiling;  // x is small beside the weights: the smallest pieces balance best
  // Each block reads its part of x once a group: taller groups and narrower parts keep that below the
  // weights.
  tiling.tiles = 2;
  int64_t groups = 0;
  for (const MatMulItem& item : items) groups += (item.out + 2 * kTileRows - 1) / (2 * kTileRows);
  while (tiling.split < 4 && groups * tiling.split * 10 < int64_t{9} * processors) tiling.split *= 2;
  return tiling;
}

Status LaunchGemv(std::span<const MatMulItem> items, const uint16_t* x_hi, const uint16_t* x_lo, int64_t rows,
                  int64_t in, const GemvTiling& tiling, int processors, bool early, CUstream_st* stream) {
  if (items.empty() || items.size() > kGemvMaxItems) {
    return Invalid(std::to_string(items.size()) + " products in a call; it takes 1.." +
                   std::to_string(kGemvMaxItems));
  }
  if (rows < 1 || rows > (x_lo ? kGemvMaxRows / 2 : kGemvMaxRows)) {
    return Invalid(std::to_string(rows) + " rows");
  }
  if (in < 8 || in % 8 != 0 || in > INT32_MAX - kWarps * kChunk * 4) {
    return Invalid("an input of " + std::to_string(in) + " columns; it takes multiples of 8");
  }
  if ((tiling.tiles != 1 && tiling.tiles != 2) ||
      (tiling.split != 1 && tiling.split != 2 && tiling.split != 4)) {
    return Invalid("a tiling that has no kernel");
  }
  GemvParams params = {};
  int64_t groups = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const MatMulItem& item = items[i];
    if (item.out < 1 || item.out > INT32_MAX / 2 || item.y_stride < item.out) {
      return Invalid("an output of " + std::to_string(item.out) + " columns, rows " +
                     std::to_string(item.y_stride) + " apart");
    }
    params.item[i] = {item.weight,
                      item.bias,
                      item.y,
                      item.y_stride,
                      static_cast<int32_t>(item.out),
                      static_cast<int32_t>(groups),
                      item.alpha,
                      item.accumulate};
    groups += (item.out + tiling.tiles * kTileRows - 1) / (tiling.tiles * kTileRows);
  }
  params.items = static_cast<int32_t>(items.size());
  params.groups = static_cast<int32_t>(groups);
  params.rows = static_cast<int32_t>(rows);
  params.in = static_cast<int32_t>(in);
  params.split = tiling.split;
  params.x[0] = x_hi;
  params.x_rows[0] = static_cast<int32_t>(std::min<int64_t>(rows, kColumns));
  params.x[1] = x_lo ? x_lo : x_hi + kColumns * in;
  params.x_rows[1] = static_cast<int32_t>(x_lo ? rows : rows - kColumns);
  params.second_scale = x_lo ? 1.0f / kLowHalfScale : 0.0f;
  const bool two = params.x_rows[1] > 0;
  if (tiling.tiles == 1) {
    return two ? LaunchShape<1, 2>(params, processors, early, stream)
               : LaunchShape<1, 1>(params, processors, early, stream);
  }
  return two ? LaunchShape<2, 2>(params, processors, early, stream)
             : LaunchShape<2, 1>(params, processors, early, stream);
}

}  // namespace blockgtq::cuda
