// The end of a segment: a block's warps, a cluster's blocks and at last the workers of a (sequence, head)
// merge their parts by log-sum-exp; the value rotation is undone once a cluster.
#pragma once

#include "src/cuda/decode_layout.h"
#include "src/cuda/query_block.cuh"
#include "src/cuda/tile_attention.cuh"

namespace blockgtq::cuda {

constexpr float kNoLogit = -1e30f;

/// log2 of the sum of exp2(logit) of coded tokens, whose sums count probabilities in 255ths.
__device__ __forceinline__ float CodedLogSum(float largest, float sum) {
  return sum > 0 ? largest + Log2(sum) - kLog2Levels : kNoLogit;
}

/// The merge's pieces of shared memory (decode_layout.h).
struct MergeShared {
  float* warp_output;         // [warps][head_dim][slots]
  SoftmaxState* warp_states;  // [warps][slots]
  float* weights;             // [warps][slots]
  float* part;                // [2][slots] rows (MergeRow): of coded tokens, of exact ones
  float* inbox;               // [blocks][2][heads a block] rows, from the cluster's other blocks
  uint32_t inbox_barrier;
};

/// Query heads of a cluster as its blocks finish them, in the scratch area. Columns are the heads of one
/// block: rank, rank + blocks, ...
template <int kHeadDim>
struct MergedOutput {
  __half rotated[8][kHeadDim + 8];  // of coded tokens, normalised, before the un-rotation
  float exact[8][kHeadDim];         // of exact tokens, normalised, where there are any; then the whole output
  float log_sum[2][8];              // of coded tokens, of exact ones
};

/// The shares of coded and exact tokens in a column's output, and the log2 of its sum of exp2(logit).
struct ColumnShares {
  float coded, exact, log_sum;
};
template <int kHeadDim>
__device__ __forceinline__ ColumnShares SharesOf(const MergedOutput<kHeadDim>& merged, int column,
                                                 bool exact) {
  const float coded_sum = merged.log_sum[0][column];
  if (!exact) return {1, 0, coded_sum};
  const float exact_sum = merged.log_sum[1][column], top = fmaxf(coded_sum, exact_sum);
  const float coded = Exp2(coded_sum - top), other = Exp2(exact_sum - top), total = coded + other;
  const float inverse = 1.0f / total;
  return {coded * inverse, other * inverse, top + Log2(total)};
}

/// Merges the warps of the block into m.part[0]. Ends with the rows written but not synchronised.
template <int kWarps, int kHeadDim, bool kFew>
__device__ __forceinline__ void MergeWarps(const WarpAttention<kHeadDim, kFew>& state, const MergeShared& m) {
  constexpr int kRow = MergeRow(kHeadDim);
  constexpr int kSlots = kFew ? kFewQueryHeads : kMaxQueryHeads, kHeads = kFew ? 1 : 2;
  const int thread = threadIdx.x, lane = thread & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
  float* mine = m.warp_output + warp * kSlots * kHeadDim;
#pragma unroll
  for (int i = 0; i < kHeadDim / 8; ++i) {
    const int d = 8 * i + g;
    if constexpr (kFew) {
      mine[d * kSlots + tq] = state.output[i];
    } else {
      *reinterpret_cast<float2*>(mine + d * kSlots + 2 * tq) =
          make_float2(state.output[2 * i], state.output[2 * i + 1]);
    }
  }
  if (g == 0) {
#pragma unroll
    for (int e = 0; e < kHeads; ++e) {
      m.warp_states[warp * kSlots + tq * kHeads + e] = {state.largest[e], state.sum[e]};
    }
  }
  __syncthreads();
  if (thread < kWarps * kSlots) {
    const int column = thread % kSlots;
    float top = kMaskedLogit;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) top = fmaxf(top, m.warp_states[i * kSlots + column].largest);
    m.weights[thread] = Exp2(m.warp_states[thread].largest - top);
    if (thread < kSlots) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const SoftmaxState s = m.warp_states[i * kSlots + column];
        total = fmaf(s.sum, Exp2(s.largest - top), total);
      }
      *reinterpret_cast<SoftmaxState*>(m.part + column * kRow + kHeadDim) = {top, total};
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < kHeadDim * kSlots / 4; i += kWarps * 32) {  // four heads of one dim
    const int d = i / (kSlots / 4), column = i % (kSlots / 4) * 4;
    float total[4] = {0, 0, 0, 0};
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) {
      const float4 o = *reinterpret_cast<const float4*>(m.warp_output + (w * kHeadDim + d) * kSlots + column);
      const float4 f = *reinterpret_cast<const float4*>(m.weights + w * kSlots + column);
      total[0] = fmaf(o.x, f.x, total[0]);
      total[1] = fmaf(o.y, f.y, total[1]);
      total[2] = fmaf(o.z, f.z, total[2]);
      total[3] = fmaf(o.w, f.w, total[3]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) m.part[(column + j) * kRow + d] = total[j];
  }
  FenceAsyncProxy();
}

