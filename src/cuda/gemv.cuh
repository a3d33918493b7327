// The kernel behind gemv.h.
//
// Weights are the tensor product's A operand, 16 of their rows a tile; rows of x are its 8 columns. The order
// of the input dimension within a product does not matter as long as both sides agree: lane (g, t) of a warp
// takes the 8 consecutive elements 32 c + 8 t .. + 7 of weight rows g and g + 8, and of row g of x, in
// 16-byte loads, and two products of depth 16 consume them.
//
// The 8 warps of a block divide the input dimension; chunk c of 32 elements is warp c mod 8's. Every lane
// copies what it will consume itself through its own queue in shared memory (cp.async), so the stream of
// loads runs on across tiles and needs no barrier. A tile's partial sums meet in shared memory and are added
// in a fixed order.
#pragma once

#include "src/cuda/gemv.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

constexpr int kGemvWarps = 8, kGemvThreads = 32 * kGemvWarps;
constexpr int kGemvTileRows = 16;  // weight rows of a tensor product
constexpr int kGemvColumns = 8;    // rows of x of one
constexpr int kGemvChunk = 32;     // input elements that a warp takes at a time
constexpr int kGemvSlotBytes = 32 * 16;
// A warp's, at most. One block has a processor, and the block of the next product starts there as soon as it
// is done: its first loads, so many, keep the memory busy until its input is there. With room for two blocks
// at a time those loads are over by then, and blocks crowd on some processors and leave others idle. Compute
// capability 8 has as little as 99 KB a block.
constexpr int GemvQueueBytes(bool sm90) { return (sm90 ? 18 : 10) << 10; }

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
  int32_t items, groups, rows, in;
  const uint16_t* x[2];  // of column tile 0 and 1
  int32_t x_rows[2];     // live columns of each
  float second_scale;    // of column tile 1, which is added to tile 0 when it is the low half; else 0
};

/// Steps of the input that a short queue holds, all of them on their way before the input is there: small
/// matrices, a group a block. Two such blocks share a processor, or one shares it with what runs before.
constexpr int kGemvShortSteps = 8;

template <int kTiles, int kColumnTiles, bool kSm90Code, bool kShort>
struct GemvShape {
  static constexpr int kSlots = 2 * kTiles + kColumnTiles;  // of a stage: weight rows; x
  static constexpr int kStageBytes = kSlots * kGemvSlotBytes;
  static constexpr int kStages = kShort ? kGemvShortSteps + 1 : GemvQueueBytes(kSm90Code) / kStageBytes;
  static constexpr int kRows = kTiles * kGemvTileRows;                          // weight rows of a group
  static constexpr int kElements = kRows * kGemvColumns * kColumnTiles;         // of a group's result
  static constexpr int kOwned = (kElements + kGemvThreads - 1) / kGemvThreads;  // that a thread finishes
  static constexpr int kPartial = kGemvWarps * kStages * kStageBytes;  // offset in shared memory, as below
  static constexpr int kSharedBytes = kPartial + kGemvWarps * kElements * 4;
};

/// bytes: 16, or 0 to write zeros without a read.
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16,%2;" ::"r"(shared), "l"(global), "r"(bytes)
               : "memory");
}
/// The same of what is read once a step: L2 drops it before all else, so that it keeps the kernels' code,
/// constants and a short context's codes.
__device__ __forceinline__ void CopyWeightsAsync(uint32_t shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0],[%1],16,%2,%3;" ::"r"(shared),
               "l"(global), "r"(bytes), "l"(CachePolicy(true))
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

__device__ __forceinline__ const GemvItem& GemvItemOf(const GemvParams& p, int group) {
  int i = 0;
  while (i + 1 < p.items && group >= p.item[i + 1].first_group) ++i;
  return p.item[i];
}

/// Where a lane's next weights are: steps of one group after another.
template <int kTiles>
struct GemvCursor {
  const uint16_t* row[2 * kTiles];  // rows past the matrix repeat its last one
  int group, step;

  __device__ __forceinline__ void Open(const GemvParams& p, int at, int g) {
    group = at;
    step = 0;
    if (group >= p.groups) return;
    const GemvItem& item = GemvItemOf(p, group);
    const int first = (group - item.first_group) * kTiles * kGemvTileRows + g;
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      row[j] = item.weight + static_cast<int64_t>(min(first + 8 * j, item.out - 1)) * p.in;
    }
  }
};

