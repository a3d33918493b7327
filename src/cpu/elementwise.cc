// Small vector operations of a transformer layer, in Highway. Source of exp: range reduction by ln 2 in two
// parts, then the Taylor series to degree 7 on |r| <= ln(2) / 2 (its remainder is below 6e-9).
#include "src/cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/cpu/simd_targets.h"
//
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));

// exp(x) for x in [-87, 88]; beyond, the value at the end of the range. NaN stays NaN.
HWY_INLINE VF Exp(VF x) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  const VF lowest = hn::Set(df, -87.0f), highest = hn::Set(df, 88.0f);
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // not Max: it may swallow a NaN
  x = hn::IfThenElse(hn::Gt(x, highest), highest, x);
  const VF n = hn::Round(hn::Mul(x, hn::Set(df, 1.44269504089f)));
  VF r = hn::NegMulAdd(n, hn::Set(df, 0.693359375f), x);  // 9 bits: n times it is exact
  r = hn::NegMulAdd(n, hn::Set(df, -2.12194440e-4f), r);
  VF p = hn::Set(df, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(df, 0.5f));
  p = hn::MulAdd(hn::Mul(p, r), r, r);
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::Mul(hn::Add(p, hn::Set(df, 1.0f)), hn::BitCast(df, power));
}

// The first `count` (fewer than a vector) of x, the rest `fill`.
HWY_INLINE VF LoadPartial(const float* x, int64_t count, float fill) {
  alignas(64) float buffer[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) buffer[i] = i < count ? x[i] : fill;
  return hn::Load(DF(), buffer);
}

HWY_INLINE void StorePartial(VF v, int64_t count, float* y) {
  alignas(64) float buffer[kLanes];
  hn::Store(v, DF(), buffer);
  std::memcpy(y, buffer, static_cast<size_t>(count) * sizeof(float));
}

// Sums of a vector of floats, in doubles.
class DoubleSum {
 public:
  // Written out: an implicit constructor would be compiled without the target's instructions.
  HWY_INLINE DoubleSum() : low_(hn::Zero(D())), high_(hn::Zero(D())) {}
  HWY_INLINE void Add(VF v) {
    low_ = hn::Add(low_, hn::PromoteTo(D(), hn::LowerHalf(Half(), v)));
    high_ = hn::Add(high_, hn::PromoteTo(D(), hn::UpperHalf(Half(), v)));
  }
  HWY_INLINE void AddSquares(VF v) {
    const auto low = hn::PromoteTo(D(), hn::LowerHalf(Half(), v));
    const auto high = hn::PromoteTo(D(), hn::UpperHalf(Half(), v));
    low_ = hn::MulAdd(low, low, low_);
    high_ = hn::MulAdd(high, high, high_);
  }
  HWY_INLINE double Total() const { return hn::GetLane(hn::SumOfLanes(D(), hn::Add(low_, high_))); }

 private:
  using D = hn::ScalableTag<double>;
  using Half = hn::Half<DF>;
  hn::Vec<D> low_, high_;
};

void RmsNormTarget(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight, float epsilon, int64_t n,
                   float* y) {
  const DF df;
  DoubleSum squares;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) squares.AddSquares(hn::LoadU(df, x + i));
  if (i < n) squares.AddSquares(LoadPartial(x + i, n - i, 0));
  const double mean = squares.Total() / static_cast<double>(n);
  const auto factor = static_cast<float>(1.0 / std::sqrt(mean + epsilon));
  const VF factors = hn::Set(df, factor);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(df, x + i), factors), hn::LoadU(df, weight + i)), df, y + i);
  }
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

HWY_INLINE VF SiluTimes(VF gate, VF up) {
  const VF denominator = hn::Add(hn::Set(DF(), 1.0f), Exp(hn::Neg(gate)));
  return hn::Mul(hn::Div(gate, denominator), up);
}

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), so GELU's tanh form is z times a sigmoid.
HWY_INLINE VF GeluTimes(VF gate, VF up) {
  const DF df;
  const VF cubic = hn::MulAdd(hn::Mul(hn::Mul(gate, gate), gate), hn::Set(df, 0.044715f), gate);
  const VF denominator =
      hn::Add(hn::Set(df, 1.0f), Exp(hn::Mul(cubic, hn::Set(df, -1.5957691216057308f))));  // 2 sqrt(2 / pi)
  return hn::Mul(hn::Div(gate, denominator), up);
}

template <VF (*kTimes)(VF, VF)>
HWY_INLINE void GateMul(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t n) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(kTimes(hn::LoadU(df, gate + i), hn::LoadU(df, up + i)), df, gate + i);
  }
  if (i == n) return;
  const VF last = kTimes(LoadPartial(gate + i, n - i, 0), LoadPartial(up + i, n - i, 0));
  StorePartial(last, n - i, gate + i);
}

void SiluMulTarget(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t n) {
  GateMul<SiluTimes>(gate, up, n);
}
void GeluTanhMulTarget(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t n) {
  GateMul<GeluTimes>(gate, up, n);
}

void AddTarget(const float* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT y) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(df, y + i), hn::LoadU(df, x + i)), df, y + i);
  }
  for (; i < n; ++i) y[i] += x[i];
}

