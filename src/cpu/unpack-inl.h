// Decodes units of codes to bytes (or 16-bit integers) in the order the dot products want. Re-included once a
// SIMD target.
//
// A vector of N 32-bit words covers N lanes (4 tq each) of a unit. Slot s is a pair of quads (2 s, 2 s + 1),
// called A and B: for keys they are tokens 16 s + g and 16 s + 8 + g, for values dims g and g + 8 of the 16
// tokens of block s. Word vector v of slot s decodes to two vectors L and U of 4-code words, one 128-bit
// block a g:
//   VNNI:     L = A0 B0 A2 B2, U = A1 B1 A3 B3      (digit = tq; bytes)
//   others:   L = A0 B0 A1 B1, U = A2 B2 A3 B3, each as two vectors of 16-bit integers: even bytes, odd bytes
// Summing L and U products gives four partial sums A, B, A, B a block. Scratch: [slot][v][plane].
#include <cstdint>

#include "src/codec/record.h"

#if defined(BGTQ_CPU_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BGTQ_CPU_UNPACK_INL_H_
#undef BGTQ_CPU_UNPACK_INL_H_
#else
#define BGTQ_CPU_UNPACK_INL_H_
#endif

#include "hwy/highway.h"

#undef BGTQ_VNNI
#if HWY_TARGET == HWY_AVX3_DL
#define BGTQ_VNNI 1
#else
#define BGTQ_VNNI 0
#endif

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU8 = hn::ScalableTag<uint8_t>;
using DI8 = hn::ScalableTag<int8_t>;
using DI16 = hn::ScalableTag<int16_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU8 = hn::Vec<DU8>;

constexpr int kN = static_cast<int>(hn::MaxLanes(DF()));  // 32-bit lanes a vector
constexpr int kWordVectors = 32 / kN;                     // word vectors a plane
constexpr int kPlanes = BGTQ_VNNI ? 2 : 4;                // scratch vectors a (slot, word vector)
constexpr int kUnitScratch = 512 * kPlanes;               // bytes a decoded unit

// Byte tables: integer of each code, repeated to 64 entries so that junk above the code is ignored.
struct ByteTable {
  alignas(64) int8_t value[64];
};

// Which magnitude or integer a nibble selects; widths 4 and 5 hold magnitudes in entries 0..15 of the
// portable table and all signed codes in the VNNI table.
struct UnpackTables {
  ByteTable table[6];
};

inline const UnpackTables& Tables() {
  static const UnpackTables tables = [] {
    UnpackTables t{};
    for (int width = 1; width <= 5; ++width) {
      for (int i = 0; i < 64; ++i) {
        const int bits = BGTQ_VNNI || width <= 3 ? width : width - 1;
        t.table[width].value[i] = static_cast<int8_t>(CodebookInt(width, i & ((1 << bits) - 1)));
      }
    }
    return t;
  }();
  return tables;
}

#if BGTQ_VNNI

// Bit offsets for multishift: byte k of the eight nibbles of a quadword's low word (L) or high word (U).
struct MultishiftControls {
  alignas(64) uint8_t nibble[2][4][64];   // [L, U][first bit]: nibbles at bit 4 k + first
  alignas(64) uint8_t sign[2][2][4][64];  // [L, U][to bit 3 or 4][slot]
};

inline const MultishiftControls& Controls() {
  static const MultishiftControls controls = [] {
    MultishiftControls c;
    for (int upper = 0; upper < 2; ++upper) {
      for (int k = 0; k < 64; ++k) {
        const int byte = k & 3, odd = (k >> 2) & 1;
        for (int first = 0; first < 4; ++first) {
          c.nibble[upper][first][k] = static_cast<uint8_t>(32 * upper + 4 * (k & 7) + first);
        }
        for (int slot = 0; slot < 4; ++slot) {
          for (int to = 0; to < 2; ++to) {
            const int bit = 32 * upper + 8 * byte + 7 - (2 * slot + odd);
            c.sign[upper][to][slot][k] = static_cast<uint8_t>((bit - 3 - to) & 63);
          }
        }
      }
    }
    return c;
  }();
  return controls;
}