template <int kTiles, int kColumnTiles, bool kShort>
__global__ void __launch_bounds__(kGemvThreads) GemvKernel(const __grid_constant__ GemvParams p) {
  using S = GemvShape<kTiles, kColumnTiles, kSm90, kShort>;
  constexpr int kAhead = S::kStages - 1;
  constexpr int kStepElements = kGemvWarps * kGemvChunk;
  extern __shared__ __align__(16) uint8_t shared[];
  float* partial = reinterpret_cast<float*>(shared + S::kPartial);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const int steps = (p.in + kStepElements - 1) / kStepElements;  // of a group, the same for all warps
  const uint32_t queue = SharedAddress(shared) + warp * S::kStages * S::kStageBytes + lane * 16;
  const int first_element = warp * kGemvChunk + 8 * t;  // of this lane, in step 0

  GemvCursor<kTiles> weights;
  weights.Open(p, blockIdx.x, g);
  const auto issue_weights = [&](int stage) {
    if (weights.group >= p.groups) return;
    const int k = first_element + weights.step * kStepElements;
    const int bytes = k < p.in ? 16 : 0, at = k < p.in ? k : 0;
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      CopyWeightsAsync(queue + stage * S::kStageBytes + j * kGemvSlotBytes, weights.row[j] + at, bytes);
    }
    if (++weights.step == steps) weights.Open(p, weights.group + gridDim.x, g);
  };
  int x_step = 0;  // of the next stage to fill
  int x_left = steps * ((p.groups - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) /
                        static_cast<int>(gridDim.x));
  const auto issue_x = [&](int stage) {
    if (x_left == 0) return;  // the kernel ends when all copies are there
    --x_left;
    const int k = first_element + x_step * kStepElements;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const bool live = k < p.in && g < p.x_rows[n];
      CopyAsync(queue + stage * S::kStageBytes + (2 * kTiles + n) * kGemvSlotBytes,
                p.x[n] + (live ? static_cast<int64_t>(g) * p.in + k : 0), live ? 16 : 0);
    }
    x_step = x_step + 1 == steps ? 0 : x_step + 1;
  };

#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    issue_weights(i);
    CommitCopies();
  }
  // In this order: attention behind it reads, before its own wait, what kernels ahead of this one wrote.
  WaitForPreviousKernel();
  LetNextKernelStart();
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    issue_x(i);
    CommitCopies();
  }

  int stage = 0, fill = kAhead;
#pragma unroll 1
  for (int group = blockIdx.x; group < p.groups; group += gridDim.x) {
    const GemvItem& item = GemvItemOf(p, group);
    const int first_row = (group - item.first_group) * S::kRows;
    // What this thread's results are added to, on its way while the group runs.
    const bool low = kColumnTiles == 2 && p.second_scale != 0;
    const int elements = low ? S::kRows * kGemvColumns : S::kElements;
    float base[S::kOwned];
    int64_t place[S::kOwned];  // in y; -1: nothing to write
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
      const int e = thread + i * kGemvThreads, m = first_row + e % S::kRows, column = e / S::kRows;
      const bool owned = e < elements && m < item.out && column < p.rows;
      place[i] = owned ? column * item.y_stride + m : -1;
      base[i] = owned && item.bias ? item.bias[m] : 0.0f;
      if (owned && item.accumulate) base[i] += item.y[place[i]];
    }

    float sum[kTiles][kColumnTiles][4] = {};
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      issue_weights(fill);
      issue_x(fill);
      CommitCopies();
      fill = fill + 1 == S::kStages ? 0 : fill + 1;
      WaitForCopies<kAhead>();
      const uint32_t slots = queue + stage * S::kStageBytes;
      uint4 x[kColumnTiles];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) x[n] = LoadShared(slots + (2 * kTiles + n) * kGemvSlotBytes);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4 upper = LoadShared(slots + 2 * i * kGemvSlotBytes);
        const uint4 lower = LoadShared(slots + (2 * i + 1) * kGemvSlotBytes);
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          MmaF16(sum[i][n], make_uint4(upper.x, lower.x, upper.y, lower.y), x[n].x, x[n].y);
          MmaF16(sum[i][n], make_uint4(upper.z, lower.z, upper.w, lower.w), x[n].z, x[n].w);
        }
      }
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
    }

    float* mine = partial + warp * S::kElements;  // [column][row of the group]
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = (2 * t + (j & 1)) * S::kRows + i * kGemvTileRows + g + 8 * (j >> 1);
        if constexpr (kColumnTiles == 2) {
          mine[at] = low ? fmaf(sum[i][1][j], p.second_scale, sum[i][0][j]) : sum[i][0][j];
          mine[at + kGemvColumns * S::kRows] = sum[i][1][j];
        } else {
          mine[at] = sum[i][0][j];
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
      if (place[i] < 0) continue;
      const float* from = partial + thread + i * kGemvThreads;
      float total = 0;
#pragma unroll
      for (int w = 0; w < kGemvWarps; ++w) total += from[w * S::kElements];
      item.y[place[i]] = fmaf(total, item.alpha, base[i]);
    }
    __syncthreads();
  }
  WaitForCopies<0>();
}

}  // namespace blockgtq::cuda
