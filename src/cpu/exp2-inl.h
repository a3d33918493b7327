// 2^x for vectors of float, relative error 2e-7. Re-included once a SIMD target.
#if defined(BGTQ_CPU_EXP2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BGTQ_CPU_EXP2_INL_H_
#undef BGTQ_CPU_EXP2_INL_H_
#else
#define BGTQ_CPU_EXP2_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adding it to |x| < 2^22 rounds x to an integer, held in the low bits of the sum.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

// x <= 127; below -126 the result is 2^-126 (no probability that small is ever seen).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D df, V x) {
  const hn::RebindToSigned<D> di;
  x = hn::Max(x, hn::Set(df, -126.0f));
  const V whole = hn::Add(x, hn::Set(df, kRounder));
  const V f = hn::Sub(x, hn::Sub(whole, hn::Set(df, kRounder)));
  // Interpolation at the Chebyshev nodes of [-1/2, 1/2], degree 5.
  V p = hn::MulAdd(f, hn::Set(df, 1.3390863364534504e-3f), hn::Set(df, 9.676031918326564e-3f));
  p = hn::MulAdd(p, f, hn::Set(df, 5.550357114219461e-2f));
  p = hn::MulAdd(p, f, hn::Set(df, 2.4022107485308208e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 6.931471880262287e-1f));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0000000754548972f));
  // The rounder's own bits leave at the top.
  return hn::BitCast(df, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, whole))));
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
