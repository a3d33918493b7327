// See attention_latent.h.
//
// Logits: q . k^ = q~ . y + q . R_t mu. The mean of the latent's blocks (theta = 0) adds one number a query;
// that of the rope key's blocks is handled as more coordinates: R_t mu beside y, and q's own beside q~.
#include "src/cpu/attention_latent.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/core/half.h"
#include "src/core/log_norm.h"
#include "src/cpu/attention_codes_impl.h"
#include "src/cpu/attention_exact.h"
#include "src/cpu/simd_targets.h"

#ifndef BGTQ_ATTENTION_LATENT_CONSTANTS
#define BGTQ_ATTENTION_LATENT_CONSTANTS
namespace blockgtq::cpu {
inline constexpr int kTilesAtOnce =
    2;  // decoded before they are attended to: their rows stay in a core's cache

/// The coordinates of a decoded key: P of its codes, then 16 of each mean unit of the rope key.
inline int LatentCoordinates(const PackedHead& head) {
  int units = 0;
  for (const int unit : head.plan.mean_units)
    units += 2 * kMeanUnitBlocks * unit < head.plan.head_dim - head.plan.latent_dims ? 1 : 0;
  return head.key_dims + 2 * kMeanUnitBlocks * units;
}
}  // namespace blockgtq::cpu
#endif

// foreach_target.h comes before highway.h.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attention_latent.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// clang-format on
#include "src/cpu/matvec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using VI = hn::Vec<DI>;
constexpr int kN = static_cast<int>(hn::MaxLanes(DF()));  // 16 or fewer

struct ValueTable {
  alignas(64) float value[256];  // by code, those of the width
};
template <int kWidth>
const float* DecodedValues() {
  static const ValueTable table = [] {
    ValueTable t{};
    for (int code = 0; code < 1 << kWidth; ++code)
      t.value[code] = static_cast<float>(CodebookInt(kWidth, code)) + CodebookHalf(kWidth);
    return t;
  }();
  return table.value;
}

// Decoded integers (half included) of a unit of width kWidth, a record's order: values[quad][code][lane].
template <int kWidth>
void DecodeUnit(const std::byte* unit, float* HWY_RESTRICT values) {
  const DI di;
  alignas(64) int32_t words[8 * 32];
  std::memcpy(words, unit, UnitBytes(kWidth));
  const float* table = DecodedValues<kWidth>();
  const auto bits = [&](int word, int lane, int shift, int mask) HWY_ATTR {
    const VI v = hn::Load(di, words + 32 * word + lane);
    return hn::And(hn::ShiftRightSame(v, shift), hn::Set(di, mask));
  };
  for (int quad = 0; quad < 8; ++quad) {
    for (int j = 0; j < 4; ++j) {
      const int nibble = 4 * ((quad & 1) * 4 + j);
      for (int lane = 0; lane < 32; lane += kN) {
        VI code;
        if constexpr (kWidth == 1) {
          code = bits(0, lane, nibble + (quad >> 1), 1);
        } else if constexpr (kWidth == 2) {
          code = bits(quad >> 2, lane, nibble + 2 * ((quad >> 1) & 1), 3);
        } else if constexpr (kWidth == 8) {
          code = bits(quad, lane, 8 * j, 255);
        } else {
          if (quad < 6) {
            code = bits(quad >> 1, lane, nibble, 7);
          } else {
            code = bits(0, lane, nibble + 3, 1);
            code = hn::Or(code, hn::ShiftLeft<1>(bits(1, lane, nibble + 3, 1)));
            code = hn::Or(code, hn::ShiftLeft<2>(bits(2, lane, nibble + 3, 1)));
          }
          if constexpr (kWidth >= 4)
            code = hn::Or(code, hn::ShiftLeft<3>(bits(3, lane, 8 * j + 7 - quad, 1)));
          if constexpr (kWidth == 5)
            code = hn::Or(code, hn::ShiftLeft<4>(bits(4, lane, 8 * j + 7 - quad, 1)));
        }
        hn::Store(hn::GatherIndex(DF(), table, code), DF(), values + (quad * 4 + j) * 32 + lane);
      }
    }
  }
}

void DecodeUnitOf(int width, const std::byte* unit, float* values) {
  switch (width) {
    case 1:
      return DecodeUnit<1>(unit, values);
    case 2:
      return DecodeUnit<2>(unit, values);
    case 3:
      return DecodeUnit<3>(unit, values);
    case 4:
      return DecodeUnit<4>(unit, values);
    case 5:
      return DecodeUnit<5>(unit, values);
    default:
      return DecodeUnit<8>(unit, values);
  }
}

