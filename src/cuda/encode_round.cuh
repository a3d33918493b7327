// One group of 16 tokens a warp: from coordinates to the codes of their best scale and the byte of their
// norm.
#pragma once

#include <cstdint>

#include "src/cuda/encode_pack.cuh"
#include "src/cuda/encode_search.cuh"
#include "src/cuda/encode_table.h"
#include "src/cuda/encode_tile.cuh"

namespace blockgtq::cuda {

constexpr float kLargestInverse = 60000.0f;  // fp16, finite

/// The byte of a norm that is given over its reference (core/log_norm.h).
__device__ __forceinline__ uint8_t LogNormByte(float norm) {
  if (!(norm > 0)) return 0;
  return static_cast<uint8_t>(fminf(fmaxf(rintf(__log2f(norm) * 32.0f) + 128.0f, 0.0f), 255.0f));
}

/// Searches, rounds and leaves quad words in place of the coordinates: x: low nibbles, y: high ones.
/// norm: [64] over the reference, norm_byte: [64] by NormSlot. kValue: of values, otherwise of keys
template <int kWidth, bool kValue>
__device__ __noinline__ void RoundGroup(const EncodeGroup& group, bool searched, uint4* coordinates,
                                        const float* norm, uint8_t* norm_byte, int warp, int lane) {
  constexpr float kUnit = Codebook<kWidth>().unit;
  const int units = group.units, dims = group.dims;
  const float root = sqrtf(static_cast<float>(dims));
  coordinates += (group.first_unit * kEncodeWarps + warp) * 32 + lane;
  uint32_t to_unit[2] = {}, scale[2] = {};
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    const int slot = 16 * warp + (lane >> 2) + 8 * r;
    const float length = norm[slot];
    const float inverse = fminf(root * kUnit * Reciprocal(fmaxf(length, 1e-30f)), kLargestInverse);
    const uint32_t unit = PackPair(inverse, inverse);
    SearchSums sums = {};
    const uint2* y = reinterpret_cast<const uint2*>(coordinates) + r;
    int left = units;
#pragma unroll 1
    do {
      AddSearch<kWidth>(PairMultiply(y->x, unit) & kPairMagnitude, PairMultiply(y->y, unit) & kPairMagnitude,
                        sums);
      y += 2 * 32 * kEncodeWarps;
    } while (--left > 0);
    const BestScale best = ChooseScale<kWidth>(sums, 16 * units - dims, searched, lane);
    if ((lane & 3) == 0) {
      const float correction = best.energy > 0 ? root * rsqrtf(best.energy) : 1.0f;
      norm_byte[8 * (slot & 7) + (slot >> 3)] = LogNormByte(length * correction);
    }
    to_unit[0] = r == 0 ? unit : to_unit[0];
    scale[0] = r == 0 ? CodeScale<kWidth>(best.index) : scale[0];
    to_unit[1] = unit;
    scale[1] = CodeScale<kWidth>(best.index);
  }
  int left = dims - 4 * (lane & 3);  // dims from the lane's first key dim on
  int unit_count = units;
#pragma unroll 1
  do {
    const uint4 y = *coordinates;
    const uint32_t a0 = RoundPair<kWidth>(PairMultiply(y.x, to_unit[0]), scale[0]);
    const uint32_t a1 = RoundPair<kWidth>(PairMultiply(y.y, to_unit[0]), scale[0]);
    const uint32_t b0 = RoundPair<kWidth>(PairMultiply(y.z, to_unit[1]), scale[1]);
    const uint32_t b1 = RoundPair<kWidth>(PairMultiply(y.w, to_unit[1]), scale[1]);
    const auto word = [&](uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
      return kValue ? ValueQuadWord(c0, c1, c2, c3) : KeyQuadWord(c0, c1, c2, c3);
    };
    uint2 words;
    if constexpr (kWidth <= 4) {
      words = {word(a0, a1, b0, b1), 0};
    } else {
      constexpr uint32_t kNibble = 0x000f000fu;
      words.x = word(a0 & kNibble, a1 & kNibble, b0 & kNibble, b1 & kNibble);
      words.y = word(a0 >> 4 & kNibble, a1 >> 4 & kNibble, b0 >> 4 & kNibble, b1 >> 4 & kNibble);
    }
    if constexpr (!kValue) {  // padding has code 0; values have none
      if (left < 4) {
        const uint32_t keep = ((1u << (4 * max(left, 0))) - 1) * 0x10001u;
        words.x &= keep;
        words.y &= keep;
      }
      left -= 16;
    }
    *reinterpret_cast<uint2*>(coordinates) = words;
    coordinates += 32 * kEncodeWarps;
  } while (--unit_count > 0);
}

template <bool kValue>
__device__ __forceinline__ void RoundGroup(const EncodeGroup& group, bool searched, uint4* coordinates,
                                           const float* norm, uint8_t* norm_byte, int warp, int lane) {
  switch (group.width) {
    case 1:
      return RoundGroup<1, kValue>(group, searched, coordinates, norm, norm_byte, warp, lane);
    case 2:
      return RoundGroup<2, kValue>(group, searched, coordinates, norm, norm_byte, warp, lane);
    case 3:
      return RoundGroup<3, kValue>(group, searched, coordinates, norm, norm_byte, warp, lane);
    case 4:
      return RoundGroup<4, kValue>(group, searched, coordinates, norm, norm_byte, warp, lane);
    case 5:
      return RoundGroup<5, kValue>(group, searched, coordinates, norm, norm_byte, warp, lane);
    default:
      return RoundGroup<8, kValue>(group, searched, coordinates, norm, norm_byte, warp, lane);
  }
}

}  // namespace blockgtq::cuda
