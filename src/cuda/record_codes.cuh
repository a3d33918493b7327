// From the bits of a record's unit to int8 tensor-core operands: b words a lane in, 8 operand registers
// (quads of codec/record.h) out.
//
// PRMT, LOP3 and shifts share one half-rate pipe, which limits the decode kernel, so every line here counts.
#pragma once

#include <cstdint>

#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

constexpr uint32_t PackBytes(int a, int b, int c, int d) {
  return static_cast<uint32_t>(a & 255) | static_cast<uint32_t>(b & 255) << 8 |
         static_cast<uint32_t>(c & 255) << 16 | static_cast<uint32_t>(d & 255) << 24;
}

// The codebooks of codec/record.cc as look-up registers.
constexpr uint32_t kTable1 = PackBytes(-127, 127, 0, 0);
constexpr uint32_t kTable2 = PackBytes(-110, -33, 33, 110);
constexpr uint32_t kTable3Low = PackBytes(-88, -55, -31, -10), kTable3High = PackBytes(10, 31, 55, 88);
constexpr uint32_t kTable4Low = PackBytes(5, 16, 27, 39), kTable4High = PackBytes(52, 67, 86, 114);
constexpr uint32_t kTable5[4] = {PackBytes(2, 7, 12, 17), PackBytes(22, 27, 33, 39),
                                 PackBytes(45, 51, 58, 66), PackBytes(75, 86, 100, 121)};

/// The look-up registers of the common widths: the lower half of a table (all of it at width 2).
struct LookUp {
  uint32_t width2 = kTable2, width3 = kTable3Low, width4 = kTable4Low;
};

// PRMT selectors that spread the sign bit of each byte over it.
constexpr uint32_t kSpreadSigns = 0xba98;

/// Widths 3 to 5: three words whose nibbles hold quads 0..5 in their low three bits and quads 6, 7 in the
/// fourth -> selectors of quads 2i (low half) and 2i + 1 (high half), bit 3 of every nibble clear as PRMT
/// needs.
__device__ __forceinline__ void SelectorsOfThreePlanes(uint32_t w0, uint32_t w1, uint32_t w2,
                                                       uint32_t (&selectors)[4]) {
  constexpr uint32_t kLowThree = 0x77777777u;
  selectors[0] = w0 & kLowThree;
  selectors[1] = w1 & kLowThree;
  selectors[2] = w2 & kLowThree;
  const uint32_t two = SelectBits(0x22222222u, w1 >> 2, w0 >> 3);
  selectors[3] = SelectBits(0x44444444u, w2 >> 1, two) & kLowThree;
}

/// Decodes one unit. codes: the unit's first word plus the lane. quads: [8] operand registers; widths 4 and 5
/// give n or ~n of n + 1/2 (codec/record.h), the halves are the caller's.
template <int kWidth>
__device__ __forceinline__ void DecodeUnit(const uint32_t* codes, const LookUp& tables,
                                           uint32_t (&quads)[8]) {
  uint32_t word[kWidth];
#pragma unroll
  for (int i = 0; i < kWidth; ++i) word[i] = codes[i * 32];

  if constexpr (kWidth == 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) quads[i] = word[i];
  } else if constexpr (kWidth == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t s = (word[0] >> i) & 0x11111111u;
      quads[2 * i] = SelectBytes(kTable1, 0, s);
      quads[2 * i + 1] = SelectBytes(kTable1, 0, s >> 16);
    }
  } else if constexpr (kWidth == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t s = (word[i >> 1] >> (2 * (i & 1))) & 0x33333333u;
      quads[2 * i] = SelectBytes(tables.width2, 0, s);
      quads[2 * i + 1] = SelectBytes(tables.width2, 0, s >> 16);
    }
  } else {
    const uint32_t low = kWidth == 3 ? tables.width3 : kWidth == 4 ? tables.width4 : kTable5[0];
    constexpr uint32_t kHigh = kWidth == 3 ? kTable3High : kWidth == 4 ? kTable4High : kTable5[1];
    uint32_t selectors[4], upper[4];
    SelectorsOfThreePlanes(word[0], word[1], word[2], selectors);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      upper[i] = selectors[i] >> 16;
      quads[2 * i] = SelectBytes(low, kHigh, selectors[i]);
      quads[2 * i + 1] = SelectBytes(low, kHigh, upper[i]);
    }
    if constexpr (kWidth == 5) {  // the fourth bit of the magnitude chooses the upper half of the table
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t large = SelectBytes(kTable5[2], kTable5[3], i & 1 ? upper[i >> 1] : selectors[i >> 1]);
        quads[i] = SelectBits(SelectBytes(word[3] << i, 0, kSpreadSigns), large, quads[i]);
      }
    }
    if constexpr (kWidth >= 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) quads[i] ^= SelectBytes(word[kWidth - 1] << i, 0, kSpreadSigns);
    }
  }
}

/// Decodes the two quads of 16-token block `block` (0..3) of one unit, as DecodeUnit does all eight.
/// kLast: whether it is block 3, whose codes of widths 3 to 5 lie apart.
template <int kWidth, bool kLast>
__device__ __forceinline__ void DecodeUnitBlock(const uint32_t* codes, int block, const LookUp& tables,
                                                uint32_t (&quads)[2]) {
  if constexpr (kWidth == 8) {
    quads[0] = codes[64 * block];
    quads[1] = codes[64 * block + 32];
  } else if constexpr (kWidth == 1) {
    const uint32_t s = (codes[0] >> block) & 0x11111111u;
    quads[0] = SelectBytes(kTable1, 0, s);
    quads[1] = SelectBytes(kTable1, 0, s >> 16);
  } else if constexpr (kWidth == 2) {
    const uint32_t s = (codes[(block >> 1) * 32] >> (2 * (block & 1))) & 0x33333333u;
    quads[0] = SelectBytes(tables.width2, 0, s);
    quads[1] = SelectBytes(tables.width2, 0, s >> 16);
  } else {
    const uint32_t low = kWidth == 3 ? tables.width3 : kWidth == 4 ? tables.width4 : kTable5[0];
    constexpr uint32_t kHigh = kWidth == 3 ? kTable3High : kWidth == 4 ? kTable4High : kTable5[1];
    uint32_t s;
    if constexpr (!kLast) {
      s = codes[32 * block] & 0x77777777u;
    } else {
      uint32_t selectors[4];
      SelectorsOfThreePlanes(codes[0], codes[32], codes[64], selectors);
      s = selectors[3];
    }
    const uint32_t half[2] = {s, s >> 16};
#pragma unroll
    for (int i = 0; i < 2; ++i) quads[i] = SelectBytes(low, kHigh, half[i]);
    if constexpr (kWidth >= 4) {
      const uint32_t sign = codes[(kWidth - 1) * 32] << (2 * block);
      if constexpr (kWidth == 5) {
        const uint32_t upper = codes[96] << (2 * block);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t large = SelectBytes(kTable5[2], kTable5[3], half[i]);
          quads[i] = SelectBits(SelectBytes(upper << i, 0, kSpreadSigns), large, quads[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) quads[i] ^= SelectBytes(sign << i, 0, kSpreadSigns);
    }
  }
}

}  // namespace blockgtq::cuda