// kOffset: 0x80 stores codes as value + 128 (unsigned operand of the dot product), 0 as they are.
template <int kWidth, int kOffset>
HWY_INLINE void UnpackUnitOf(const uint8_t* HWY_RESTRICT unit, uint8_t* HWY_RESTRICT out) {
  const MultishiftControls& controls = Controls();
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(kOffset));
  const __m512i table =
      kWidth == 8 ? flip
                  : _mm512_xor_si512(_mm512_load_si512(Tables().table[kWidth == 8 ? 0 : kWidth].value), flip);
  const auto word = [&](int plane, int v) { return _mm512_loadu_si512(unit + 128 * plane + 64 * v); };
  const auto shift = [](const uint8_t* control, __m512i x) {
    return _mm512_multishift_epi64_epi8(_mm512_load_si512(control), x);
  };
  HWY_UNROLL(2)
  for (int v = 0; v < 2; ++v) {
    const auto store = [&](int slot, int plane, __m512i x) {
      _mm512_store_si512(out + 64 * ((slot * 2 + v) * 2 + plane), x);
    };
    if constexpr (kWidth == 8) {
      HWY_UNROLL(4)
      for (int slot = 0; slot < 4; ++slot) {
        const __m512i a = _mm512_xor_si512(word(2 * slot, v), flip);
        const __m512i b = _mm512_xor_si512(word(2 * slot + 1, v), flip);
        store(slot, 0, _mm512_mask_blend_epi32(0xAAAA, a, _mm512_slli_epi64(b, 32)));
        store(slot, 1, _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(a, 32), b));
      }
    } else if constexpr (kWidth <= 2) {
      HWY_UNROLL(4)
      for (int slot = 0; slot < 4; ++slot) {
        const __m512i w = word(kWidth == 1 ? 0 : slot >> 1, v);
        const int first = kWidth == 1 ? slot : 2 * (slot & 1);
        for (int p = 0; p < 2; ++p) {
          store(slot, p, _mm512_permutexvar_epi8(shift(controls.nibble[p][first], w), table));
        }
      }
    } else {
      __m512i w[4] = {word(0, v), word(1, v), word(2, v), _mm512_setzero_si512()};
      // Bit 3 of the nibbles of the three words is the fourth slot's code. 0xd8: second ? third : first.
      w[3] = _mm512_ternarylogic_epi32(_mm512_srli_epi32(w[0], 3), _mm512_srli_epi32(w[1], 2),
                                       _mm512_set1_epi32(0x22222222), 0xd8);
      w[3] = _mm512_ternarylogic_epi32(w[3], _mm512_srli_epi32(w[2], 1), _mm512_set1_epi32(0x44444444), 0xd8);
      HWY_UNROLL(4)
      for (int slot = 0; slot < 4; ++slot) {
        for (int p = 0; p < 2; ++p) {
          __m512i index = shift(controls.nibble[p][0], w[slot]);
          if constexpr (kWidth >= 4) {
            index = _mm512_ternarylogic_epi32(index, shift(controls.sign[p][0][slot], word(3, v)),
                                              _mm512_set1_epi8(8), 0xd8);
          }
          if constexpr (kWidth == 5) {
            index = _mm512_ternarylogic_epi32(index, shift(controls.sign[p][1][slot], word(4, v)),
                                              _mm512_set1_epi8(16), 0xd8);
          }
          store(slot, p, _mm512_permutexvar_epi8(index, table));
        }
      }
    }
  }
}

#else  // BGTQ_VNNI

// Widens the bytes of L or U to two vectors of 16-bit integers.
HWY_INLINE void StoreWide(hn::Vec<DI8> bytes, uint8_t* HWY_RESTRICT out) {
  const DI16 d16;
  const auto x = hn::BitCast(d16, bytes);
  hn::StoreU(hn::ShiftRight<8>(hn::ShiftLeft<8>(x)), d16, reinterpret_cast<int16_t*>(out));
  hn::StoreU(hn::ShiftRight<8>(x), d16, reinterpret_cast<int16_t*>(out + 4 * kN));
}

// Bit 7 - (2 kSlot + odd) of each byte of `plane` moved to bit 7.
template <int kSlot>
HWY_INLINE void SignBits(VI plane, VI* lower, VI* upper) {
  const DI di;
  const VI a = hn::ShiftLeft<2 * kSlot>(plane), b = hn::ShiftLeft<2 * kSlot + 1>(plane);
  *lower = hn::InterleaveLower(di, a, b);
  *upper = hn::InterleaveUpper(di, a, b);
}

