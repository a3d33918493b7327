// Prepares the queries of one (sequence, head) in shared memory, by one block: q~ = (T^-T) q * scale by fp16
// tensor products, then one scale a (query head, key group) and int8 codes: hi, and lo = 256 times what hi
// left, for groups of at least LowQueryWidth() bits.
#pragma once

#include "src/cuda/decode_params.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

// With few heads the attention kernel adds log2(scale) to the norm's exponent in fp32 at magnitude 1028: the
// scale is put on that grid before the query is rounded, so nothing is lost.
constexpr float kScaleGrid = 8192.0f;
constexpr int kLowBits = 8;  // lo counts 2^-8 of hi's step
static_assert(LowQueryWidth(true) == 1, "with few heads, every group has lo queries");

/// What a head's queries need of DeviceHead, in shared memory.
struct QueryHead {
  int key_units;
  const KeyGroup* group;
  const Pass* passes;  // of the layout
};

/// Query rows of a work head: `count` of them from `first` on, counted over one sequence's query heads.
struct QueryRows {
  int first, count;
};
__device__ __forceinline__ QueryRows RowsOf(const DecodeParams& p, int work_head) {
  const int skipped = p.Part(work_head) * p.part_heads;
  return {p.KvHead(work_head) * p.query_heads + skipped, min(p.part_heads, p.query_heads - skipped)};
}

/// The rows of a work head in global memory.
__device__ __forceinline__ const uint32_t* QueriesOf(const DecodeParams& p, int sequence,
                                                     const QueryRows& rows) {
  const size_t first = static_cast<size_t>(sequence) * p.kv_heads * p.query_heads + rows.first;
  return reinterpret_cast<const uint32_t*>(p.queries + first * p.head_dim);
}

/// A work head's query rows in shared or in global memory: fp16 pairs in block order.
struct QueryWords {
  const uint32_t* rows;
  int row_words;  // from one row to the next
};

/// Scratch of PrepareQueries in shared memory: the largest of a unit's dims.
template <int kHeadDim>
struct QueryScratch {
  float largest[MaxKeyUnits(kHeadDim)][8];
};

/// The warp's part of T^-T, loaded ahead: units warp, warp + kWarps, ... of the array's max_key_units (those
/// a head lacks are zero).
template <int kHeadDim, int kWarps>
struct QueryTransform {
  static constexpr int kSteps = kHeadDim / kUnitWidth;
  uint4 first_unit[kSteps];

  static __device__ __forceinline__ const uint4* At(const DecodeParams& p, int head, int unit) {
    return reinterpret_cast<const uint4*>(p.query_transform) +
           static_cast<size_t>(head * p.max_key_units + unit) * kSteps * 32 + (threadIdx.x & 31);
  }
  /// Defines every register, so that none is live across the tiles.
  __device__ __forceinline__ void Load(const DecodeParams& p, int head) {
    const int warp = WarpIndex();
    const uint4* a = At(p, head, warp);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      first_unit[k] = warp < p.max_key_units ? __ldg(a + k * 32) : make_uint4(0, 0, 0, 0);
    }
  }
};

/// The queries as the warp's B fragments: dims along the reduction, heads as columns.
template <int kHeadDim>
struct QueryFragments {
  static constexpr int kSteps = kHeadDim / kUnitWidth;
  uint32_t b0[kSteps], b1[kSteps];

  /// To the first `count` rows. Every lane of a warp calls it.
  __device__ __forceinline__ void Store(uint32_t* rows, int row_words, int count) const {
    const int lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3;
    if (g >= count) return;
    uint32_t* q = rows + g * row_words + tq;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      q[8 * k] = b0[k];
      q[8 * k + 4] = b1[k];
    }
  }
  /// rows: `count` of them, row_words apart.
  __device__ __forceinline__ void Load(const uint32_t* rows, int row_words, int count) {
    const int lane = threadIdx.x & 31, g = lane >> 2, tq = lane & 3;
    const uint32_t* q = rows + g * row_words + tq;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      b0[k] = g < count ? q[8 * k] : 0;
      b1[k] = g < count ? q[8 * k + 4] : 0;
    }
  }
};