/// Sends this block's rows of `heads` query heads, of kinds 0 .. kinds - 1, to the other blocks that finish
/// them; its own stay where they are.
template <int kWarps, int kHeadDim, int kSlots>
__device__ __forceinline__ void SendRows(const MergeShared& m, int rank, int blocks_shift, int columns,
                                         int heads, int kinds) {
  constexpr int kRowBytes = MergeRow(kHeadDim) * 4;
  const int warp = WarpIndex();
  if ((threadIdx.x & 31) != 0) return;
  const uint32_t part = SharedAddress(m.part), inbox = SharedAddress(m.inbox);
#pragma unroll 1
  for (int i = warp; i < kinds * kSlots; i += kWarps) {
    const int kind = i / kSlots, head = i % kSlots;
    if (head >= heads) continue;
    const int to = head & ((1 << blocks_shift) - 1), column = head >> blocks_shift;
    if (to == rank) continue;
    BulkCopyToBlock(ClusterAddress(inbox + ((2 * rank + kind) * columns + column) * kRowBytes, to),
                    part + i * kRowBytes, kRowBytes, ClusterAddress(m.inbox_barrier, to));
  }
}

/// Sum over the cluster's blocks of one dim of one head, for 32 dims a warp.
struct ClusterSum {
  float value, largest, total;
};
/// own: this block's row, of rank `rank`; row: what the first block sent; stride: floats to the next one's
template <int kHeadDim>
__device__ __forceinline__ ClusterSum SumCluster(const float* own, int rank, const float* row, int stride,
                                                 int d, int blocks) {
  const int lane = threadIdx.x & 31;
  const auto row_of = [&](int r) { return r == rank ? own : row + r * stride; };
  SoftmaxState s = {kNoLogit, 0};
  const int block = lane & (kMaxClusterBlocks - 1);  // each half of the warp has all of them
  if (block < blocks) s = *reinterpret_cast<const SoftmaxState*>(row_of(block) + kHeadDim);
  ClusterSum sum = {0, s.largest, 0};
#pragma unroll
  for (int o = kMaxClusterBlocks / 2; o > 0; o >>= 1) {
    sum.largest = fmaxf(sum.largest, __shfl_xor_sync(~0u, sum.largest, o));
  }
  const float weight = Exp2(s.largest - sum.largest);
  sum.total = s.sum * weight;
#pragma unroll
  for (int o = kMaxClusterBlocks / 2; o > 0; o >>= 1) sum.total += __shfl_xor_sync(~0u, sum.total, o);
#pragma unroll 1
  for (int r0 = 0; r0 < blocks; r0 += 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // past the last block nothing: its weight is 1 where there are no logits
      const float w = __shfl_sync(~0u, weight, r0 + i);
      sum.value = fmaf(r0 + i < blocks ? row_of(r0 + i)[d] : 0.0f, w, sum.value);
    }
  }
  return sum;
}

