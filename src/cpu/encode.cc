// Encoders of packed records: rotates a block of tokens, rounds each group to its codebook with norm
// correction, and packs the codes into the units' bit planes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/core/half.h"
#include "src/core/log_norm.h"
#include "src/cpu/attention_codes_impl.h"
#include "src/cpu/simd_targets.h"

// clang-format off: foreach_target.h comes before highway.h
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/encode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// clang-format on
#include "src/cpu/matvec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
constexpr int kN = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kUnitCodes = kUnitDims * kPageTokens;
constexpr int kLargestGroup = 1024;  // dims: plans hold no larger head
constexpr float kLargestHalf = 65504.0f;

// Codes of one group's coordinates, one byte each in code order of the group's codebook, and the sum of their
// decoded squares (integers, half included).
//
// y       [16 * units] coordinates, multiplied by `variance` to unit variance; those from `dims` on are
// padding codes   [16 * units]
HWY_INLINE float RoundGroup(const GroupPlan& group, const GroupCodes& book, const float* HWY_RESTRICT y,
                            float variance, uint8_t* HWY_RESTRICT codes) {
  const DF df;
  const DI di;
  const hn::Rebind<uint8_t, DI> d8;
  const VF unit_variance = hn::Set(df, variance);
  VF energy = hn::Zero(df);
  const int thresholds = static_cast<int>(book.thresholds.size());
  for (int i = 0; i < kUnitDims * group.units; i += kN) {
    const VF x = hn::Mul(hn::LoadU(df, y + i), unit_variance);
    VF decoded;
    VI code;
    if (book.codes.empty()) {  // 8-bit codes are the integers themselves
      const VF scaled = hn::Mul(x, hn::Set(df, CodebookScale(8)));
      const VF magnitude =
          hn::Min(hn::Floor(hn::Add(hn::Abs(scaled), hn::Set(df, 0.5f))), hn::Set(df, 127.0f));
      decoded = hn::CopySign(magnitude, scaled);
      code = hn::And(hn::ConvertTo(di, decoded), hn::Set(di, 0xff));
    } else {
      decoded = hn::Set(df, book.values[0]);
      code = hn::Set(di, book.codes[0]);
      for (int k = 0; k < thresholds; ++k) {
        const auto above = hn::Ge(x, hn::Set(df, book.thresholds[k]));
        decoded = hn::IfThenElse(above, hn::Set(df, book.values[k + 1]), decoded);
        code = hn::IfThenElse(hn::RebindMask(di, above), hn::Set(di, book.codes[k + 1]), code);
      }
    }
    if (i + kN > group.dims) {  // padding: code 0, outside the energy
      const auto real = hn::Lt(hn::Add(hn::Iota(di, 0), hn::Set(di, i)), hn::Set(di, group.dims));
      code = hn::IfThenElseZero(real, code);
      decoded = hn::IfThenElseZero(hn::RebindMask(df, real), decoded);
    }
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
    energy = hn::MulAdd(decoded, decoded, energy);
  }
  return hn::GetLane(hn::SumOfLanes(df, energy));
}

// Tries a scale for a vector of tokens: the squared length of their decoded coordinates, and their product
// with y.
//
// columns   [dims][64] magnitudes of the group's coordinates, tokens along lanes, from the vector's first
// token on variance  of each token, times the scale Codebooks of widths 1..5 are symmetric, so magnitudes are
// compared with the upper half's thresholds.
HWY_INLINE void TryScale(const GroupPlan& group, const GroupCodes& book, const float* HWY_RESTRICT columns,
                         VF variance, VF& energy, VF& projection) {
  const DF df;
  energy = projection = hn::Zero(df);
  const size_t half = book.codes.size() / 2, thresholds = book.thresholds.size();
  for (int i = 0; i < group.dims; ++i) {
    const VF coordinate = hn::LoadU(df, columns + i * kPageTokens);
    const VF x = hn::Mul(coordinate, variance);
    VF decoded;
    if (book.codes.empty()) {
      decoded = hn::Min(hn::Floor(hn::MulAdd(x, hn::Set(df, CodebookScale(8)), hn::Set(df, 0.5f))),
                        hn::Set(df, 127.0f));
    } else {
      decoded = hn::Set(df, book.values[half]);
      for (size_t k = half; k < thresholds; ++k) {
        decoded = hn::IfThenElse(hn::Ge(x, hn::Set(df, book.thresholds[k])), hn::Set(df, book.values[k + 1]),
                                 decoded);
      }
    }
    energy = hn::MulAdd(decoded, decoded, energy);
    projection = hn::MulAdd(coordinate, decoded, projection);
  }
}