/// What PrepareQueries does before the queries are there.
template <int kHeadDim, int kWarps, bool kFew>
struct QueryPlaces {
  static constexpr int kUnitsAWarp = (MaxKeyUnits(kHeadDim) + kWarps - 1) / kWarps;
  // Of the warp's units: their groups, and these groups' first passes in the list of the layout.
  KeyGroup group[kUnitsAWarp];
  int pass[kUnitsAWarp];

  /// Every thread of the block calls it, when nobody reads `block` any more.
  __device__ __forceinline__ QueryPlaces(const DecodeParams& p, const QueryHead& head, uint8_t* block) {
    uint4* words = reinterpret_cast<uint4*>(block);  // zero where no head is
#pragma unroll 1
    for (int i = threadIdx.x; i < p.query_layout.bytes / 16; i += kWarps * 32) {
      words[i] = make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kUnitsAWarp; ++i) {
      const int u = min(WarpIndex() + i * kWarps, head.key_units - 1);
      pass[i] = 0;
      int index = 0;
#pragma unroll 1
      for (;; ++index) {
        group[i] = head.group[index];
        if (u < group[i].first_unit + group[i].units) break;
        pass[i] += !kFew && group[i].width >= LowQueryWidth(false) ? 2 : 1;
      }
    }
  }
};

/// Fills the query block `block` (QueryBlockLayout). Every thread of the block calls it; the block's bytes
/// are ready after the next __syncthreads.
/// meanwhile: other work on what the block left in shared memory before, called behind a barrier
/// kSparing: takes fewer registers where it is called in a loop
template <int kHeadDim, int kWarps, bool kFew, bool kSparing = false, typename Meanwhile>
__device__ __forceinline__ void PrepareQueries(const DecodeParams& p, int work_head, const QueryHead& head,
                                               const QueryTransform<kHeadDim, kWarps>& transform,
                                               const QueryPlaces<kHeadDim, kWarps, kFew>& places,
                                               const QueryFragments<kHeadDim>& queries,
                                               QueryScratch<kHeadDim>& scratch, uint8_t* block,
                                               Meanwhile meanwhile) {
  constexpr int kSteps = kHeadDim / kUnitWidth;
  constexpr int kUnitsAWarp = QueryPlaces<kHeadDim, kWarps, kFew>::kUnitsAWarp;
  const int thread = threadIdx.x, lane = thread & 31, warp = WarpIndex(), g = lane >> 2, tq = lane & 3;
  const QueryRows rows = RowsOf(p, work_head);
  const auto& group = places.group;
  const auto& pass = places.pass;
  float rotated[kUnitsAWarp][4];  // dims g, g (column + 1), g + 8, g + 8 of columns 2 tq, 2 tq + 1
  if (kSparing) {
#pragma unroll
    for (auto& unit : rotated) unit[0] = unit[1] = unit[2] = unit[3] = FreshZero();
  }
  if (warp < p.max_key_units) {
#pragma unroll
    for (int i = 0; i < kUnitsAWarp; ++i) {
      const int u = warp + i * kWarps;
      float(&c)[4] = rotated[i];
      c[0] = c[1] = c[2] = c[3] = 0;
      if (u >= p.max_key_units) continue;
      const uint4* a = QueryTransform<kHeadDim, kWarps>::At(p, p.KvHead(work_head), u);
      float odd[4] = {0, 0, 0, 0};  // two chains of products
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        MmaF16(k & 1 ? odd : c, i == 0 ? transform.first_unit[k] : __ldg(a + k * 32), queries.b0[k],
               queries.b1[k]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) c[j] += odd[j];
      float top0, top1;
#pragma unroll
      for (float& x : c) x *= p.logit_scale;
      top0 = fmaxf(fabsf(c[0]), fabsf(c[2]));
      top1 = fmaxf(fabsf(c[1]), fabsf(c[3]));
#pragma unroll
      for (int o = 4; o < 32; o <<= 1) {
        top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, o));
        top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, o));
      }
      if (g == 0) *reinterpret_cast<float2*>(&scratch.largest[u][2 * tq]) = make_float2(top0, top1);
    }
  }
  __syncthreads();
  meanwhile();

