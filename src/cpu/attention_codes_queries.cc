// Queries before and outputs after attention over codes: rotation into the codes' space, rounding to int8,
// the mean's phasors, and the value rotation undone.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "src/cpu/attention_codes_impl.h"
#include "src/cpu/simd_targets.h"

// foreach_target.h comes before highway.h.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attention_codes_queries.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// clang-format on
#include "src/cpu/dot-inl.h"
#include "src/cpu/matvec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

// Expands the 16 bytes of one unit for every plane.
HWY_INLINE void ExpandOperand(const int8_t* HWY_RESTRICT row, uint8_t* HWY_RESTRICT out) {
#if BGTQ_VNNI
  for (int plane = 0; plane < kPlanes; ++plane) {  // whole words
    for (int word = 0; word < 4; ++word)
      std::memcpy(out + 16 * plane + 4 * word, row + OperandSource(plane, 4 * word), 4);
  }
  return;
#endif
  for (int plane = 0; plane < kPlanes; ++plane) {
    for (int b = 0; b < 16; ++b) {
      const int from = OperandSource(plane, b);
      // A 16-bit integer's high byte repeats the sign of its low byte.
      out[16 * plane + b] = static_cast<uint8_t>(from >= 0                              ? row[from]
                                                 : row[OperandSource(plane, b - 1)] < 0 ? -1
                                                                                        : 0);
    }
  }
}

// Rounds one group's coordinates [n], n a multiple of 16: `high` to scale, `low` the remainder in 1/256 of
// it. NaN becomes 0. Returns the scale.
HWY_INLINE float RoundGroup(const float* HWY_RESTRICT x, int n, int8_t* HWY_RESTRICT high,
                            int8_t* HWY_RESTRICT low) {
  const DF df;
  const hn::Rebind<int8_t, DF> d8;
  VF most = hn::Zero(df);
  for (int i = 0; i < n; i += kN) {
    const VF magnitude = hn::Abs(hn::LoadU(df, x + i));
    most = hn::IfThenElse(hn::Lt(most, magnitude), magnitude, most);  // not Max: it may take a NaN
  }
  alignas(64) float lanes[kN];
  hn::Store(most, df, lanes);
  const float largest = *std::max_element(lanes, lanes + kN);
  const VF inverse = hn::Set(df, largest > 0.0f ? 127.0f / largest : 0.0f);
  const VF bound = hn::Set(df, 127.0f);
  const auto clamp = [&](VF v) HWY_ATTR { return hn::Min(hn::Max(v, hn::Neg(bound)), bound); };
  for (int i = 0; i < n; i += kN) {
    const VF product = hn::Mul(hn::LoadU(df, x + i), inverse);
    const VF v = hn::IfThenZeroElse(hn::IsNaN(product), product);
    const VF whole = hn::Round(clamp(v));
    const VF rest = hn::Round(clamp(hn::Mul(hn::Sub(v, whole), hn::Set(df, 256.0f))));
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(DI(), whole)), d8, high + i);
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(DI(), rest)), d8, low + i);
  }
  return largest / 127.0f;
}

// conj(q) mu of every block of the mean units.
void MeanPhasors(const PackedHead& head, const float* query, float scale, float* out) {
  const PackedHead::Derived& d = *head.derived;
  float* re = out;
  float* im = out + d.mean_stride;
  std::fill_n(out, 2 * d.mean_stride, 0.0f);
  for (int u = 0; u < d.mean_units; ++u) {
    const int first = kMeanUnitBlocks * head.plan.mean_units[u];
    const int blocks = std::min(kMeanUnitBlocks, head.plan.head_dim / 2 - first);
    for (int b = 0; b < blocks; ++b) {
      const int i = kMeanUnitBlocks * u + b;
      const float x = query[2 * (first + b)] * scale, y = query[2 * (first + b) + 1] * scale;
      const float mx = d.mean_re.data()[i], my = d.mean_im.data()[i];
      re[i] = x * mx + y * my;
      im[i] = x * my - y * mx;
    }
  }
}