/// Merges the cluster's blocks for the `heads` query heads that this block finishes: coded and exact tokens
/// apart, each by warps of their own. columns: heads that a block of the cluster finishes at most
template <int kWarps, int kHeadDim, int kSlots>
__device__ __forceinline__ void MergeCluster(const MergeShared& m, int rank, int blocks, int columns,
                                             int heads, bool exact, float value_scale,
                                             MergedOutput<kHeadDim>& merged) {
  constexpr int kChunks = kHeadDim / 32, kRow = MergeRow(kHeadDim);
  const int lane = threadIdx.x & 31, warp = WarpIndex(), tasks = heads * kChunks;
#pragma unroll 1
  for (int i = warp; i < (exact ? 2 : 1) * tasks; i += kWarps) {
    const int kind = i >= tasks ? 1 : 0, task = i - kind * tasks;  // kind 1: exact tokens
    const int column = task / kChunks, d = task % kChunks * 32 + lane;
    const ClusterSum sum =
        SumCluster<kHeadDim>(m.part + (kind * kSlots + rank + column * blocks) * kRow, rank,
                             m.inbox + (kind * columns + column) * kRow, 2 * columns * kRow, d, blocks);
    const float value = sum.total > 0 ? sum.value * __fdividef(kind ? 1.0f : value_scale, sum.total) : 0.0f;
    if (kind) {
      merged.exact[column][d] = value;
    } else {
      merged.rotated[column][d] = __float2half(value);
    }
    if (lane == 0 && task % kChunks == 0) {
      merged.log_sum[kind][column] = kind == 0       ? CodedLogSum(sum.largest, sum.total)
                                     : sum.total > 0 ? sum.largest + Log2(sum.total)
                                                     : kNoLogit;
    }
  }
}

/// A warp's part of the un-rotation: output dims [16 warp, 16 warp + 16).
template <int kHeadDim, int kWarps>
struct ValueTransform {
  static constexpr int kSteps = kHeadDim / kUnitWidth;
  uint4 rows[kSteps];
  static __device__ __forceinline__ const uint4* At(const DecodeParams& p, int head, int row_block) {
    return reinterpret_cast<const uint4*>(p.value_fragments) +
           static_cast<size_t>(head * kSteps + row_block) * kSteps * 32 + (threadIdx.x & 31);
  }
  __device__ __forceinline__ void Load(const DecodeParams& p, int head, bool used) {
    const int warp = WarpIndex();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      rows[k] = used && warp < kSteps ? __ldg(At(p, head, warp) + k * 32) : make_uint4(0, 0, 0, 0);
    }
  }
};

/// Un-rotates merged.rotated, adds merged.exact (exact: there is one) by their shares, and calls
/// store(column, dim, value) for `heads` columns; store may overwrite merged.exact[column][dim].
template <int kHeadDim, int kWarps, typename Store>
__device__ __forceinline__ void Unrotate(const DecodeParams& p, int head, int heads, bool exact,
                                         const ValueTransform<kHeadDim, kWarps>& transform,
                                         const MergedOutput<kHeadDim>& merged, Store store) {
  constexpr int kSteps = kHeadDim / kUnitWidth;
  const int lane = threadIdx.x & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
  ColumnShares shares[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) shares[e] = SharesOf(merged, min(2 * tq + e, heads - 1), exact);
#pragma unroll 1
  for (int block = warp; block < kSteps; block += kWarps) {
    float c[2][4] = {};  // two chains of products
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const __half* b = &merged.rotated[g][16 * k + 2 * tq];
      const uint32_t b0 = g < heads ? *reinterpret_cast<const uint32_t*>(b) : 0;
      const uint32_t b1 = g < heads ? *reinterpret_cast<const uint32_t*>(b + 8) : 0;
      if (kSteps <= kWarps || block == warp) {
        MmaF16(c[k & 1], transform.rows[k], b0, b1);
      } else {
        MmaF16(c[k & 1], __ldg(ValueTransform<kHeadDim, kWarps>::At(p, head, block) + k * 32), b0, b1);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = 2 * tq + (e & 1), d = block * kUnitWidth + g + 8 * (e >> 1);
      if (column >= heads) continue;
      const float coded = (c[0][e] + c[1][e]) * shares[e & 1].coded;
      store(column, d, exact ? fmaf(merged.exact[column][d], shares[e & 1].exact, coded) : coded);
    }
  }
}