// The scale of kSearchScales whose codes lie closest in angle to each token's coordinates.
//
// y         [count] rows of the group's coordinates, stride y_stride
// variance  [64] to unit variance; out: scales [64]
void BestScales(const GroupPlan& group, const GroupCodes& book, const float* HWY_RESTRICT y, int64_t y_stride,
                int count, const float* HWY_RESTRICT variance, float* HWY_RESTRICT scales) {
  const DF df;
  HWY_ALIGN float columns[kLargestGroup * kPageTokens];
  for (int t = 0; t < kPageTokens; ++t) {
    for (int i = 0; i < group.dims; ++i)
      columns[i * kPageTokens + t] = t < count ? std::abs(y[t * y_stride + i]) : 0.0f;
  }
  for (int t = 0; t < count; t += kN) {
    const VF unit = hn::LoadU(df, variance + t);
    VF best = hn::Zero(df), best_scale = hn::Set(df, kSearchScales[0]);
    for (float scale : kSearchScales) {
      VF energy, projection;
      TryScale(group, book, columns + t, hn::Mul(unit, hn::Set(df, scale)), energy, projection);
      // Squared cosines rank as cosines do, since projections of magnitudes are not negative. The least
      // energy keeps a zero vector (whose 8-bit codes are zero) finite.
      const VF square = hn::Div(hn::Mul(projection, projection), hn::Max(energy, hn::Set(df, 1e-20f)));
      const auto better = hn::Gt(square, best);
      best = hn::IfThenElse(better, square, best);
      best_scale = hn::IfThenElse(better, hn::Set(df, scale), best_scale);
    }
    hn::StoreU(best_scale, df, scales + t);
  }
}