// One norm a token in units of the group's reference, times the group's constant.
void LoadScales(NormType type, const std::byte* norms, float constant, float* scale) {
  for (int t = 0; t < kPageTokens; ++t) {
    if (type == NormType::kLog8) {
      scale[t] = constant * DecodeLogNorm(std::to_integer<uint8_t>(norms[NormSlot(t)]), 1.0f);
    } else {
      uint16_t half;
      std::memcpy(&half, norms + 2 * NormSlot(t), 2);
      scale[t] = constant * HalfToFloat(half);
    }
  }
}

// R_t mu of the rope key's mean units, for the 64 tokens from `position` on: rows [64], `stride` floats
// apart.
void RotatedMeans(const PackedHead& head, const RopeTable& rope, int64_t position, int64_t stride,
                  float* rows) {
  const int rope_dims = head.plan.head_dim - head.plan.latent_dims, rotary = rope.config().rotary_dims / 2;
  for (int t = 0; t < kPageTokens; ++t) {
    const float* cos = rope.Cos(position + t);
    const float* sin = rope.Sin(position + t);
    float* to = rows + t * stride;
    for (const int unit : head.plan.mean_units) {
      const int first = kMeanUnitBlocks * unit;
      if (2 * first >= rope_dims) break;
      for (int j = first; j < first + kMeanUnitBlocks; ++j, to += 2) {
        const float factor = j < rotary ? rope.config().attention_factor : 1.0f;
        const float c = cos[j] * factor, s = sin[j] * factor;
        const float x = head.plan.key_mean[2 * j], y = head.plan.key_mean[2 * j + 1];
        to[0] = x * c - y * s;
        to[1] = x * s + y * c;
      }
    }
  }
}

// A record as rows [64, coordinates].
void DecodeRecord(const PackedHead& head, const RopeTable& rope, const std::byte* record, int64_t position,
                  int coordinates, float* rows) {
  alignas(64) float values[8 * 4 * 32];
  alignas(64) float scale[kPageTokens];
  for (size_t g = 0; g < head.plan.groups.size(); ++g) {
    const GroupPlan& group = head.plan.groups[g];
    LoadScales(head.plan.norm_type, record + head.layout.key_norm[g], head.derived->key_constant[g], scale);
    for (int u = group.first_unit; u < group.first_unit + group.units; ++u) {
      DecodeUnitOf(group.width, record + head.layout.key_unit[u], values);
      for (int quad = 0; quad < 8; ++quad) {
        for (int g8 = 0; g8 < 8; ++g8) {
          const int token = 16 * (quad >> 1) + 8 * (quad & 1) + g8;
          float* to = rows + static_cast<int64_t>(token) * coordinates + kUnitDims * u;
          for (int dim = 0; dim < kUnitDims; ++dim)
            to[dim] = scale[token] * values[(quad * 4 + (dim & 3)) * 32 + 4 * g8 + (dim >> 2)];
        }
      }
    }
  }
  if (coordinates > head.key_dims) RotatedMeans(head, rope, position, coordinates, rows + head.key_dims);
}

void PrepareLatentQueriesT(const PackedHead& head, std::span<const float* const> queries, float scale,
                           PreparedQueries::Impl& out) {
  const int count = static_cast<int>(queries.size()), dim = head.plan.head_dim;
  const int rope_dims = dim - head.plan.latent_dims, coordinates = LatentCoordinates(head);
  float* rows = out.latent.Reserve(static_cast<size_t>(count) * coordinates);
  out.count = count;
  out.latent_scale = scale;
  out.latent_logit.assign(static_cast<size_t>(count), 0.0f);
  MatVec(head.derived->query_columns.data(), head.key_dims, dim, queries.data(), count, rows, coordinates);
  if (head.plan.mean_units.empty()) return;
  for (int i = 0; i < count; ++i) {
    float* to = rows + static_cast<int64_t>(i) * coordinates + head.key_dims;
    for (const int unit : head.plan.mean_units) {
      const int first = 2 * kMeanUnitBlocks * unit;
      if (first >= rope_dims) break;
      to = std::copy_n(queries[static_cast<size_t>(i)] + first, 2 * kMeanUnitBlocks, to);
    }
    double dot = 0;
    for (int d = rope_dims; d < dim; ++d)
      dot += double{queries[static_cast<size_t>(i)][d]} * double{head.plan.key_mean[static_cast<size_t>(d)]};
    out.latent_logit[static_cast<size_t>(i)] = static_cast<float>(dot * double{scale});
  }
}

