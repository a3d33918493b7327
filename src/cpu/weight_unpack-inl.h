// Unpacks GGUF weight blocks of a row group into vectors with one row a lane, once per SIMD target.
//
// A block of 32 elements becomes 8 vectors of unsigned codes: lane r of vector j holds elements 4j..4j+3 of
// row r, one a byte (the operand order of dot-product instructions), and vectors of scales. Element value:
//   scale * (code - kOffset)             types without a minimum; elements 16..31 of Q6_K use `second`
//   scale * code + second                types with one
// Source of the layouts: GGUF's block formats; src/core/dequantize.cc is the scalar reference.

#if defined(BLOCKGTQ_CPU_WEIGHT_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKGTQ_CPU_WEIGHT_UNPACK_INL_H_
#undef BLOCKGTQ_CPU_WEIGHT_UNPACK_INL_H_
#else
#define BLOCKGTQ_CPU_WEIGHT_UNPACK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using DU = hn::ScalableTag<uint32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

/// Rows of a group: 16 with AVX-512, 8 with AVX2, 4 with SSE4 and NEON.
constexpr int kRows = static_cast<int>(hn::MaxLanes(DF()));
static_assert(kRows == 4 || kRows == 8 || kRows == 16);

/// Where the rows of a group are: row r at base + r * stride.
struct RowGroup {
  const uint8_t* base;
  ptrdiff_t stride;
};

// 16 bytes of each of rows i, i + 4, i + 8 and i + 12, in the vector's 128-bit parts.
HWY_INLINE VU LoadEveryFourthRow(const uint8_t* p, ptrdiff_t stride) {
  const hn::Full128<uint8_t> d128;
#if HWY_MAX_BYTES == 64
  const hn::Full256<uint8_t> d256;
  const hn::Full512<uint8_t> d512;
  const auto lower = hn::Combine(d256, hn::LoadU(d128, p + 4 * stride), hn::LoadU(d128, p));
  const auto upper = hn::Combine(d256, hn::LoadU(d128, p + 12 * stride), hn::LoadU(d128, p + 8 * stride));
  return hn::BitCast(DU(), hn::Combine(d512, upper, lower));
#elif HWY_MAX_BYTES == 32
  const hn::Full256<uint8_t> d256;
  return hn::BitCast(DU(), hn::Combine(d256, hn::LoadU(d128, p + 4 * stride), hn::LoadU(d128, p)));
#else
  (void)stride;
  return hn::BitCast(DU(), hn::LoadU(d128, p));
#endif
}

/// The four 32-bit words at p of every row: lane r of v_j = word j of row r. Reads 16 bytes a row.
HWY_INLINE void LoadWords(const uint8_t* p, ptrdiff_t stride, VU& v0, VU& v1, VU& v2, VU& v3) {
  const DU du;
  const hn::ScalableTag<uint64_t> d64;
  const VU r0 = LoadEveryFourthRow(p, stride);
  const VU r1 = LoadEveryFourthRow(p + stride, stride);
  const VU r2 = LoadEveryFourthRow(p + 2 * stride, stride);
  const VU r3 = LoadEveryFourthRow(p + 3 * stride, stride);
  const auto lo01 = hn::BitCast(d64, hn::InterleaveLower(du, r0, r1));
  const auto lo23 = hn::BitCast(d64, hn::InterleaveLower(du, r2, r3));
  const auto hi01 = hn::BitCast(d64, hn::InterleaveUpper(du, r0, r1));
  const auto hi23 = hn::BitCast(d64, hn::InterleaveUpper(du, r2, r3));
  v0 = hn::BitCast(du, hn::InterleaveLower(d64, lo01, lo23));
  v1 = hn::BitCast(du, hn::InterleaveUpper(d64, lo01, lo23));
  v2 = hn::BitCast(du, hn::InterleaveLower(d64, hi01, hi23));
  v3 = hn::BitCast(du, hn::InterleaveUpper(d64, hi01, hi23));
}

/// Half floats in the low 16 bits of each lane (the upper bits are ignored), exact.
HWY_INLINE VF LowHalf(VU v) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  const hn::Rebind<uint16_t, DU> d16;
  const hn::Rebind<hwy::float16_t, DU> dh;
  return hn::PromoteTo(DF(), hn::BitCast(dh, hn::TruncateTo(d16, v)));