HWY_INLINE float Energy(const float* HWY_RESTRICT y, int n) {
  const DF df;
  VF sum = hn::Zero(df);
  for (int i = 0; i < n; i += kN) {
    const VF x = hn::LoadU(df, y + i);
    sum = hn::MulAdd(x, x, sum);
  }
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

// Four bytes a lane, each below 16, to the low 16 bits: nibble j is byte j.
HWY_INLINE VI Nibbles(VI bytes) {
  const DI di;
  const VI pairs = hn::And(hn::Or(bytes, hn::ShiftRight<4>(bytes)), hn::Set(di, 0x00ff00ff));
  return hn::And(hn::Or(pairs, hn::ShiftRight<8>(pairs)), hn::Set(di, 0xffff));
}

// Packs a unit's codes [8 quads][32 lanes][4 codes] into `width` planes of 32 words (record.h).
void PackUnit(int width, const uint8_t* HWY_RESTRICT codes, uint32_t* HWY_RESTRICT planes) {
  const DI di;
  const hn::ScalableTag<uint32_t> du;
  for (int lane = 0; lane < 32; lane += kN) {
    const auto quad = [&](int q) HWY_ATTR {
      return hn::LoadU(di, reinterpret_cast<const int32_t*>(codes + 128 * q + 4 * lane));
    };
    const auto store = [&](int plane, VI x) HWY_ATTR {
      hn::StoreU(x, di, reinterpret_cast<int32_t*>(planes + 32 * plane + lane));
    };
    if (width == 8) {
      for (int q = 0; q < 8; ++q) store(q, quad(q));
      continue;
    }
    // Eight nibbles a word: quads 2 s and 2 s + 1.
    VI pair[4];
    const VI low_bits = hn::Set(di, 0x07070707);
    for (int s = 0; s < 4; ++s) {
      pair[s] = hn::Or(Nibbles(hn::And(quad(2 * s), low_bits)),
                       hn::ShiftLeft<16>(Nibbles(hn::And(quad(2 * s + 1), low_bits))));
    }
    if (width == 1) {
      const VI one = hn::Set(di, 0x11111111);
      store(0,
            hn::Or(hn::Or(hn::And(pair[0], one), hn::ShiftLeft<1>(hn::And(pair[1], one))),
                   hn::Or(hn::ShiftLeft<2>(hn::And(pair[2], one)), hn::ShiftLeft<3>(hn::And(pair[3], one)))));
      continue;
    }
    if (width == 2) {
      const VI three = hn::Set(di, 0x33333333);
      for (int w = 0; w < 2; ++w) {
        store(w, hn::Or(hn::And(pair[2 * w], three), hn::ShiftLeft<2>(hn::And(pair[2 * w + 1], three))));
      }
      continue;
    }
    const VI one = hn::Set(di, 0x11111111);
    store(0, hn::Or(pair[0], hn::ShiftLeft<3>(hn::And(pair[3], one))));
    store(1, hn::Or(pair[1], hn::ShiftLeft<3>(hn::And(hn::ShiftRight<1>(pair[3]), one))));
    store(2, hn::Or(pair[2], hn::ShiftLeft<3>(hn::And(hn::ShiftRight<2>(pair[3]), one))));
    for (int bit = 3; bit < width; ++bit) {  // code bit of quad q at bit 7 - q of its byte
      VI plane = hn::Zero(di);
      const VI mask = hn::Set(di, 0x01010101 << bit);
      for (int q = 0; q < 8; ++q) {
        const VI b = hn::And(quad(q), mask);
        const int to = 7 - q;
        plane = hn::Or(plane, to >= bit ? hn::ShiftLeftSame(b, to - bit)
                                        : hn::BitCast(di, hn::ShiftRightSame(hn::BitCast(du, b), bit - to)));
      }
      store(bit, plane);
    }
  }
}

// Where the tokens and dims of a unit lie among its bytes [8 quads][32 lanes][4 codes].
HWY_INLINE int ByteOf(UnitPlace place) { return 128 * place.quad + 4 * place.lane + place.code; }

HWY_INLINE void PlaceKey(int token, const uint8_t* HWY_RESTRICT codes, uint8_t* HWY_RESTRICT unit) {
  std::memcpy(unit + ByteOf(KeyPlace(token, 0)), codes, kUnitDims);  // a token's 16 dims are adjacent
}
HWY_INLINE void PlaceValue(int token, const uint8_t* HWY_RESTRICT codes, uint8_t* HWY_RESTRICT unit) {
  uint8_t* low = unit + ByteOf(ValuePlace(token, 0));
  uint8_t* high = unit + ByteOf(ValuePlace(token, 8));
  for (int g = 0; g < 8; ++g) {
    low[16 * g] = codes[g];
    high[16 * g] = codes[8 + g];
  }
}

// Replaces the codes of slots [slot, slot + count) in a unit of the record.
template <bool kKeys>
void WriteUnit(int width, int slot, int count, const uint8_t* bytes, std::byte* unit) {
  alignas(64) uint32_t planes[8 * 32];
  PackUnit(width, bytes, planes);
  if (count == kPageTokens) {
    std::memcpy(unit, planes, UnitBytes(width));
    return;
  }
  // The bits these tokens own: a unit of all ones at their places, packed the same way.
  alignas(64) uint8_t ones[kUnitCodes] = {};
  alignas(64) uint32_t mask[8 * 32];
  uint8_t all[kUnitDims];
  std::memset(all, 0xff, sizeof all);
  for (int t = slot; t < slot + count; ++t) (kKeys ? PlaceKey : PlaceValue)(t, all, ones);
  PackUnit(width, ones, mask);
  for (int w = 0; w < 32 * width; ++w) {
    uint32_t old;
    std::memcpy(&old, unit + 4 * w, 4);
    const uint32_t updated = (old & ~mask[w]) | planes[w];
    std::memcpy(unit + 4 * w, &updated, 4);
  }
}

void StoreNorm(NormType type, float reference, float norm, int token, std::byte* norms) {
  if (type == NormType::kLog8) {
    norms[NormSlot(token)] = std::byte{EncodeLogNorm(norm, reference)};
    return;
  }
  const uint16_t half = FloatToHalf(std::min(norm, kLargestHalf));
  norms[2 * NormSlot(token)] = std::byte(half & 0xff);
  norms[2 * NormSlot(token) + 1] = std::byte(half >> 8);
}

// Encodes one group of `count` tokens.
//
// y      [count] rows of the group's coordinates, stride y_stride
// units  byte offsets of the group's units in the record
// bytes  [units][1024] scratch
template <bool kKeys>
void EncodeGroup(const GroupPlan& group, const GroupCodes& book, NormType type, Rounding rounding,
                 const float* y, int64_t y_stride, int slot, int count, const int* units, int norm_offset,
                 uint8_t* bytes, std::byte* record) {
  std::memset(bytes, 0, static_cast<size_t>(group.units) * kUnitCodes);
  alignas(64) uint8_t codes[kLargestGroup];
  HWY_ALIGN float variances[kPageTokens] = {}, scales[kPageTokens];
  float norms[kPageTokens];
  const float root = std::sqrt(static_cast<float>(group.dims));
  for (int t = 0; t < count; ++t) {
    norms[t] = std::sqrt(Energy(y + t * y_stride, kUnitDims * group.units));
    variances[t] = norms[t] > 0.0f ? root / norms[t] : 0.0f;
  }
  std::fill_n(scales, kPageTokens, 1.0f);
  if (rounding == Rounding::kSearched) BestScales(group, book, y, y_stride, count, variances, scales);
  for (int t = 0; t < count; ++t) {
    const float decoded = RoundGroup(group, book, y + t * y_stride, variances[t] * scales[t], codes);
    const float correction = decoded > 0.0f ? root * CodebookScale(group.width) / std::sqrt(decoded) : 1.0f;
    StoreNorm(type, group.norm_reference, norms[t] * correction, slot + t, record + norm_offset);
    for (int u = 0; u < group.units; ++u) {
      (kKeys ? PlaceKey : PlaceValue)(slot + t, codes + kUnitDims * u, bytes + u * kUnitCodes);
    }
  }
  for (int u = 0; u < group.units; ++u) {
    WriteUnit<kKeys>(group.width, slot, count, bytes + u * kUnitCodes, record + units[u]);
  }
}

bool AllFinite(const float* rows, int64_t stride, int count, int dim) {
  const DF df;
  VF sum = hn::Zero(df);  // x - x is 0 for finite x and NaN otherwise; dim is a multiple of 16
  for (int t = 0; t < count; ++t) {
    for (int d = 0; d < dim; d += kN) {
      const VF x = hn::LoadU(df, rows + t * stride + d);
      sum = hn::Add(sum, hn::Sub(x, x));
    }
  }
  return hn::GetLane(hn::SumOfLanes(df, sum)) == 0.0f;
}

// row -= R_t mu in the blocks of the mean units.
void SubtractMean(const PackedHead& head, const RopeTable& rope, int64_t position, float* HWY_RESTRICT row) {
  const float* mean = head.plan.key_mean.data();
  const float* cos = rope.Cos(position);
  const float* sin = rope.Sin(position);
  const int rotary = rope.config().rotary_dims / 2, blocks = head.plan.head_dim / 2;
  for (int unit : head.plan.mean_units) {
    const int first = kMeanUnitBlocks * unit, last = std::min(first + kMeanUnitBlocks, blocks);
    for (int j = first; j < last; ++j) {
      const float factor = j < rotary ? rope.config().attention_factor : 1.0f;
      const float c = cos[j] * factor, s = sin[j] * factor;
      const float x = mean[2 * j], y = mean[2 * j + 1];
      row[2 * j] -= x * c - y * s;
      row[2 * j + 1] -= x * s + y * c;
    }
  }
}

bool EncodeKeysT(const PackedHead& head, const RopeTable& rope, const float* keys, int64_t stride, int count,
                 int64_t first_position, CodesScratch::Impl& scratch, std::byte* record) {
  const HeadPlan& plan = head.plan;
  const PackedHead::Derived& d = *head.derived;
  const int dim = plan.head_dim;
  if (!AllFinite(keys, stride, count, dim)) return false;
  float* y = scratch.encode.Reserve(static_cast<size_t>(kPageTokens) * (dim + head.key_dims));
  float* centred = y + static_cast<size_t>(kPageTokens) * head.key_dims;
  const float* rows[kPageTokens];
  for (int t = 0; t < count; ++t) {
    rows[t] = keys + t * stride;
    if (d.mean_units == 0) continue;
    float* row = centred + t * dim;
    std::memcpy(row, rows[t], sizeof(float) * dim);
    rows[t] = row;
    SubtractMean(head, rope, first_position + t, row);
  }
  MatVec(d.key_columns.data(), head.key_dims, dim, rows, count, y, head.key_dims);
  uint8_t* bytes =
      scratch.encode_codes.Reserve(std::max(d.key_units.size(), d.value_units.size()) * kUnitCodes);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    EncodeGroup<true>(group, d.key_codes[g], plan.norm_type, plan.rounding, y + kUnitDims * group.first_unit,
                      head.key_dims, static_cast<int>(first_position % kPageTokens), count,
                      &head.layout.key_unit[group.first_unit], head.layout.key_norm[g], bytes, record);
  }
  return true;
}