// out [head_dim] = T^-1 y, the latent's mean added.
void UnrotateT(const PackedHead& head, const float* y, float* out) {
  const HeadPlan& plan = head.plan;
  MatVec(plan.query_transform.data(), plan.head_dim, head.key_dims, &y, 1, out, plan.head_dim);
  if (plan.key_mean.empty()) return;
  for (int d = plan.head_dim - plan.latent_dims; d < plan.head_dim; ++d)
    out[d] += plan.key_mean[static_cast<size_t>(d)];
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(DecodeRecord);
HWY_EXPORT(PrepareLatentQueriesT);
HWY_EXPORT(UnrotateT);

void MergePart(int64_t rows, int dim, const float* part, const float* part_lse, float* out, float* lse) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (int64_t r = 0; r < rows; ++r) {
    if (part_lse[r] == kNothing) continue;
    const float top = std::max(lse[r], part_lse[r]);
    const float a = lse[r] == kNothing ? 0.0f : std::exp(lse[r] - top), b = std::exp(part_lse[r] - top);
    const float scale_a = a / (a + b), scale_b = b / (a + b);
    for (int d = 0; d < dim; ++d) out[r * dim + d] = scale_a * out[r * dim + d] + scale_b * part[r * dim + d];
    lse[r] = top + std::log(a + b);
  }
}

void PrepareLatentQueries(const PackedHead& head, std::span<const float* const> queries, float scale,
                          PreparedQueries& out) {
  HWY_DYNAMIC_DISPATCH(PrepareLatentQueriesT)(head, queries, scale, out.impl());
}

void AttendLatents(const PackedHead& head, const PreparedQueries& queries, int count,
                   std::span<const std::byte* const> records, int64_t begin, int64_t end,
                   const QueryBounds& bounds, const RopeTable& rope, CodesScratch& scratch, float* out,
                   float* lse) {
  const PreparedQueries::Impl& q = queries.impl();
  CodesScratch::Impl& s = scratch.impl();
  const int coordinates = LatentCoordinates(head), dim = head.plan.head_dim;
  const ExactLayout layout{ExactType::kFloat, coordinates, kPageTokens, true};
  const int64_t tile_floats = int64_t{kPageTokens} * coordinates, floats = int64_t{count} * coordinates;
  float* tiles = s.latent_tiles.Reserve(static_cast<size_t>(kTilesAtOnce * tile_floats));
  float* exact = s.latent_exact.Reserve(static_cast<size_t>(ExactScratchFloats(coordinates, count)));
  float* sum = s.latent_sums.Reserve(static_cast<size_t>(2 * floats + count));
  float* part = sum + floats;
  float* part_lse = part + floats;
  std::fill_n(lse, count, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, floats, 0.0f);
  std::vector<const float*> rows(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = q.latent.data() + int64_t{i} * coordinates;
  std::vector<const std::byte*> at(records.size());
  for (int64_t tile = begin / kPageTokens; tile * kPageTokens < end; tile += kTilesAtOnce) {
    const int64_t first = std::max(begin, tile * kPageTokens),
                  last = std::min(end, (tile + kTilesAtOnce) * kPageTokens);
    if (!bounds.AnySees(count, first, last)) continue;
    for (int64_t t = tile; t * kPageTokens < last; ++t) {
      float* decoded = tiles + (t - tile) * tile_floats;
      HWY_DYNAMIC_DISPATCH(DecodeRecord)
      (head, rope, records[static_cast<size_t>(t)], t * kPageTokens, coordinates, decoded);
      at[static_cast<size_t>(t)] = reinterpret_cast<const std::byte*>(decoded);
    }
    AttendExact(layout, rows, q.latent_scale, at, first, last, bounds, exact, part, part_lse);
    MergePart(count, coordinates, part, part_lse, sum, lse);
  }
  for (int i = 0; i < count; ++i) {
    HWY_DYNAMIC_DISPATCH(UnrotateT)(head, sum + int64_t{i} * coordinates, out + int64_t{i} * dim);
    lse[i] += q.latent_logit[static_cast<size_t>(i)];
  }
}

}  // namespace blockgtq::cpu
#endif  // HWY_ONCE
