// From a lane's codes to the words of its place in a unit of the record (codec/record.h).
//
// A *quad word* has two quads of a lane, a nibble a code: word m of a lane is quads 2 m (low half) and 2 m +
// 1, which are the tokens 16 m .. 16 m + 15, for keys and values alike.
#pragma once

#include <cstdint>

#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

/// Codes of four dims of a key, one a half (c01: dims 0, 1; c23: dims 2, 3), for the tokens of quads 2 m (a)
/// and 2 m + 1 (b). Codes below 16.
__device__ __forceinline__ uint32_t KeyQuadWord(uint32_t a01, uint32_t a23, uint32_t b01, uint32_t b23) {
  uint32_t a = a01 | a23 << 8, b = b01 | b23 << 8;
  a |= a >> 12;
  b |= b >> 12;
  return SelectBytes(a, b, 0x5410);
}

/// Codes of values as tensor products leave them (lane 4 g + t: token g, dims 2 t and 2 t + 1): of tokens g
/// (a) and g + 8 (b), dims below 8 (0) and from 8 on (1). The transposed lane 4 g + t has dim g.
__device__ __forceinline__ uint32_t ValueQuadWord(uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1) {
  const uint32_t transposed = TransposeB16(a0 | b0 << 4 | a1 << 8 | b1 << 12);
  return SelectBytes(transposed, 0, 0x3120);
}

/// Bit `bit` of every code as a plane: code j of quad q at bit 8 j + 7 - q.
__device__ __forceinline__ uint32_t BitPlane(const uint32_t (&quads)[4], int bit) {
  uint32_t plane = 0;
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    uint32_t x = (quads[q >> 1] >> (bit + 16 * (q & 1))) & 0x1111u;
    x = (x | x << 8) & 0x00ff00ffu;
    x = (x | x << 4) & 0x01010101u;
    plane |= x << (7 - q);
  }
  return plane;
}

/// The lane's words of a unit. low: nibbles 0..3 bits of the codes; high: their upper bits (widths 5, 8).
template <int kWidth>
__device__ __forceinline__ void PackPlanes(const uint32_t (&low)[4], const uint32_t (&high)[4],
                                           uint32_t (&words)[kWidth]) {
  if constexpr (kWidth == 1) {
    constexpr uint32_t kBit = 0x11111111u;
    words[0] = (low[0] & kBit) | (low[1] & kBit) << 1 | (low[2] & kBit) << 2 | (low[3] & kBit) << 3;
  } else if constexpr (kWidth == 2) {
    constexpr uint32_t kBits = 0x33333333u;
    words[0] = (low[0] & kBits) | (low[1] & kBits) << 2;
    words[1] = (low[2] & kBits) | (low[3] & kBits) << 2;
  } else if constexpr (kWidth == 8) {
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      uint32_t l = (low[q >> 1] >> (16 * (q & 1))) & 0xffffu, h = (high[q >> 1] >> (16 * (q & 1))) & 0xffffu;
      l = (l | l << 8) & 0x00ff00ffu;
      h = (h | h << 8) & 0x00ff00ffu;
      l = (l | l << 4) & 0x0f0f0f0fu;
      h = (h | h << 4) & 0x0f0f0f0fu;
      words[q] = l | h << 4;
    }
  } else {
    constexpr uint32_t kThree = 0x77777777u, kSpare = 0x88888888u;
#pragma unroll
    for (int w = 0; w < 3; ++w) words[w] = (low[w] & kThree) | ((low[3] << (3 - w)) & kSpare);
    if constexpr (kWidth >= 4) words[3] = BitPlane(low, 3);
    if constexpr (kWidth == 5) words[4] = BitPlane(high, 0);
  }
}

/// All ones in the nibbles of quad word m whose tokens are in `tokens`.
__device__ __forceinline__ uint32_t OwnedNibbles(uint64_t tokens, bool value, int m, int lane) {
  const uint32_t of_tile = static_cast<uint32_t>(tokens >> (16 * m)) & 0xffffu;
  if (!value) {
    const int g = lane >> 2;
    return (of_tile >> g & 1 ? 0xffffu : 0u) | (of_tile >> (g + 8) & 1 ? 0xffff0000u : 0u);
  }
  const uint32_t t = of_tile >> (2 * (lane & 3));
  return ((t & 1 ? 0xfu : 0u) | (t >> 8 & 1 ? 0xf0u : 0u) | (t >> 1 & 1 ? 0xf00u : 0u) |
          (t >> 9 & 1 ? 0xf000u : 0u)) *
         0x10001u;
}

/// Writes the lane's words of one unit: kWhole: all of them, otherwise the bits of `tokens`. coordinates: of
/// the unit, quad words in x and y.
template <int kWidth, bool kWhole>
__device__ __forceinline__ void WriteUnit(const uint4* coordinates, uint64_t tokens, bool value,
                                          uint32_t* unit, int lane) {
  uint32_t low[4], high[4], words[kWidth];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const uint2 quads = *reinterpret_cast<const uint2*>(&coordinates[m * 32 + lane]);
    low[m] = quads.x;
    high[m] = quads.y;
  }
  PackPlanes<kWidth>(low, high, words);
  if constexpr (kWhole) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) unit[32 * i + lane] = words[i];
  } else {
    uint32_t mask[kWidth];
#pragma unroll
    for (int m = 0; m < 4; ++m) low[m] = high[m] = OwnedNibbles(tokens, value, m, lane);
    PackPlanes<kWidth>(low, high, mask);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (mask[i] != 0) unit[32 * i + lane] = (unit[32 * i + lane] & ~mask[i]) | (words[i] & mask[i]);
    }
  }
}

/// The same for a width that is known at run time.
template <bool kWhole>
__device__ __forceinline__ void WriteUnit(int width, const uint4* coordinates, uint64_t tokens, bool value,
                                          uint32_t* unit, int lane) {
  switch (width) {
    case 1:
      return WriteUnit<1, kWhole>(coordinates, tokens, value, unit, lane);
    case 2:
      return WriteUnit<2, kWhole>(coordinates, tokens, value, unit, lane);
    case 3:
      return WriteUnit<3, kWhole>(coordinates, tokens, value, unit, lane);
    case 4:
      return WriteUnit<4, kWhole>(coordinates, tokens, value, unit, lane);
    case 5:
      return WriteUnit<5, kWhole>(coordinates, tokens, value, unit, lane);
    default:
      return WriteUnit<8, kWhole>(coordinates, tokens, value, unit, lane);
  }
}

/// Writes one group's norms, 64 bytes: kWhole: all of them, otherwise those of `tokens`.
template <bool kWhole>
__device__ __forceinline__ void WriteNorms(const uint8_t* bytes, uint64_t tokens, uint8_t* norms, int lane) {
  if constexpr (kWhole) {
    if (lane < 16) reinterpret_cast<uint32_t*>(norms)[lane] = reinterpret_cast<const uint32_t*>(bytes)[lane];
  } else {
#pragma unroll
    for (int t = lane; t < 64; t += 32) {
      const int slot = 8 * (t & 7) + (t >> 3);
      if (tokens >> t & 1) norms[slot] = bytes[slot];
    }
  }
}

}  // namespace blockgtq::cuda
