// Attention of one warp to one tile of codes: logits, online softmax, weighted values.
#pragma once

#include "src/cuda/attention_tile.cuh"

namespace blockgtq::cuda {

constexpr float kMaskedLogit = -1e30f;
constexpr float kLog2Levels = 7.994353437f;  // log2(255): probabilities are rounded to 255ths

/// What a warp carries from tile to tile. A lane has dims 8 i + g of kHeads heads: with at most 4 query heads
/// they are the even columns of the products (a lane owns one), lo queries the odd ones.
template <int kHeadDim, bool kFew>
struct WarpAttention {
  static constexpr int kHeads = kFew ? 1 : 2;
  float output[2 * (kHeadDim / kUnitWidth) * kHeads];
  float largest[kHeads], sum[kHeads];  // largest + kNormExponentBias until FinishSum

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (float& o : output) o = 0;
#pragma unroll
    for (int e = 0; e < kHeads; ++e) {
      largest[e] = kMaskedLogit;
      sum[e] = 0;
    }
  }
  /// `sum` holds the lane's tokens only; after this, the warp's.
  __device__ __forceinline__ void FinishSum() {
#pragma unroll
    for (float& l : largest) l -= kNormExponentBias;
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) {
#pragma unroll
      for (int e = 0; e < kHeads; ++e) sum[e] += __shfl_xor_sync(~0u, sum[e], o);
    }
  }
};

/// A width as a type, for generic lambdas.
template <int kBits>
struct Width {
  static constexpr int kValue = kBits;
};

/// Where a query block's parts lie in shared memory.
struct SharedQuery {
  const uint8_t* block;
  int scale;  // byte offset (QueryBlockLayout); offsets follow the scales
};

/// Where a record's values lie.
struct SharedValues {
  int codes, norms, width;
};

/// Attends to a tile, or to 16-token block `block` of it (attention_tile.cuh).
/// logit       with kMean, the mean's part of the logits, tokens 16 (i / 2) + 8 (i & 1) + g of the warp's
/// blocks, i-major
///             with kHeads each; destroyed
/// begin, end  tokens of the tile to attend; at least one of the segment's tiles has some
/// kValueWidth 0: value.width
/// after_logits  called with kMean when `logit` is no longer needed: may set it for the next tile
template <int kHeadDim, bool kFew, int kValueWidth, int kBlocks, bool kMean, typename AfterLogits>
__device__ __forceinline__ void AttendTile(WarpAttention<kHeadDim, kFew>& state,
                                           float (&logit)[2 * kBlocks * (kFew ? 1 : 2)],
                                           const TileConstants& constants, const uint8_t* record,
                                           const SharedValues& value, const int4* passes,
                                           const SharedQuery& query, int block, int begin, int end,
                                           AfterLogits after_logits) {
  constexpr int kUnits = kHeadDim / kUnitWidth, kHeads = kFew ? 1 : 2, kTokens = 2 * kBlocks;
  const int lane = threadIdx.x & 31, g = lane >> 2;

  if constexpr (!kMean) {
#pragma unroll
    for (float& l : logit) l = 0;
  }

  // + norm[token] * scale[head] * dot, pass by pass
  const uint32_t* fragments = reinterpret_cast<const uint32_t*>(query.block) + lane;
  const uint8_t* scales = query.block + query.scale + constants.head_offset;
  constexpr int kToOffsets = 32 * QueryBlockLayout::Passes(kFew);
#pragma unroll 1
  for (;; ++passes, scales += 32) {  // by pointers: what an index stands for is computed again in every pass
    const int4 pass = *passes;       // Pass: codes, norms, query, width | units << 8
    const int width = pass.w & 255, units = (pass.w >> 8) & 255;
    if (width == 0) break;
    int dots[4 * kBlocks];
    KeyGroupDots<kBlocks>(width, dots, reinterpret_cast<const uint32_t*>(record + pass.x) + lane, block,
                          fragments + pass.z, units, constants);
    const float2 scale = *reinterpret_cast<const float2*>(scales);
    const uint2 norm = LoadNorms<kBlocks>(constants, record + pass.y, block);
    if constexpr (kFew) {  // hi in the even columns, lo in the odd ones (query_block.cuh)
      const float offset = *reinterpret_cast<const float*>(scales + kToOffsets);
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const float dot = fmaf(__int_as_float(dots[2 * i]) + offset, 256.0f, __int_as_float(dots[2 * i + 1]));
        logit[i] = fmaf(dot, Exp2(fmaf(ByteAt15(constants, norm, i), 1.0f / 32, scale.x)), logit[i]);
      }
    } else {
      const float2 offset = *reinterpret_cast<const float2*>(scales + kToOffsets);
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const float n = Exp2(LogNorm(constants, norm, i));
        logit[2 * i] = fmaf(__int_as_float(dots[2 * i]) + offset.x, n * scale.x, logit[2 * i]);
        logit[2 * i + 1] = fmaf(__int_as_float(dots[2 * i + 1]) + offset.y, n * scale.y, logit[2 * i + 1]);
      }
    }
  }

  if (end < kTileTokens || begin > 0) {
    const int first = (kBlocks == 4 ? 0 : 16 * block) + g;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (8 * i + first >= end || 8 * i + first < begin) {
#pragma unroll
        for (int e = 0; e < kHeads; ++e) logit[i * kHeads + e] = kMaskedLogit;
      }
    }
  }

  // P carries the V norm, and the tile's maximum includes it. `weighted` is log2(P), and the maxima with it,
  // are kNormExponentBias larger than they are; fp32 at that size is 1e-4 fine, far below the rounding of P.
  const uint2 value_norm = LoadNorms<kBlocks>(constants, record + value.norms, block);
  float weighted[kTokens * kHeads];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const float norm = ByteAt15(constants, value_norm, i);