bool EncodeValuesT(const PackedHead& head, const float* values, int64_t stride, int count,
                   int64_t first_position, CodesScratch::Impl& scratch, std::byte* record) {
  const HeadPlan& plan = head.plan;
  const PackedHead::Derived& d = *head.derived;
  const int dim = plan.head_dim;
  if (!AllFinite(values, stride, count, dim)) return false;
  float* w = scratch.encode.Reserve(static_cast<size_t>(kPageTokens) *
                                    (dim + std::max(head.key_dims, head.value_dims)));
  const float* rows[kPageTokens];
  for (int t = 0; t < count; ++t) rows[t] = values + t * stride;
  MatVec(d.value_columns.data(), head.value_dims, dim, rows, count, w, head.value_dims);
  uint8_t* bytes =
      scratch.encode_codes.Reserve(std::max(d.key_units.size(), d.value_units.size()) * kUnitCodes);
  EncodeGroup<false>(plan.value, d.value_codes, plan.norm_type, plan.rounding, w, head.value_dims,
                     static_cast<int>(first_position % kPageTokens), count, head.layout.value_unit.data(),
                     head.layout.value_norm, bytes, record);
  return true;
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(EncodeKeysT);
HWY_EXPORT(EncodeValuesT);

bool EncodeKeys(const PackedHead& head, const RopeTable& rope, const float* keys, int64_t stride, int count,
                int64_t first_position, CodesScratch& scratch, std::byte* record) {
  return HWY_DYNAMIC_DISPATCH(EncodeKeysT)(head, rope, keys, stride, count, first_position, scratch.impl(),
                                           record);
}

bool EncodeValues(const PackedHead& head, const float* values, int64_t stride, int count,
                  int64_t first_position, CodesScratch& scratch, std::byte* record) {
  return HWY_DYNAMIC_DISPATCH(EncodeValuesT)(head, values, stride, count, first_position, scratch.impl(),
                                             record);
}

}  // namespace blockgtq::cpu
#endif  // HWY_ONCE
