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
// Two blocks fit a processor, so that the next product's weights are on their way while this one runs.
constexpr int kGemvQueueBytes = 12 << 10;                            // a warp, at most
constexpr int kGemvNormVectors = kGemvMaxNormed / 4 / kGemvThreads;  // of 4 floats, a thread

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
  const float* norm_input;
  const float* norm_weight;
  float epsilon;
  uint16_t* inner;
};

/// kNorm: the input is normalised here. kGate: tile 0 is the gate's, tile 1 the same rows of up.
template <int kTiles, int kColumnTiles, bool kNorm, bool kGate>
struct GemvShape {
  static constexpr int kSlots = 2 * kTiles + (kNorm ? 0 : kColumnTiles);  // of a stage: weight rows; x
  static constexpr int kStageBytes = kSlots * kGemvSlotBytes;
  static constexpr int kStages = kGemvQueueBytes / kStageBytes;
  static constexpr int kRows = kTiles * kGemvTileRows;                          // weight rows of a group
  static constexpr int kElements = kRows * kGemvColumns * kColumnTiles;         // of a group's result
  static constexpr int kOwned = (kElements + kGemvThreads - 1) / kGemvThreads;  // that a thread finishes
  static constexpr int kPartial = kGemvWarps * kStages * kStageBytes;  // offset in shared memory, as below
  static constexpr int kNormed = kPartial + kGemvWarps * kElements * 4;
  // A row of x more shifts by 16 banks.
  static constexpr int kSharedBytes = kNormed + (kNorm ? 2 * kGemvMaxNormed + kGemvColumns * 64 : 0);
  static_assert(kSharedBytes <= 113 << 10);
};

/// bytes: 16, or 0 to write zeros without a read.
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
__device__ __forceinline__ const GemvItem& GemvItemOf(const GemvParams& p, int group) {
  int i = 0;
  while (i + 1 < p.items && group >= p.item[i + 1].first_group) ++i;
  return p.item[i];
}

/// Where a lane's next weights are: steps of one group after another.
template <int kTiles, bool kGate>
struct GemvCursor {
  const uint16_t* row[2 * kTiles];  // rows past the matrix repeat its last one
  int group, step;

  __device__ __forceinline__ void Open(const GemvParams& p, int at, int g) {
    group = at;
    step = 0;
    if (group >= p.groups) return;
    const GemvItem& item = kGate ? p.item[0] : GemvItemOf(p, group);
    const int first = (group - item.first_group) * (kGate ? kGemvTileRows : kTiles * kGemvTileRows) + g;
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      const uint16_t* matrix = kGate && j >= 2 ? p.item[1].weight : item.weight;
      const int r = first + 8 * (kGate ? j % 2 : j);
      row[j] = matrix + static_cast<int64_t>(min(r, item.out - 1)) * p.in;
    }
  }
};

/// x / sqrt(mean(x^2) + epsilon) * weight of every row, in fp16, row r at out + r * stride (halves).
/// weight: this thread's part.
__device__ __forceinline__ void NormaliseRows(const GemvParams& p, const float4 (&weight)[kGemvNormVectors],
                                              __half* out, int stride) {
  __shared__ float warp_sum[2][kGemvWarps];
  const int thread = threadIdx.x, vectors = p.in / 4;
  for (int r = 0; r < p.rows; ++r) {
    const float4* x = reinterpret_cast<const float4*>(p.norm_input) + static_cast<int64_t>(r) * vectors;
    float4 v[kGemvNormVectors];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kGemvNormVectors; ++j) {
      const int i = thread + j * kGemvThreads;
      v[j] = i < vectors ? x[i] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kGemvNormVectors; ++j) {
      sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if ((thread & 31) == 0) warp_sum[r & 1][thread >> 5] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kGemvWarps; ++w) sum += warp_sum[r & 1][w];
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(p.in) + p.epsilon);
#pragma unroll
    for (int j = 0; j < kGemvNormVectors; ++j) {
      const int i = thread + j * kGemvThreads;
      if (i >= vectors) continue;
      __half2* to = reinterpret_cast<__half2*>(out + r * stride + 4 * i);
      to[0] = __floats2half2_rn(v[j].x * factor * weight[j].x, v[j].y * factor * weight[j].y);
      to[1] = __floats2half2_rn(v[j].z * factor * weight[j].z, v[j].w * factor * weight[j].w);
    }
  }
  __syncthreads();
}