/// A float on its way to another block, with the flag of its launch.
__device__ __forceinline__ uint64_t FlaggedWord(float value, uint32_t flag) {
  return static_cast<uint64_t>(flag) << 32 | __float_as_uint(value);
}
/// Whether all lanes' words that are `used` are this launch's. The warp stays together: the compiler would
/// guard every warp-wide instruction of the kernel after a loop that its lanes leave one by one. The blocks
/// that send are all running, or will be: the grid is no larger than what the device runs at once.
__device__ __forceinline__ bool AllArrived(bool arrived) { return !__any_sync(~0u, !arrived); }
__device__ __forceinline__ bool IsOf(uint64_t word, uint32_t flag) {
  return static_cast<uint32_t>(word >> 32) == flag;
}
__device__ __forceinline__ float FlaggedValue(uint64_t word) {
  return __uint_as_float(static_cast<uint32_t>(word));
}

/// The first worker of a (sequence, head): merges its own part, in merged.exact and SharesOf, with those that
/// `others` workers send to slots first, first + 1, ..., in this order, and writes the output of the heads
/// that this block finishes.
template <int kWarps, int kHeadDim>
__device__ __forceinline__ void MergeWorkers(const DecodeParams& p, uint32_t flag, size_t first, int others,
                                             int rank, int blocks, int heads,
                                             const MergedOutput<kHeadDim>& merged, __half* out) {
  constexpr int kChunks = kHeadDim / 32, kChunk = 16;  // of dims, of workers in flight
  const int lane = threadIdx.x & 31, warp = WarpIndex();
#pragma unroll 1
  for (int task = warp; task < heads * kChunks; task += kWarps) {
    const int column = task / kChunks, d = task % kChunks * 32 + lane, head = rank + column * blocks;
    const uint64_t* sent = p.sent + (first * kMaxQueryHeads + head) * kHeadDim + d;
    constexpr size_t kStride = static_cast<size_t>(kMaxQueryHeads) * kHeadDim;
    const uint64_t* log_sums = p.sent_log_sum + first * kMaxQueryHeads + head;
    const auto log_sum_of = [&](int i) {
      const bool used = i < others;
      const uint64_t* from = log_sums + (used ? i : 0) * kMaxQueryHeads;
      uint64_t word = ReceiveWord(from);
      while (!AllArrived(!used || IsOf(word, flag))) {
        BetweenPolls();
        word = ReceiveWord(from);
      }
      return used ? FlaggedValue(word) : kNoLogit;
    };
    uint64_t words[kChunk];
    const auto load = [&](int i0) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        words[i] = i0 + i < others ? ReceiveWord(sent + (i0 + i) * kStride) : 0;
    };
    const auto receive = [&](int i0) {  // looks again at all of them at once: a look takes long
      for (;;) {
        bool arrived = true;
#pragma unroll
        for (int i = 0; i < kChunk; ++i) arrived = arrived && (i0 + i >= others || IsOf(words[i], flag));
        if (AllArrived(arrived)) return;
        BetweenPolls();
        load(i0);
      }
    };
    load(0);
    const float first_log_sum = log_sum_of(lane),
                own_log_sum = SharesOf(merged, column, p.exact_tiles > 0).log_sum;
    float top = fmaxf(own_log_sum, first_log_sum);
#pragma unroll 1
    for (int i0 = 32; i0 < others; i0 += 32) top = fmaxf(top, log_sum_of(i0 + lane));
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    const auto weight_of = [&](float log_sum) { return log_sum > kNoLogit ? Exp2(log_sum - top) : 0.0f; };
    const float own_weight = weight_of(own_log_sum);
    float sum = own_weight * merged.exact[column][d], total = lane == 0 ? own_weight : 0.0f;
#pragma unroll 1
    for (int i0 = 0; i0 < others; i0 += 32) {
      const float weight = weight_of(i0 == 0 ? first_log_sum : log_sum_of(i0 + lane));
      total += weight;
#pragma unroll 1
      for (int j = 0; j < 32 && i0 + j < others; j += kChunk) {
        if (i0 + j > 0) load(i0 + j);
        receive(i0 + j);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          const float w = __shfl_sync(~0u, weight, j + i);
          if (i0 + j + i < others) sum = fmaf(FlaggedValue(words[i]), w, sum);
        }
      }
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);
    out[static_cast<size_t>(head) * kHeadDim + d] = __float2half(total > 0 ? sum / total : 0.0f);
  }
}

}  // namespace blockgtq::cuda