#else
  // Highway's own conversion without F16C loses infinities.
  const DU du;
  const DF df;
  const VU magnitude = hn::And(v, hn::Set(du, 0x7fffu));
  const VU sign = hn::ShiftLeft<16>(hn::And(v, hn::Set(du, 0x8000u)));
  const VF finite = hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), hn::Set(df, 0x1p112f));
  const auto special = hn::Gt(hn::BitCast(DI(), magnitude), hn::Set(DI(), 0x7bff));
  const VU exponent = hn::IfThenElseZero(hn::RebindMask(du, special), hn::Set(du, 0x7f800000u));
  return hn::BitCast(df, hn::Or(hn::Or(hn::BitCast(du, finite), exponent), sign));
#endif
}

HWY_INLINE VF HighHalf(VU v) { return LowHalf(hn::ShiftRight<16>(v)); }

/// Byte `kByte` of each lane, unsigned, as float.
template <int kByte>
HWY_INLINE VF ByteToFloat(VU v) {
  const VU byte = hn::And(hn::ShiftRight<8 * kByte>(v), hn::Set(DU(), 0xffu));
  return hn::ConvertTo(DF(), hn::BitCast(DI(), byte));
}

/// Byte `kByte` of each lane, signed, as float.
template <int kByte>
HWY_INLINE VF SignedByteToFloat(VU v) {
  return hn::ConvertTo(DF(), hn::ShiftRight<24>(hn::ShiftLeft<24 - 8 * kByte>(hn::BitCast(DI(), v))));
}

HWY_INLINE VU LowNibbles(VU v) { return hn::And(v, hn::Set(DU(), 0x0f0f0f0fu)); }
HWY_INLINE VU HighNibbles(VU v) { return LowNibbles(hn::ShiftRight<4>(v)); }

// Bits 4 kWord .. 4 kWord + 3 of each lane, as the value 16 in bytes 0..3.
template <int kWord>
HWY_INLINE VU FifthBits(VU bits) {
  const DU du;
#if HWY_TARGET == HWY_AVX3_DL
  // Byte i takes the 8 bits that start 4 below the wanted one (modulo 64), so that it lands on bit 4.
  constexpr uint64_t kFirst = (4 * kWord + 60) & 63, kSecond = (4 * kWord + 28) & 63;
  constexpr uint64_t kStep = 0x03020100u;
  constexpr uint64_t kShifts =
      ((kFirst * 0x01010101u + kStep) & 0x3f3f3f3fu) | ((kSecond * 0x01010101u + kStep) & 0x3f3f3f3fu) << 32;
  const __m512i shifts = _mm512_set1_epi64(static_cast<int64_t>(kShifts));
  return hn::And(VU{_mm512_multishift_epi64_epi8(shifts, bits.raw)}, hn::Set(du, 0x10101010u));
#else
  const VU four = hn::And(hn::ShiftRight<4 * kWord>(bits), hn::Set(du, 15u));
  return hn::And(hn::Mul(four, hn::Set(du, 0x02040810u)), hn::Set(du, 0x10101010u));
#endif
}

/// What an unpacker hands to its sink for 32 elements.
struct UnpackedBlock {
  VU codes[8];
  VF scale;
  VF second;
};

// 16 bytes of nibbles: element j is the low nibble of byte j, element 16 + j the high one.
HWY_INLINE void UnpackNibbles(const uint8_t* p, ptrdiff_t stride, VU (&codes)[8]) {
  VU w[4];
  LoadWords(p, stride, w[0], w[1], w[2], w[3]);
  for (int j = 0; j < 4; ++j) {
    codes[j] = LowNibbles(w[j]);
    codes[4 + j] = HighNibbles(w[j]);
  }
}

