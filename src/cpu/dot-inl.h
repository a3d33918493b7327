// Integer dot products over decoded units (unpack-inl.h): queries with keys, probabilities with values.
// Re-included once a SIMD target.
#if defined(BGTQ_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BGTQ_CPU_DOT_INL_H_
#undef BGTQ_CPU_DOT_INL_H_
#else
#define BGTQ_CPU_DOT_INL_H_
#endif

#include "hwy/highway.h"
#include "src/cpu/attention_codes_impl.h"
#include "src/cpu/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

// Bytes of one 16-byte row (four words tq = 0..3 of a query's unit, or of a token block's probabilities)
// expanded for all planes: [kPlanes][16].
//   VNNI:   L = 0 0 2 2, U = 1 1 3 3 (digit = tq, four bytes each)
//   others: L = 0 0 1 1, U = 2 2 3 3, even bytes then odd bytes as 16-bit integers
constexpr int OperandSource(int plane,
                            int byte) {  // byte of the row; -1: zero (high half of a 16-bit integer)
  if (BGTQ_VNNI) return 4 * (plane + 2 * (byte >> 3)) + (byte & 3);
  return byte & 1 ? -1 : 4 * (2 * (plane >> 1) + (byte >> 3)) + (byte & 2) + (plane & 1);
}

// An accumulator of four partial sums a block. Highway's pairwise multiply-add uses a second one on some
// targets.
struct Accumulator {
  VI sum;
#if !BGTQ_VNNI
  VI other;
#endif
  HWY_INLINE VI Total() const {
#if BGTQ_VNNI
    return sum;
#else
    return hn::RearrangeToOddPlusEven(sum, other);
#endif
  }
};

HWY_INLINE Accumulator StartAt(VI start) {
#if BGTQ_VNNI
  return {start};
#else
  return {start, hn::Zero(DI())};
#endif
}

HWY_INLINE VI LoadCodes(const uint8_t* HWY_RESTRICT p) {
  return hn::LoadU(DI(), reinterpret_cast<const int32_t*>(p));
}
HWY_INLINE VI LoadOperand(const uint8_t* HWY_RESTRICT p) {
  return hn::LoadDup128(DI(), reinterpret_cast<const int32_t*>(p));
}

// unsigned_side: codes + 128 for keys, probabilities for values (VNNI multiplies unsigned by signed bytes).
HWY_INLINE void Dot(VI unsigned_side, VI signed_side, Accumulator& acc) {
#if BGTQ_VNNI
  // Assembly: Highway 1.0.3 checks for AVX512-VNNI but does not enable its intrinsics.
  asm("vpdpbusd %[b], %[a], %[sum]"
      : [sum] "+v"(acc.sum.raw)
      : [a] "v"(unsigned_side.raw), [b] "v"(signed_side.raw));
#else
  const DI16 d16;
  acc.sum = hn::ReorderWidenMulAccumulate(DI(), hn::BitCast(d16, unsigned_side),
                                          hn::BitCast(d16, signed_side), acc.sum, acc.other);
#endif
}

// Sums of blocks g and g + 4 of a slot, each A B A B partial sums: A_g B_g A_(g+4) B_(g+4), tile order.
HWY_INLINE VI Reduce(VI low, VI high) {
  using DI64 = hn::ScalableTag<int64_t>;
  const DI64 d64;
  const auto a = hn::BitCast(d64, low), b = hn::BitCast(d64, high);
  return hn::Add(hn::BitCast(DI(), hn::InterleaveLower(d64, a, b)),
                 hn::BitCast(DI(), hn::InterleaveUpper(d64, a, b)));
}