double LogSumExpTarget(const float* x, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const DF df;
  VF largest = hn::Set(df, -kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = hn::Max(largest, hn::LoadU(df, x + i));
  if (i < n) largest = hn::Max(largest, LoadPartial(x + i, n - i, -kInfinity));
  // By hand: EMU128's MaxOfLanes never returns less than the lowest finite float.
  alignas(64) float lanes[kLanes];
  hn::Store(largest, df, lanes);
  const float shift = *std::max_element(lanes, lanes + kLanes);
  // Nothing but -inf (or nothing at all), or +inf: x - shift would be NaN. A NaN among them still shows.
  if (std::isinf(shift)) {
    double sum = shift;
    for (i = 0; i < n; ++i) {
      if (std::isnan(x[i])) sum = x[i];
    }
    return sum;
  }
  const VF shifts = hn::Set(df, shift);
  DoubleSum sum;
  for (i = 0; i + kLanes <= n; i += kLanes) sum.Add(Exp(hn::Sub(hn::LoadU(df, x + i), shifts)));
  double total = sum.Total();
  if (i < n) {
    alignas(64) float last[kLanes];
    hn::Store(Exp(hn::Sub(LoadPartial(x + i, n - i, shift), shifts)), df, last);
    for (int64_t j = 0; j < n - i; ++j) total += last[j];
  }
  return shift + std::log(total);
}

// In floats each logarithm is off by a share of its own size, which is small where p is large; what rounding
// takes from the two sums is put back in double.
double KlDivergenceTarget(const float* base, double base_sum, const float* test, double test_sum, int64_t n) {
  const DF df;
  const float base_shift = static_cast<float>(base_sum), test_shift = static_cast<float>(test_sum);
  const VF base_shifts = hn::Set(df, base_shift), test_shifts = hn::Set(df, test_shift);
  const VF least = hn::Set(df, -50.0f);
  DoubleSum sum;
  const auto add = [&](VF b, VF t) HWY_ATTR {
    const VF log_p = hn::Sub(b, base_shifts), log_q = hn::Sub(t, test_shifts);
    sum.Add(hn::IfThenZeroElse(hn::Lt(log_p, least), hn::Mul(Exp(log_p), hn::Sub(log_p, log_q))));
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) add(hn::LoadU(df, base + i), hn::LoadU(df, test + i));
  if (i < n) add(LoadPartial(base + i, n - i, base_shift - 60), LoadPartial(test + i, n - i, test_shift));
  return sum.Total() * std::exp(base_shift - base_sum) + (base_shift - base_sum) - (test_shift - test_sum);
}

int32_t LargestIndexTarget(const float* x, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kBlock = 1024;  // most hold nothing larger than what was seen
  const DF df;
  const VF infinity = hn::Set(df, kInfinity);
  float largest = -kInfinity;
  int64_t block_of_largest = -1;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(n, first + kBlock);
    VF of_block = hn::Set(df, -kInfinity);
    auto finite = hn::Eq(infinity, infinity);
    int64_t i = first;
    for (; i + kLanes <= end; i += kLanes) {
      const VF v = hn::LoadU(df, x + i);
      finite = hn::And(finite, hn::Lt(v, infinity));  // false for NaN
      of_block = hn::Max(of_block, v);
    }
    if (i < end) {
      const VF v = LoadPartial(x + i, end - i, -kInfinity);
      finite = hn::And(finite, hn::Lt(v, infinity));
      of_block = hn::Max(of_block, v);
    }
    if (!hn::AllTrue(df, finite)) return -1;
    if (hn::AllFalse(df, hn::Gt(of_block, hn::Set(df, largest)))) continue;
    alignas(64) float lanes[kLanes];  // by hand, as in LogSumExpTarget
    hn::Store(of_block, df, lanes);
    largest = *std::max_element(lanes, lanes + kLanes);
    block_of_largest = first;
  }
  if (block_of_largest < 0) return -1;
  return static_cast<int32_t>(std::find(x + block_of_largest, x + n, largest) - x);
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(RmsNormTarget);
HWY_EXPORT(SiluMulTarget);
HWY_EXPORT(GeluTanhMulTarget);
HWY_EXPORT(AddTarget);
HWY_EXPORT(LogSumExpTarget);
HWY_EXPORT(KlDivergenceTarget);
HWY_EXPORT(LargestIndexTarget);

void RmsNorm(const float* x, const float* weight, float epsilon, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsNormTarget)(x, weight, epsilon, n, y);
}
void SiluMul(float* gate, const float* up, int64_t n) { HWY_DYNAMIC_DISPATCH(SiluMulTarget)(gate, up, n); }
void GeluTanhMul(float* gate, const float* up, int64_t n) {
  HWY_DYNAMIC_DISPATCH(GeluTanhMulTarget)(gate, up, n);
}
void Add(const float* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(AddTarget)(x, n, y); }
double LogSumExp(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(LogSumExpTarget)(x, n); }
double KlDivergence(const float* base, double base_sum, const float* test, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(KlDivergenceTarget)(base, base_sum, test, LogSumExp(test, n), n);
}
int32_t LargestIndex(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(LargestIndexTarget)(x, n); }

}  // namespace blockgtq::cpu
#endif