HWY_INLINE void AddFifthBits(VU bits, VU (&codes)[8]) {
  codes[0] = hn::Or(codes[0], FifthBits<0>(bits));
  codes[1] = hn::Or(codes[1], FifthBits<1>(bits));
  codes[2] = hn::Or(codes[2], FifthBits<2>(bits));
  codes[3] = hn::Or(codes[3], FifthBits<3>(bits));
  codes[4] = hn::Or(codes[4], FifthBits<4>(bits));
  codes[5] = hn::Or(codes[5], FifthBits<5>(bits));
  codes[6] = hn::Or(codes[6], FifthBits<6>(bits));
  codes[7] = hn::Or(codes[7], FifthBits<7>(bits));
}

// Each unpacker: kElements and kBytes of a stored block; log2 of its code offset (0: none); whether it has a
// minimum, a scale for each half of 32 elements, and only codes below 64. Unpack calls
// sink.template Take<Unpacker>(block) for every 32 elements, in order.

struct UnpackQ4_0 {
  static constexpr int kElements = 32, kBytes = 18, kOffsetLog2 = 3;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    UnpackedBlock block;
    VU head, unused1, unused2, unused3;
    LoadWords(rows.base, rows.stride, head, unused1, unused2, unused3);
    block.scale = block.second = LowHalf(head);
    UnpackNibbles(rows.base + 2, rows.stride, block.codes);
    sink.template Take<UnpackQ4_0>(block);
  }
};

struct UnpackQ4_1 {
  static constexpr int kElements = 32, kBytes = 20, kOffsetLog2 = 0;
  static constexpr bool kHasMinimum = true, kTwoScales = false, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    UnpackedBlock block;
    VU head, unused1, unused2, unused3;
    LoadWords(rows.base, rows.stride, head, unused1, unused2, unused3);
    block.scale = LowHalf(head);
    block.second = HighHalf(head);
    UnpackNibbles(rows.base + 4, rows.stride, block.codes);
    sink.template Take<UnpackQ4_1>(block);
  }
};

struct UnpackQ5_0 {
  static constexpr int kElements = 32, kBytes = 22, kOffsetLog2 = 4;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    UnpackedBlock block;
    VU word0, word1, unused2, unused3;  // the fifth bits lie across two words
    LoadWords(rows.base, rows.stride, word0, word1, unused2, unused3);
    block.scale = block.second = LowHalf(word0);
    UnpackNibbles(rows.base + 6, rows.stride, block.codes);
    AddFifthBits(hn::Or(hn::ShiftRight<16>(word0), hn::ShiftLeft<16>(word1)), block.codes);
    sink.template Take<UnpackQ5_0>(block);
  }
};

struct UnpackQ5_1 {
  static constexpr int kElements = 32, kBytes = 24, kOffsetLog2 = 0;
  static constexpr bool kHasMinimum = true, kTwoScales = false, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    UnpackedBlock block;
    VU head, bits, unused2, unused3;
    LoadWords(rows.base, rows.stride, head, bits, unused2, unused3);
    block.scale = LowHalf(head);
    block.second = HighHalf(head);
    UnpackNibbles(rows.base + 8, rows.stride, block.codes);
    AddFifthBits(bits, block.codes);
    sink.template Take<UnpackQ5_1>(block);
  }
};

struct UnpackQ8_0 {
  static constexpr int kElements = 32, kBytes = 34, kOffsetLog2 = 7;
  static constexpr bool kHasMinimum = false, kTwoScales = false, kSmallCodes = false;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    const VU flip = hn::Set(DU(), 0x80808080u);  // signed c -> unsigned c + 128
    UnpackedBlock block;
    VU head, unused1, unused2, unused3;
    LoadWords(rows.base, rows.stride, head, unused1, unused2, unused3);
    block.scale = block.second = LowHalf(head);
    VU* c = block.codes;
    LoadWords(rows.base + 2, rows.stride, c[0], c[1], c[2], c[3]);
    LoadWords(rows.base + 18, rows.stride, c[4], c[5], c[6], c[7]);
    for (int j = 0; j < 8; ++j) c[j] = hn::Xor(c[j], flip);
    sink.template Take<UnpackQ8_0>(block);
  }
};

// The 6-bit scales and minima of a Q4_K or Q5_K block, one byte a 32 elements.
struct SubScales {
  VF scale, minus_minimum;
  VU scales[2], minima[2];

