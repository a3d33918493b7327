// Integer matrix product: weight blocks of one row group, unpacked in registers, times int8 activations.
//
// Each 32 elements give an exact integer dot, then acc += (weight scale * activation scale) * dot, and the
// minimum's term; one unpacked block serves every token of the call before the next one is read.
#include "src/cpu/simd_targets.h"
//
#include <cassert>
#include <cstring>

#include "src/cpu/matmul_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/matmul_int8.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "src/cpu/weight_unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define BGTQ_PAIRWISE_X86 1
// Names the x86 instructions for every vector size: sums of adjacent products, in lane order.
HWY_INLINE __m128i MulPairsU8S8(__m128i u, __m128i s) { return _mm_maddubs_epi16(u, s); }
HWY_INLINE __m128i MulPairsS16(__m128i a, __m128i b) { return _mm_madd_epi16(a, b); }
#if HWY_MAX_BYTES >= 32
HWY_INLINE __m256i MulPairsU8S8(__m256i u, __m256i s) { return _mm256_maddubs_epi16(u, s); }
HWY_INLINE __m256i MulPairsS16(__m256i a, __m256i b) { return _mm256_madd_epi16(a, b); }
#endif
#if HWY_MAX_BYTES >= 64
HWY_INLINE __m512i MulPairsU8S8(__m512i u, __m512i s) { return _mm512_maddubs_epi16(u, s); }
HWY_INLINE __m512i MulPairsS16(__m512i a, __m512i b) { return _mm512_madd_epi16(a, b); }
#endif
#else
#define BGTQ_PAIRWISE_X86 0
#endif

// sum + the dot product of each lane's four unsigned codes with the four signed ones at x. Exact.
template <bool kSmallCodes>
HWY_INLINE VI DotFour(VI sum, VU codes, const int8_t* x) {
#if HWY_TARGET == HWY_AVX3_DL
  // Highway 1.0.3's flags for this target lack avx512vnni, so the intrinsic would not compile.
  asm("vpdpbusd %[x]%{1to16%}, %[codes], %[sum]"
      : [sum] "+v"(sum.raw)
      : [codes] "v"(codes.raw), [x] "m"(*reinterpret_cast<const int8_t(*)[4]>(x)));
  return sum;
#else
  const DI di;
  const hn::Repartition<int16_t, DI> d16;
  const hn::Repartition<uint16_t, DI> du16;
  int32_t x_word;
  std::memcpy(&x_word, x, sizeof(x_word));
  const VI word = hn::Set(di, x_word);
#if BGTQ_PAIRWISE_X86
  if constexpr (kSmallCodes) {  // 2 * 63 * 127 fits in 16 bits
    const auto pairs = MulPairsU8S8(codes.raw, word.raw);
    return hn::Add(sum, VI{MulPairsS16(pairs, hn::Set(d16, 1).raw)});
  }
#endif
  const auto even_codes = hn::BitCast(d16, hn::And(codes, hn::Set(DU(), 0x00ff00ffu)));
  const auto odd_codes = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, codes)));
  const auto odd_x = hn::ShiftRight<8>(hn::BitCast(d16, word));
  const auto even_x = hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(d16, word)));
#if BGTQ_PAIRWISE_X86
  const VI even = VI{MulPairsS16(even_codes.raw, even_x.raw)};
  const VI odd = VI{MulPairsS16(odd_codes.raw, odd_x.raw)};
  return hn::Add(sum, hn::Add(even, odd));
#else
  // Single products fit in 16 bits (255 * 127); their sums need 32.
  const VI even = hn::BitCast(di, hn::Mul(even_codes, even_x));
  const VI odd = hn::BitCast(di, hn::Mul(odd_codes, odd_x));
  const VI upper = hn::Add(hn::ShiftRight<16>(even), hn::ShiftRight<16>(odd));
  const VI lower = hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(even)),  //
                           hn::ShiftRight<16>(hn::ShiftLeft<16>(odd)));
  return hn::Add(sum, hn::Add(upper, lower));
#endif
#endif
}
#undef BGTQ_PAIRWISE_X86