#pragma unroll
  for (int i = 0; i < kUnitsAWarp; ++i) {
    const int u = warp + i * kWarps;
    if (u >= head.key_units) continue;
    const float group_scale = group[i].scale;
    const bool has_low = group[i].width >= LowQueryWidth(kFew);
    const bool writes_scale = u == group[i].first_unit && g == 0;
    float2 largest = make_float2(0, 0);
#pragma unroll 1
    for (int v = 0; v < group[i].units; v += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // past the end: the last unit again
        const int unit = group[i].first_unit + min(v + j, group[i].units - 1);
        const float2 other = *reinterpret_cast<const float2*>(&scratch.largest[unit][2 * tq]);
        largest = make_float2(fmaxf(largest.x, other.x), fmaxf(largest.y, other.y));
      }
    }
    float* scales = reinterpret_cast<float*>(block + p.query_layout.scale) + pass[i] * 8;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = 2 * tq + e;
      if (column >= rows.count) continue;
      const float top = e ? largest.y : largest.x;
      float inverse_step = top > 0 ? __fdividef(127.0f, top) : 1.0f;
      if (kFew) {
        const float log_scale =
            ceilf(Log2(group_scale * __fdividef(1.0f, inverse_step)) * kScaleGrid) * (1 / kScaleGrid);
        inverse_step = group_scale * Exp2(-log_scale);
        if (writes_scale) scales[2 * column] = log_scale - kNormExponentBias - (has_low ? kLowBits : 0);
      } else if (writes_scale) {
        const float scale = group_scale * __fdividef(1.0f, inverse_step);
        scales[column] = scale;
        if (has_low) scales[8 + column] = scale * (1.0f / (1 << kLowBits));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {  // dims g + 8 r
        const float v = rotated[i][2 * r + e] * inverse_step;
        const int high = max(-127, min(127, __float2int_rn(v))), d = g + 8 * r;
        uint8_t* to = block + (u * 32 + (d >> 2)) * 4 + (d & 3);
        to[(kFew ? 2 * column : column) * 16] = static_cast<uint8_t>(high);
        if (has_low) {
          const int low = max(-127, min(127, __float2int_rn((v - high) * (1 << kLowBits))));
          to[kFew ? (2 * column + 1) * 16 : p.query_layout.lo + column * 16] = static_cast<uint8_t>(low);
        }
      }
    }
  }
  __syncthreads();

  // What makes the accumulators of a pass its dot products (with few heads, those of hi and lo together: in
  // the even columns, in steps of hi; rounding it to them is nothing beside what lo saves). Codes of 4 and 5
  // bits stand for n + 1/2: half the sum of q.
  constexpr int kSumWarps = QueryBlockLayout::Passes(kFew) * 8 / 32;
  static_assert(kSumWarps <= kWarps);
  if (warp >= kSumWarps) return;
  const Pass& own = head.passes[thread >> 3];
  const int width = own.width, units = own.units;
  if (width != 0) {
    const auto sum_of_column = [&](int column) {
      int sum = 0;
      const int4* q = reinterpret_cast<const int4*>(block + own.query * 4 + column * 16);  // 8 a unit
#pragma unroll 4
      for (int u = 0; u < units; ++u) {
        const int4 dims = q[u * 8];
        sum = __dp4a(dims.x, 0x01010101, __dp4a(dims.y, 0x01010101, sum));
        sum = __dp4a(dims.z, 0x01010101, __dp4a(dims.w, 0x01010101, sum));
      }
      return static_cast<float>(sum);
    };
    constexpr float kLowStep = 1.0f / (1 << kLowBits);
    const int column = thread & 7;
    float half_sum = 0;
    if (width == 4 || width == 5) {
      half_sum = 0.5f * sum_of_column(column);
      if (kFew) half_sum += 0.5f * kLowStep * sum_of_column(column | 1);
    }
    reinterpret_cast<float*>(block + p.query_layout.offset)[thread] =
        rintf(half_sum) - kAccumulatorStartFloat * (kFew ? 1 + kLowStep : 1);
  }
}

}  // namespace blockgtq::cuda