template <int kTiles, int kColumnTiles, bool kNorm, bool kGate>
__global__ void __launch_bounds__(kGemvThreads, 2) GemvKernel(const __grid_constant__ GemvParams p) {
  using S = GemvShape<kTiles, kColumnTiles, kNorm, kGate>;
  constexpr int kAhead = S::kStages - 1;
  constexpr int kStepElements = kGemvWarps * kGemvChunk;
  extern __shared__ __align__(16) uint8_t shared[];
  float* partial = reinterpret_cast<float*>(shared + S::kPartial);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const int steps = (p.in + kStepElements - 1) / kStepElements;  // of a group, the same for all warps
  const uint32_t queue = SharedAddress(shared) + warp * S::kStages * S::kStageBytes + lane * 16;
  const int first_element = warp * kGemvChunk + 8 * t;  // of this lane, in step 0

  GemvCursor<kTiles, kGate> weights;
  weights.Open(p, blockIdx.x, g);
  const auto issue_weights = [&](int stage) {
    if (weights.group >= p.groups) return;
    const int k = first_element + weights.step * kStepElements;
    const int bytes = k < p.in ? 16 : 0, at = k < p.in ? k : 0;
#pragma unroll
    for (int j = 0; j < 2 * kTiles; ++j) {
      CopyAsync(queue + stage * S::kStageBytes + j * kGemvSlotBytes, weights.row[j] + at, bytes);
    }
    if (++weights.step == steps) weights.Open(p, weights.group + gridDim.x, g);
  };
  int x_step = 0;  // of the next stage to fill
  const auto issue_x = [&](int stage) {
    if constexpr (!kNorm) {
      const int k = first_element + x_step * kStepElements;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const bool live = k < p.in && g < p.x_rows[n];
        CopyAsync(queue + stage * S::kStageBytes + (2 * kTiles + n) * kGemvSlotBytes,
                  p.x[n] + (live ? static_cast<int64_t>(g) * p.in + k : 0), live ? 16 : 0);
      }
      x_step = x_step + 1 == steps ? 0 : x_step + 1;
    }
  };

#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) {
    issue_weights(i);
    CommitCopies();
  }
  const int normed_stride = p.in + 32;
  uint32_t normed = 0;  // this lane's elements of step 0 in shared memory
  if constexpr (kNorm) {
    float4 norm_weight[kGemvNormVectors];
#pragma unroll
    for (int j = 0; j < kGemvNormVectors; ++j) {
      const int i = thread + j * kGemvThreads;
      norm_weight[j] =
          i < p.in / 4 ? __ldg(reinterpret_cast<const float4*>(p.norm_weight) + i) : make_float4(0, 0, 0, 0);
    }
    WaitForPreviousKernel();
    LetNextKernelStart();
    NormaliseRows(p, norm_weight, reinterpret_cast<__half*>(shared + S::kNormed), normed_stride);
    normed = SharedAddress(shared + S::kNormed) + 2 * (g * normed_stride + first_element);
  } else {
    WaitForPreviousKernel();
    LetNextKernelStart();
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
      issue_x(i);
      CommitCopies();
    }
  }

  int stage = 0, fill = kAhead;
#pragma unroll 1
  for (int group = blockIdx.x; group < p.groups; group += gridDim.x) {
    const GemvItem& item = kGate ? p.item[0] : GemvItemOf(p, group);
    const int first_row = (group - item.first_group) * (kGate ? kGemvTileRows : S::kRows);
    // What this thread's results are added to, on its way while the group runs.
    const bool low = kColumnTiles == 2 && p.second_scale != 0;
    const int elements = low ? S::kRows * kGemvColumns : S::kElements;
    float base[S::kOwned];
    int64_t place[S::kOwned];  // in y or inner; -1: nothing to write
#pragma unroll
    for (int i = 0; i < S::kOwned; ++i) {
      const int e = thread + i * kGemvThreads, row = e % S::kRows, column = e / S::kRows;
      const int m = first_row + row;
      const bool owned = e < elements && m < item.out && column < p.rows && !(kGate && row >= kGemvTileRows);
      place[i] = owned ? column * item.y_stride + m : -1;
      base[i] = 0;
      if constexpr (!kGate) {
        if (owned && item.bias) base[i] = item.bias[m];
        if (owned && item.accumulate) base[i] += item.y[place[i]];
      }
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
      if constexpr (kNorm) {
        const bool live = g < p.rows && first_element + step * kStepElements < p.in;
        x[0] = live ? LoadShared(normed + 2 * step * kStepElements) : make_uint4(0, 0, 0, 0);
      } else {
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) x[n] = LoadShared(slots + (2 * kTiles + n) * kGemvSlotBytes);
      }
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
      if constexpr (kGate) {
        float up = 0;
#pragma unroll
        for (int w = 0; w < kGemvWarps; ++w) up += from[w * S::kElements + kGemvTileRows];
        const float inner = total / (1.0f + __expf(-total)) * up * (1.0f / kInnerScale);
        reinterpret_cast<__half*>(p.inner)[place[i]] = __float2half_rn(inner);
      } else {
        item.y[place[i]] = fmaf(total, item.alpha, base[i]);
      }
    }
    __syncthreads();
  }
  WaitForCopies<0>();
}

}  // namespace blockgtq::cuda