// acc + the product of one unpacked block with 32 activations of one token. kChains: 2 where nothing else
// runs beside a chain's own latency, 1 saves their sum.
template <class Unpacker, int kChains>
HWY_INLINE VF MultiplyBlock(const UnpackedBlock& block, const QuantBlock* HWY_RESTRICT x, VF acc) {
  const DF df;
  const DI di;
  constexpr bool kSmall = Unpacker::kSmallCodes;
  constexpr bool kTwoSums = kChains == 2 || Unpacker::kTwoScales;
  const VF x_scale = hn::Set(df, x->scale);
  VI low = hn::Zero(di), second_sum = hn::Zero(di);
  VI& high = kTwoSums ? second_sum : low;
  if constexpr (Unpacker::kTwoScales) {
    const VI minus_low = hn::Set(di, x->minus_low);
    low = hn::ShiftLeft<Unpacker::kOffsetLog2>(minus_low);
    high = hn::ShiftLeft<Unpacker::kOffsetLog2>(hn::Sub(hn::Set(di, x->minus_sum), minus_low));
  } else if constexpr (Unpacker::kOffsetLog2 != 0) {
    low = hn::ShiftLeft<Unpacker::kOffsetLog2>(hn::Set(di, x->minus_sum));
  }
  low = DotFour<kSmall>(low, block.codes[0], x->codes);
  high = DotFour<kSmall>(high, block.codes[4], x->codes + 16);
  low = DotFour<kSmall>(low, block.codes[1], x->codes + 4);
  high = DotFour<kSmall>(high, block.codes[5], x->codes + 20);
  low = DotFour<kSmall>(low, block.codes[2], x->codes + 8);
  high = DotFour<kSmall>(high, block.codes[6], x->codes + 24);
  low = DotFour<kSmall>(low, block.codes[3], x->codes + 12);
  high = DotFour<kSmall>(high, block.codes[7], x->codes + 28);
  if constexpr (Unpacker::kTwoScales) {
    acc = hn::MulAdd(hn::Mul(block.scale, x_scale), hn::ConvertTo(df, low), acc);
    return hn::MulAdd(hn::Mul(block.second, x_scale), hn::ConvertTo(df, high), acc);
  }
  const VI sum = kTwoSums ? hn::Add(low, high) : low;
  acc = hn::MulAdd(hn::Mul(block.scale, x_scale), hn::ConvertTo(df, sum), acc);
  if constexpr (Unpacker::kHasMinimum) acc = hn::MulAdd(block.second, hn::Set(df, x->sum), acc);
  return acc;
}

// Sinks: what happens to each unpacked block.

struct OneToken {
  const QuantBlock* x;  // [cols / 32]
  VF acc;

  template <class Unpacker>
  HWY_INLINE void Take(const UnpackedBlock& block) {
    acc = MultiplyBlock<Unpacker, 2>(block, x, acc);
    ++x;
  }
};

struct ManyTokens {
  const QuantBlock* x;  // [cols / 32, tokens]
  int64_t tokens;
  float* y;  // [tokens, kRows]

  template <class Unpacker>
  HWY_INLINE void Take(const UnpackedBlock& block) {
    const DF df;
    float* HWY_RESTRICT out = y;
    for (int64_t t = 0; t < tokens; ++t, ++x, out += kRows) {
      hn::StoreU(MultiplyBlock<Unpacker, 1>(block, x, hn::LoadU(df, out)), df, out);
    }
  }
};

// Unpacks the group. The next one follows it in memory: its bytes are fetched at the rate at which these are
// used, kLevel 3 into the first-level cache, 2 into the second.
template <class Unpacker, int kLevel, class Sink>
HWY_INLINE void UnpackGroup(const GroupArgs& args, Sink& sink) {
  RowGroup rows{args.weights, args.row_bytes};
  const uint8_t* next = args.weights + kRows * args.row_bytes;
  const uint8_t* next_end = args.prefetch_next ? next + kRows * args.row_bytes : next;
  for (int64_t k = 0; k < args.cols; k += Unpacker::kElements) {
    for (int64_t i = 0; i < Unpacker::kBytes * kRows && next < next_end; i += 64, next += 64) {
      __builtin_prefetch(next, 0, kLevel);
    }
    Unpacker::Unpack(rows, sink);
    rows.base += Unpacker::kBytes;
  }
}