  HWY_INLINE SubScales(RowGroup rows) {
    VU head, low, middle, high;
    LoadWords(rows.base, rows.stride, head, low, middle, high);
    scale = LowHalf(head);
    minus_minimum = hn::Neg(HighHalf(head));
    const VU six = hn::Set(DU(), 0x3f3f3f3fu), top = hn::Set(DU(), 0x30303030u);
    scales[0] = hn::And(low, six);
    minima[0] = hn::And(middle, six);
    scales[1] = hn::Or(LowNibbles(high), hn::And(hn::ShiftRight<2>(low), top));
    minima[1] = hn::Or(HighNibbles(high), hn::And(hn::ShiftRight<2>(middle), top));
  }

  template <int kSub>
  HWY_INLINE void Set(UnpackedBlock& block) const {
    block.scale = hn::Mul(scale, ByteToFloat<kSub % 4>(scales[kSub / 4]));
    block.second = hn::Mul(minus_minimum, ByteToFloat<kSub % 4>(minima[kSub / 4]));
  }
};

struct UnpackQ4_K {
  static constexpr int kElements = 256, kBytes = 144, kOffsetLog2 = 0;
  static constexpr bool kHasMinimum = true, kTwoScales = false, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    const SubScales sub(rows);
    Pair<0>(rows, sub, sink);
    Pair<2>(rows, sub, sink);
    Pair<4>(rows, sub, sink);
    Pair<6>(rows, sub, sink);
  }

 private:
  // 32 bytes: sub-block kSub in the low nibbles, kSub + 1 in the high ones.
  template <int kSub, class Sink>
  static HWY_INLINE void Pair(RowGroup rows, const SubScales& sub, Sink& sink) {
    VU w[8];
    LoadWords(rows.base + 16 + 16 * kSub, rows.stride, w[0], w[1], w[2], w[3]);
    LoadWords(rows.base + 32 + 16 * kSub, rows.stride, w[4], w[5], w[6], w[7]);
    UnpackedBlock block;
    sub.Set<kSub>(block);
    for (int j = 0; j < 8; ++j) block.codes[j] = LowNibbles(w[j]);
    sink.template Take<UnpackQ4_K>(block);
    sub.Set<kSub + 1>(block);
    for (int j = 0; j < 8; ++j) block.codes[j] = HighNibbles(w[j]);
    sink.template Take<UnpackQ4_K>(block);
  }
};

struct UnpackQ5_K {
  static constexpr int kElements = 256, kBytes = 176, kOffsetLog2 = 0;
  static constexpr bool kHasMinimum = true, kTwoScales = false, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    const SubScales sub(rows);
    VU high[8];  // bit s of a byte: fifth bit in sub-block s
    LoadWords(rows.base + 16, rows.stride, high[0], high[1], high[2], high[3]);
    LoadWords(rows.base + 32, rows.stride, high[4], high[5], high[6], high[7]);
    Pair<0>(rows, sub, high, sink);
    Pair<2>(rows, sub, high, sink);
    Pair<4>(rows, sub, high, sink);
    Pair<6>(rows, sub, high, sink);
  }

 private:
  template <int kSub>
  static HWY_INLINE VU Bit(VU high) {
    const VU mask = hn::Set(DU(), 0x10101010u);
    if constexpr (kSub < 4) {
      return hn::And(hn::ShiftLeft<4 - kSub>(high), mask);
    } else {
      return hn::And(hn::ShiftRight<kSub - 4>(high), mask);
    }
  }

  template <int kSub, class Sink>
  static HWY_INLINE void Pair(RowGroup rows, const SubScales& sub, const VU (&high)[8], Sink& sink) {
    VU w[8];
    LoadWords(rows.base + 48 + 16 * kSub, rows.stride, w[0], w[1], w[2], w[3]);
    LoadWords(rows.base + 64 + 16 * kSub, rows.stride, w[4], w[5], w[6], w[7]);
    UnpackedBlock block;
    sub.Set<kSub>(block);
    for (int j = 0; j < 8; ++j) block.codes[j] = hn::Or(LowNibbles(w[j]), Bit<kSub>(high[j]));
    sink.template Take<UnpackQ5_K>(block);
    sub.Set<kSub + 1>(block);
    for (int j = 0; j < 8; ++j) block.codes[j] = hn::Or(HighNibbles(w[j]), Bit<kSub + 1>(high[j]));
    sink.template Take<UnpackQ5_K>(block);
  }
};