void PrepareQueriesT(const PackedHead& head, std::span<const float* const> queries, float scale,
                     PreparedQueries::Impl& out) {
  const PackedHead::Derived& d = *head.derived;
  const int count = static_cast<int>(queries.size());
  const int passes = static_cast<int>(d.passes.size());
  out.count = count;
  uint8_t* operands = out.operands.Reserve(static_cast<size_t>(count) * d.pass_units * 64);
  int32_t* start = out.start.Reserve(static_cast<size_t>(count) * passes * 4);
  float* factors = out.scale.Reserve(static_cast<size_t>(count) * passes * 2);
  float* mean = out.mean.Reserve(static_cast<size_t>(count) * 2 * d.mean_stride);
  float* rotated = out.rotated.Reserve(static_cast<size_t>(count) * head.key_dims);
  MatVec(d.query_columns.data(), head.key_dims, head.plan.head_dim, queries.data(), count, rotated,
         head.key_dims);

  int8_t* high = out.high.Reserve(static_cast<size_t>(head.key_dims));
  int8_t* low = out.low.Reserve(static_cast<size_t>(head.key_dims));
  float* group_scale = out.group_scale.Reserve(head.plan.groups.size());
  const float logit_scale = scale * kLog2E;
  for (int q = 0; q < count; ++q) {
    for (size_t g = 0; g < head.plan.groups.size(); ++g) {
      const int first = kUnitDims * head.plan.groups[g].first_unit, n = kUnitDims * head.plan.groups[g].units;
      group_scale[g] =
          RoundGroup(rotated + static_cast<size_t>(q) * head.key_dims + first, n, high + first, low + first);
    }
    for (int p = 0; p < passes; ++p) {
      const KeyPass& pass = d.passes[p];
      const int8_t* bytes = (pass.low ? low : high) + kUnitDims * pass.first_unit;
      const size_t at = static_cast<size_t>(q) * passes + p;
      int32_t word_sum[4] = {}, sum = 0;
      for (int i = 0; i < kUnitDims * pass.units; ++i) {
        word_sum[(i >> 2) & 3] += bytes[i];
        sum += bytes[i];
      }
      for (int u = 0; u < pass.units; ++u) {
        ExpandOperand(bytes + kUnitDims * u,
                      operands + (static_cast<size_t>(q) * d.pass_units + pass.first_operand + u) * 64);
      }
      // Lanes A B A B: words 0 and 1, then 2 and 3 (VNNI order of planes).
      for (int lane = 0; lane < 4; ++lane) {
        start[4 * at + lane] = -128 * (lane < 2 ? word_sum[0] + word_sum[1] : word_sum[2] + word_sum[3]);
      }
      const float factor = group_scale[pass.group] * d.key_constant[pass.group] * logit_scale *
                           (pass.low ? 1.0f / 256.0f : 1.0f);
      factors[2 * at] = factor;
      factors[2 * at + 1] = factor * d.key_half[pass.group] * static_cast<float>(sum);
    }
    if (d.mean_units > 0) {
      MeanPhasors(head, queries[q], logit_scale, mean + static_cast<size_t>(q) * 2 * d.mean_stride);
    }
  }
}

void UnrotateValueT(const PackedHead& head, const float* rotated, float* out) {
  const int dim = head.plan.head_dim, padded = (dim + 15) / 16 * 16;
  if (dim == padded) {
    MatVec(head.derived->value_rows.data(), dim, head.value_dims, &rotated, 1, out, dim);
    return;
  }
  std::vector<float> wide(padded);
  MatVec(head.derived->value_rows.data(), padded, head.value_dims, &rotated, 1, wide.data(), padded);
  std::copy_n(wide.begin(), dim, out);
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(PrepareQueriesT);
HWY_EXPORT(UnrotateValueT);

void PrepareQueries(const PackedHead& head, std::span<const float* const> queries, float scale,
                    PreparedQueries& out) {
  HWY_DYNAMIC_DISPATCH(PrepareQueriesT)(head, queries, scale, out.impl());
}

void UnrotateValue(const PackedHead& head, const float* rotated, float* out) {
  HWY_DYNAMIC_DISPATCH(UnrotateValueT)(head, rotated, out);
}

}  // namespace blockgtq::cpu
#endif  // HWY_ONCE