#pragma unroll
    for (int e = 0; e < kHeads; ++e) {
      weighted[i * kHeads + e] = fmaf(norm, 1.0f / 32, logit[i * kHeads + e]);
    }
  }
  float top[kHeads], factor[kHeads];
  bool rises = false;
#pragma unroll
  for (int e = 0; e < kHeads; ++e) {
    top[e] = weighted[e];
#pragma unroll
    for (int i = 1; i < kTokens; ++i) top[e] = fmaxf(top[e], weighted[i * kHeads + e]);
  }
#pragma unroll
  for (int o = 4; o < 32; o <<= 1) {
#pragma unroll
    for (int e = 0; e < kHeads; ++e) top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], o));
  }
#pragma unroll
  for (int e = 0; e < kHeads; ++e) rises |= top[e] > state.largest[e];
  if (__any_sync(~0u, rises)) {
#pragma unroll
    for (int e = 0; e < kHeads; ++e) {
      const float now = fmaxf(state.largest[e], top[e]), shrink = Exp2(state.largest[e] - now);
      state.sum[e] *= shrink;
      state.largest[e] = now;
#pragma unroll
      for (int i = 0; i < 2 * kUnits; ++i) state.output[i * kHeads + e] *= shrink;
    }
  }

  // P = 255 * 2^(weighted - top), rounded to u8 for the products; its sum without the V norm is not rounded.
  float tile_sum[kHeads], plain_top[kHeads];
  uint32_t probabilities[kBlocks];
#pragma unroll
  for (int e = 0; e < kHeads; ++e) {
    factor[e] = Exp2(top[e] - state.largest[e]);
    top[e] -= kLog2Levels;
    plain_top[e] = top[e] - kNormExponentBias;
    tile_sum[e] = 0;
  }
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    uint32_t bytes_of_head[kHeads];
#pragma unroll
    for (int e = 0; e < kHeads; ++e) {
      const int i0 = 2 * m * kHeads + e, i1 = i0 + kHeads;
      tile_sum[e] += Exp2(logit[i0] - plain_top[e]);
      tile_sum[e] += Exp2(logit[i1] - plain_top[e]);
      // 2^23 + p rounds p to an integer in the lowest byte; the bytes above it are zero.
      const float p0 = Exp2(weighted[i0] - top[e]) + 8388608.0f;
      const float p1 = Exp2(weighted[i1] - top[e]) + 8388608.0f;
      bytes_of_head[e] = SelectBytes(__float_as_uint(p0), __float_as_uint(p1), 0x1140);
    }
    probabilities[m] = TransposeB16(kFew ? bytes_of_head[0]
                                         : SelectBytes(bytes_of_head[0], bytes_of_head[kHeads - 1], 0x5410));
  }
#pragma unroll
  for (int e = 0; e < kHeads; ++e) state.sum[e] = fmaf(tile_sum[e], factor[e], state.sum[e]);

  if constexpr (kMean) after_logits();

  const uint32_t* values = reinterpret_cast<const uint32_t*>(record + value.codes) + lane;
  const auto products = [&](auto width) {
    ValueProducts<decltype(width)::kValue, kUnits, kHeads, kBlocks>(state.output, values, block, constants,
                                                                    probabilities, factor);
  };
  if constexpr (kValueWidth != 0) {
    products(Width<kValueWidth>{});
  } else {
    switch (value.width) {
      case 1:
        products(Width<1>{});
        break;
      case 2:
        products(Width<2>{});
        break;
      case 3:
        products(Width<3>{});
        break;
      case 4:
        products(Width<4>{});
        break;
      case 5:
        products(Width<5>{});
        break;
      default:
        products(Width<8>{});
        break;
    }
  }
}

}  // namespace blockgtq::cuda