struct UnpackQ6_K {
  static constexpr int kElements = 256, kBytes = 210, kOffsetLog2 = 5;
  static constexpr bool kHasMinimum = false, kTwoScales = true, kSmallCodes = true;
  template <class Sink>
  static HWY_INLINE void Unpack(RowGroup rows, Sink& sink) {
    VU unused0, unused1, unused2, tail;
    LoadWords(rows.base + 194, rows.stride, unused0, unused1, unused2, tail);
    const VF scale = HighHalf(tail);
    VU sub[4];  // 16 signed bytes, one a 16 elements
    LoadWords(rows.base + 192, rows.stride, sub[0], sub[1], sub[2], sub[3]);
    Half<0>(rows, scale, sub, sink);
    Half<1>(rows, scale, sub + 2, sink);
  }

 private:
  // Elements 128 kHalf .. +127: 64 bytes of low nibbles, 32 bytes of upper bit pairs.
  template <int kHalf, class Sink>
  static HWY_INLINE void Half(RowGroup rows, VF scale, const VU* sub, Sink& sink) {
    const uint8_t* nibbles = rows.base + 64 * kHalf;
    const uint8_t* pairs = rows.base + 128 + 32 * kHalf;
    const VU mask = hn::Set(DU(), 0x30303030u);
    VU a[8], b[8], h[8];
    LoadWords(pairs, rows.stride, h[0], h[1], h[2], h[3]);
    LoadWords(pairs + 16, rows.stride, h[4], h[5], h[6], h[7]);
    LoadWords(nibbles, rows.stride, a[0], a[1], a[2], a[3]);
    LoadWords(nibbles + 16, rows.stride, a[4], a[5], a[6], a[7]);
    LoadWords(nibbles + 32, rows.stride, b[0], b[1], b[2], b[3]);
    LoadWords(nibbles + 48, rows.stride, b[4], b[5], b[6], b[7]);
    UnpackedBlock block;
    block.scale = hn::Mul(scale, SignedByteToFloat<0>(sub[0]));
    block.second = hn::Mul(scale, SignedByteToFloat<1>(sub[0]));
    for (int j = 0; j < 8; ++j) {
      block.codes[j] = hn::Or(LowNibbles(a[j]), hn::And(hn::ShiftLeft<4>(h[j]), mask));
    }
    sink.template Take<UnpackQ6_K>(block);
    block.scale = hn::Mul(scale, SignedByteToFloat<2>(sub[0]));
    block.second = hn::Mul(scale, SignedByteToFloat<3>(sub[0]));
    for (int j = 0; j < 8; ++j) {
      block.codes[j] = hn::Or(LowNibbles(b[j]), hn::And(hn::ShiftLeft<2>(h[j]), mask));
    }
    sink.template Take<UnpackQ6_K>(block);
    block.scale = hn::Mul(scale, SignedByteToFloat<0>(sub[1]));
    block.second = hn::Mul(scale, SignedByteToFloat<1>(sub[1]));
    for (int j = 0; j < 8; ++j) block.codes[j] = hn::Or(HighNibbles(a[j]), hn::And(h[j], mask));
    sink.template Take<UnpackQ6_K>(block);
    block.scale = hn::Mul(scale, SignedByteToFloat<2>(sub[1]));
    block.second = hn::Mul(scale, SignedByteToFloat<3>(sub[1]));
    for (int j = 0; j < 8; ++j) {
      block.codes[j] = hn::Or(HighNibbles(b[j]), hn::And(hn::ShiftRight<2>(h[j]), mask));
    }
    sink.template Take<UnpackQ6_K>(block);
  }
};

/// Unpacks elements [0, cols) of the group, cols a multiple of the type's block.
template <class Unpacker, class Sink>
HWY_INLINE void UnpackRows(RowGroup rows, int64_t cols, Sink& sink) {
  for (int64_t k = 0; k < cols; k += Unpacker::kElements) {
    Unpacker::Unpack(rows, sink);
    rows.base += Unpacker::kBytes;
  }
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BLOCKGTQ_CPU_WEIGHT_UNPACK_INL_H_