template <class Unpacker>
HWY_NOINLINE void MultiplyType(const GroupArgs& args) {
  const DF df;
  const auto* x = static_cast<const QuantBlock*>(args.x);
  if (args.tokens > 1) {  // their activations take the first-level cache
    std::memset(args.y, 0, static_cast<size_t>(args.tokens) * kRows * sizeof(float));
    ManyTokens sink{x, args.tokens, args.y};
    UnpackGroup<Unpacker, 2>(args, sink);
    return;
  }
  OneToken sink{x, hn::Zero(df)};
  UnpackGroup<Unpacker, 3>(args, sink);
  hn::StoreU(sink.acc, df, args.y);
}

void MultiplyInt8(const GroupArgs& args) {
  switch (args.type) {
    case TensorType::kQ4_0:
      return MultiplyType<UnpackQ4_0>(args);
    case TensorType::kQ4_1:
      return MultiplyType<UnpackQ4_1>(args);
    case TensorType::kQ5_0:
      return MultiplyType<UnpackQ5_0>(args);
    case TensorType::kQ5_1:
      return MultiplyType<UnpackQ5_1>(args);
    case TensorType::kQ8_0:
      return MultiplyType<UnpackQ8_0>(args);
    case TensorType::kQ4_K:
      return MultiplyType<UnpackQ4_K>(args);
    case TensorType::kQ5_K:
      return MultiplyType<UnpackQ5_K>(args);
    case TensorType::kQ6_K:
      return MultiplyType<UnpackQ6_K>(args);
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      break;
  }
  assert(false && "float weights go to the float kernels");
}

// Scale = largest magnitude / 127, codes rounded to nearest even. A NaN or infinite activation makes the
// scale NaN or infinite, and so the result; a block below 2^-100 counts as zero.
HWY_INLINE void QuantizeBlock(const float* HWY_RESTRICT x, QuantBlock* HWY_RESTRICT out) {
  const DF df;
  const DI di;
  const hn::Rebind<int8_t, DI> d8;
  constexpr float kTiny = 0x1p-100f;
  VI largest = hn::Zero(di);  // of the bit patterns without sign: ordered like the values, NaN on top
  for (int i = 0; i < 32; i += kRows) {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(hn::LoadU(df, x + i))));
  }
  const float amax = hn::GetLane(hn::BitCast(df, hn::MaxOfLanes(di, largest)));
  out->scale = amax < kTiny ? 0.0f : amax / 127.0f;
  const VF inverse = hn::Set(df, amax < kTiny ? 0.0f : 127.0f / amax);
  VI low = hn::Zero(di), high = hn::Zero(di);
  for (int i = 0; i < 32; i += kRows) {
    const VI rounded = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
    const VI code = hn::Min(hn::Max(rounded, hn::Set(di, -127)), hn::Set(di, 127));
    hn::StoreU(hn::DemoteTo(d8, code), d8, out->codes + i);
    if (i < 16) {
      low = hn::Add(low, code);
    } else {
      high = hn::Add(high, code);
    }
  }
  const int32_t low_sum = hn::GetLane(hn::SumOfLanes(di, low));
  const int32_t sum = low_sum + hn::GetLane(hn::SumOfLanes(di, high));
  out->sum = out->scale * static_cast<float>(sum);
  out->minus_sum = -sum;
  out->minus_low = -low_sum;
}

void Quantize(const float* x, int64_t x_stride, int64_t tokens, int64_t cols, QuantBlock* out,
              int64_t out_stride) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t block = 0; block < cols / 32; ++block) {
      QuantizeBlock(x + t * x_stride + block * 32, out + block * out_stride + t);
    }
  }
}

const Int8Kernels* TargetInt8Kernels() {
  static constexpr Int8Kernels kKernels{kRows, Quantize, MultiplyInt8};
  return &kKernels;
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(TargetInt8Kernels);
const Int8Kernels& BestInt8Kernels() { return *HWY_DYNAMIC_DISPATCH(TargetInt8Kernels)(); }

}  // namespace blockgtq::cpu
#endif