template <int kWidth, int kSlot>
HWY_INLINE void UnpackSlot(const VI* words, VU8 table, uint8_t* HWY_RESTRICT out) {
  const DI di;
  const DI8 d8;
  const DU8 du;
  if constexpr (kWidth == 8) {
    const VI a = words[2 * kSlot], b = words[2 * kSlot + 1];
    StoreWide(hn::BitCast(d8, hn::InterleaveLower(di, a, b)), out);
    StoreWide(hn::BitCast(d8, hn::InterleaveUpper(di, a, b)), out + 8 * kN);
  } else {
    constexpr int kWord = kWidth == 1 ? 0 : kWidth == 2 ? kSlot >> 1 : kSlot;
    constexpr int kFirst = kWidth == 1 ? kSlot : kWidth == 2 ? 2 * (kSlot & 1) : 0;
    constexpr int kMask = kWidth == 1 ? 1 : kWidth == 2 ? 3 : 7;
    const VU8 mask = hn::Set(du, kMask);
    const VU8 even = hn::And(hn::BitCast(du, hn::ShiftRight<kFirst>(words[kWord])), mask);
    const VU8 odd = hn::And(hn::BitCast(du, hn::ShiftRight<kFirst + 4>(words[kWord])), mask);
    VU8 lower = hn::InterleaveLower(du, even, odd);
    VU8 upper = hn::InterleaveUpper(du, even, odd);
    if constexpr (kWidth == 5) {
      VI high_lower, high_upper;
      SignBits<kSlot>(words[4], &high_lower, &high_upper);
      const VU8 eight = hn::Set(du, 8);
      lower = hn::Or(lower, hn::And(hn::BitCast(du, hn::ShiftRight<4>(high_lower)), eight));
      upper = hn::Or(upper, hn::And(hn::BitCast(du, hn::ShiftRight<4>(high_upper)), eight));
    }
    auto low = hn::BitCast(d8, hn::TableLookupBytes(table, lower));
    auto up = hn::BitCast(d8, hn::TableLookupBytes(table, upper));
    if constexpr (kWidth >= 4) {  // n or ~n
      VI sign_lower, sign_upper;
      SignBits<kSlot>(words[kWidth == 4 ? 4 : 5], &sign_lower, &sign_upper);
      low = hn::Xor(low, hn::BroadcastSignBit(hn::BitCast(d8, sign_lower)));
      up = hn::Xor(up, hn::BroadcastSignBit(hn::BitCast(d8, sign_upper)));
    }
    StoreWide(low, out);
    StoreWide(up, out + 8 * kN);
  }
}

template <int kWidth, int kOffset>
HWY_INLINE void UnpackUnitOf(const uint8_t* HWY_RESTRICT unit, uint8_t* HWY_RESTRICT out) {
  const DI di;
  const VU8 table =
      hn::LoadDup128(DU8(), reinterpret_cast<const uint8_t*>(Tables().table[kWidth == 8 ? 0 : kWidth].value));
  for (int v = 0; v < kWordVectors; ++v) {
    VI words[8];
    const auto word = [&](int plane) {
      return hn::LoadU(di, reinterpret_cast<const int32_t*>(unit + 128 * plane) + kN * v);
    };
    if constexpr (kWidth == 8) {
      for (int p = 0; p < 8; ++p) words[p] = word(p);
    } else {
      for (int p = 0; p < (kWidth < 3 ? kWidth : 3); ++p) words[p] = word(p);
      if constexpr (kWidth >= 3) {  // words[3]: the fourth slot, from bit 3 of the nibbles
        const VI one = hn::Set(di, 0x11111111);
        words[3] = hn::Or(hn::And(hn::ShiftRight<3>(words[0]), one),
                          hn::Or(hn::And(hn::ShiftRight<2>(words[1]), hn::Set(di, 0x22222222)),
                                 hn::And(hn::ShiftRight<1>(words[2]), hn::Set(di, 0x44444444))));
      }
      if constexpr (kWidth >= 4) words[4] = word(3);
      if constexpr (kWidth == 5) words[5] = word(4);
    }
    uint8_t* to = out + 16 * kN * v;
    constexpr int kStride = 16 * kN * kWordVectors;
    UnpackSlot<kWidth, 0>(words, table, to);
    UnpackSlot<kWidth, 1>(words, table, to + kStride);
    UnpackSlot<kWidth, 2>(words, table, to + 2 * kStride);
    UnpackSlot<kWidth, 3>(words, table, to + 3 * kStride);
  }
}

#endif  // BGTQ_VNNI

// Decodes one unit of width `width` to kUnitScratch bytes.
template <int kOffset>
HWY_INLINE void UnpackUnit(int width, const uint8_t* HWY_RESTRICT unit, uint8_t* HWY_RESTRICT out) {
  switch (width) {
    case 1:
      return UnpackUnitOf<1, kOffset>(unit, out);
    case 2:
      return UnpackUnitOf<2, kOffset>(unit, out);
    case 3:
      return UnpackUnitOf<3, kOffset>(unit, out);
    case 4:
      return UnpackUnitOf<4, kOffset>(unit, out);
    case 5:
      return UnpackUnitOf<5, kOffset>(unit, out);
    default:
      return UnpackUnitOf<8, kOffset>(unit, out);
  }
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
