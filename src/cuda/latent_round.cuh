// One group of one token, by a warp: the scale whose codes lie closest in angle (Rounding::kSearched), the
// codes and the norm's byte, in fp32. As cpu/encode.cc computes it.
#pragma once

#include <cstdint>

#include "src/codec/plan.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda::latents {

/// kSearchScales[i], which device code cannot index.
__host__ __device__ constexpr float SearchScale(int i) {
  return static_cast<float>(100 + (i % 2 == 0 ? 4 : -4) * ((i + 1) / 2)) / 100.0f;
}
constexpr bool AreSearchScales() {
  for (size_t i = 0; i < kSearchScales.size(); ++i) {
    if (SearchScale(static_cast<int>(i)) != kSearchScales[i]) return false;
  }
  return true;
}
static_assert(AreSearchScales());

/// Magnitudes of the centroids in the codebook's integers (codec/record.cc), ascending.
template <int kWidth>
struct Magnitudes {
  static constexpr int kCount = kWidth == 8 ? 0 : 1 << (kWidth - 1);
  float value[kCount == 0 ? 1 : kCount] = {};
  float scale = 0;  // of a coordinate of unit variance

  constexpr Magnitudes() {
    constexpr float k2[] = {33, 110}, k3[] = {10, 31, 55, 88};
    constexpr float k4[] = {5.5f, 16.5f, 27.5f, 39.5f, 52.5f, 67.5f, 86.5f, 114.5f};
    constexpr float k5[] = {2.5f,  7.5f,  12.5f, 17.5f, 22.5f, 27.5f, 33.5f,  39.5f,
                            45.5f, 51.5f, 58.5f, 66.5f, 75.5f, 86.5f, 100.5f, 121.5f};
    for (int k = 0; k < kCount; ++k) {
      value[k] = kWidth == 1   ? 127.0f
                 : kWidth == 2 ? k2[k % 2]
                 : kWidth == 3 ? k3[k % 4]
                 : kWidth == 4 ? k4[k % 8]
                               : k5[k % 16];
    }
    scale = kWidth == 1   ? 159.17090f
            : kWidth == 2 ? 72.83102f
            : kWidth == 3 ? 40.90403f
            : kWidth == 4 ? 41.86100f
            : kWidth == 5 ? 37.31166f
                          : 32.4f;
  }
};

struct Rounded {
  float value;  // of the magnitude's centroid
  int index;
};
/// The centroid nearest to a magnitude in the codebook's integers.
template <int kWidth>
__device__ __forceinline__ Rounded RoundMagnitude(float x) {
  if constexpr (kWidth == 8) {
    const float value = fminf(floorf(x + 0.5f), 127.0f);
    return {value, static_cast<int>(value)};
  } else {
    constexpr Magnitudes<kWidth> book;
    Rounded r = {book.value[0], 0};
#pragma unroll
    for (int k = 0; k + 1 < book.kCount; ++k) {
      const bool above = x >= 0.5f * (book.value[k] + book.value[k + 1]);
      r.value = above ? book.value[k + 1] : r.value;
      r.index += above ? 1 : 0;
    }
    return r;
  }
}

template <int kWidth>
__device__ __forceinline__ int CodeOf(int index, bool negative) {
  if constexpr (kWidth == 8) return (negative ? -index : index) & 255;
  constexpr int kCount = Magnitudes<kWidth>::kCount;
  if constexpr (kWidth <= 3) return negative ? kCount - 1 - index : kCount + index;
  return negative ? index | kCount : index;
}

__device__ __forceinline__ float LaneSum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

/// The byte of a norm (core/log_norm.h).
__device__ __forceinline__ uint8_t LogNormByte(float norm, float reference) {
  if (!(norm > 0)) return 0;
  return static_cast<uint8_t>(fminf(fmaxf(roundf(log2f(norm / reference) * 32.0f) + 128.0f, 0.0f), 255.0f));
}

/// y [padded]: coordinates, of which `dims` are true ones. codes [padded]. Returns the norm's byte; `finite`
/// becomes false, and codes and byte mean nothing, where the norm is not finite.
template <int kWidth>
__device__ __forceinline__ uint8_t RoundToken(const float* y, int dims, int padded, float reference,
                                              bool searched, int lane, uint8_t* codes, bool& finite) {
  constexpr float kScale = Magnitudes<kWidth>().scale;
  float square = 0;
  for (int i = lane; i < dims; i += 32) square = fmaf(y[i], y[i], square);
  square = LaneSum(square);
  finite = square <= 3.4028235e38f;
  if (!finite) return 0;
  const float norm = sqrtf(square), root = sqrtf(static_cast<float>(dims));
  const float unit = norm > 0 ? root / norm * kScale : 0.0f;
  float best = 0, scale = 1;
  if (searched && kWidth > 1) {
#pragma unroll 1
    for (int s = 0; s < static_cast<int>(kSearchScales.size()); ++s) {
      const float tried = SearchScale(s);
      float energy = 0, projection = 0;
      for (int i = lane; i < dims; i += 32) {
        const float magnitude = fabsf(y[i]), value = RoundMagnitude<kWidth>(magnitude * unit * tried).value;
        energy = fmaf(value, value, energy);
        projection = fmaf(magnitude, value, projection);
      }
      energy = LaneSum(energy);
      projection = LaneSum(projection);
      const float cosine = projection * projection / fmaxf(energy, 1e-20f);
      if (cosine > best) {
        best = cosine;
        scale = tried;
      }
    }
  }
  float energy = 0;
  for (int i = lane; i < padded; i += 32) {
    if (i >= dims) {
      codes[i] = 0;
      continue;
    }
    const Rounded r = RoundMagnitude<kWidth>(fabsf(y[i]) * unit * scale);
    codes[i] = static_cast<uint8_t>(CodeOf<kWidth>(r.index, y[i] < 0));
    energy = fmaf(r.value, r.value, energy);
  }
  energy = LaneSum(energy);
  return LogNormByte(energy > 0 ? norm * root * kScale / sqrtf(energy) : norm, reference);
}

__device__ __forceinline__ uint8_t RoundToken(int width, const float* y, int dims, int padded,
                                              float reference, bool searched, int lane, uint8_t* codes,
                                              bool& finite) {
  switch (width) {
    case 1:
      return RoundToken<1>(y, dims, padded, reference, searched, lane, codes, finite);
    case 2:
      return RoundToken<2>(y, dims, padded, reference, searched, lane, codes, finite);
    case 3:
      return RoundToken<3>(y, dims, padded, reference, searched, lane, codes, finite);
    case 4:
      return RoundToken<4>(y, dims, padded, reference, searched, lane, codes, finite);
    case 5:
      return RoundToken<5>(y, dims, padded, reference, searched, lane, codes, finite);
    default:
      return RoundToken<8>(y, dims, padded, reference, searched, lane, codes, finite);
  }
}

}  // namespace blockgtq::cuda::latents