// logits[i][p] += norms[p] * (scale[i] * dot(query i, key p) + offset[i]) for the 64 tokens of a tile, in
// tile order.
//
// codes     decoded units of the pass
// operands  query i's at operands + i * operand_stride, 64 bytes a unit
// start     query i's accumulator start at start + i * start_stride, [4]
// scale     query i's {scale, offset} at scale + i * scale_stride
// logits    [kQueries, 64]
template <int kQueries>
HWY_INLINE void KeyDots(const uint8_t* HWY_RESTRICT codes, int units, const uint8_t* HWY_RESTRICT operands,
                        int64_t operand_stride, const int32_t* HWY_RESTRICT start, int64_t start_stride,
                        const float* HWY_RESTRICT scale, int64_t scale_stride,
                        const float* HWY_RESTRICT norms, float* HWY_RESTRICT logits) {
  const DF df;
  constexpr int kHalf = kWordVectors / 2;      // outputs (vectors) a slot
  constexpr int kOutputs = BGTQ_VNNI ? 2 : 1;  // at a time: accumulators stay in registers
  constexpr int kVector = 4 * kN * kPlanes;    // scratch bytes of a (slot, word vector)
  for (int out = 0; out < 4 * kHalf; out += kOutputs) {
    Accumulator low[kOutputs][kQueries], high[kOutputs][kQueries];
    for (int i = 0; i < kQueries; ++i) {
#if BGTQ_VNNI
      const VI first = hn::LoadDup128(DI(), start + i * start_stride);
#else
      const VI first = hn::Zero(DI());
#endif
      for (int o = 0; o < kOutputs; ++o) low[o][i] = high[o][i] = StartAt(first);
    }
    const uint8_t* base[kOutputs];
    for (int o = 0; o < kOutputs; ++o) {
      const int slot = (out + o) / kHalf, v = (out + o) % kHalf;
      base[o] = codes + (slot * kWordVectors + v) * kVector;
    }
    for (int u = 0; u < units; ++u) {
      for (int plane = 0; plane < kPlanes; ++plane) {
        VI operand[kQueries];
        for (int i = 0; i < kQueries; ++i) {
          operand[i] = LoadOperand(operands + i * operand_stride + 64 * u + 16 * plane);
        }
        for (int o = 0; o < kOutputs; ++o) {
          const uint8_t* at = base[o] + u * kUnitScratch + 4 * kN * plane;
          const VI a = LoadCodes(at), b = LoadCodes(at + kHalf * kVector);
          for (int i = 0; i < kQueries; ++i) {
            Dot(a, operand[i], low[o][i]);
            Dot(b, operand[i], high[o][i]);
          }
        }
      }
    }
    for (int o = 0; o < kOutputs; ++o) {
      const VF norm = hn::LoadU(df, norms + kN * (out + o));
      for (int i = 0; i < kQueries; ++i) {
        const VF sum = hn::ConvertTo(df, Reduce(low[o][i].Total(), high[o][i].Total()));
        const VF scaled =
            hn::MulAdd(sum, hn::Set(df, scale[i * scale_stride]), hn::Set(df, scale[i * scale_stride + 1]));
        float* to = logits + 64 * i + kN * (out + o);
        hn::StoreU(hn::MulAdd(scaled, norm, hn::LoadU(df, to)), df, to);
      }
    }
  }
}

// outputs[i] += factor[i] * sum over tokens of probability * code, unreduced: [units][32 lanes], lane
// 4 g + {0, 2} holding partial sums of dim g, 4 g + {1, 3} of dim g + 8.
//
// probabilities  query i's expanded rows at probabilities + i * 64 * kPlanes: [kPlanes][4 token blocks][16]
// outputs        query i's at outputs + i * output_stride
template <int kQueries, int kUnits>
HWY_INLINE void ValueDots(const uint8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT probabilities,
                          const float* HWY_RESTRICT factor, float* HWY_RESTRICT outputs,
                          int64_t output_stride) {
  const DF df;
  constexpr int kVectors = 2;  // word vectors at a time
  constexpr int kVector = 4 * kN * kPlanes;
  for (int v = 0; v < kWordVectors; v += kVectors) {
    Accumulator acc[kUnits][kVectors][kQueries];
    for (int u = 0; u < kUnits; ++u) {
      for (int w = 0; w < kVectors; ++w) {
        for (int i = 0; i < kQueries; ++i) acc[u][w][i] = StartAt(hn::Zero(DI()));
      }
    }
    for (int slot = 0; slot < 4; ++slot) {
      for (int plane = 0; plane < kPlanes; ++plane) {
        VI row[kQueries];
        for (int i = 0; i < kQueries; ++i) {
          row[i] = LoadOperand(probabilities + i * 64 * kPlanes + 64 * plane + 16 * slot);
        }
        for (int u = 0; u < kUnits; ++u) {
          for (int w = 0; w < kVectors; ++w) {
            const VI code = LoadCodes(codes + u * kUnitScratch + (slot * kWordVectors + v + w) * kVector +
                                      4 * kN * plane);
            for (int i = 0; i < kQueries; ++i) Dot(row[i], code, acc[u][w][i]);
          }
        }
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      const VF f = hn::Set(df, factor[i]);
      for (int u = 0; u < kUnits; ++u) {
        for (int w = 0; w < kVectors; ++w) {
          float* to = outputs + i * output_stride + 32 * u + kN * (v + w);
          hn::StoreU(hn::MulAdd(hn::ConvertTo(df, acc[u][w][i].Total()), f, hn::LoadU(df, to)), df, to);
        }
      }
    }
  }
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
