// Attention over an uncompressed cache: float32 accumulation, keys transposed so that logits run along
// tokens, values by rows, and a block of queries sharing each load and conversion.
#include "src/cpu/attention_exact.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/core/half.h"
#include "src/cpu/simd_targets.h"

#ifndef BGTQ_ATTENTION_EXACT_CONSTANTS
#define BGTQ_ATTENTION_EXACT_CONSTANTS
namespace blockgtq::cpu {
inline constexpr int kStepTokens = 64;  // tokens whose logits are held at once
}
#endif

// foreach_target.h comes before highway.h.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attention_exact.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// clang-format on
#include "hwy/cache_control.h"
#include "src/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
constexpr int kN = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kLeast = 16 / kN;  // vectors of 16 elements, the granule of tokens and of dims
constexpr int kMost = kLeast > 4 ? kLeast : 4;
// Queries a block: as many as their accumulators fit in registers beside a row of operands.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
constexpr int kBlock = 4;
#else
constexpr int kBlock = 2;
#endif
constexpr float kMasked = -1e30f;

// kFetch: read from the cache's memory, so that what comes next is fetched meanwhile.
struct HalfElement {
  using Type = hwy::float16_t;
  static constexpr bool kFetch = true;
  static HWY_INLINE VF Load(const Type* p) {
    return hn::PromoteTo(DF(), hn::LoadU(hn::Rebind<Type, DF>(), p));
  }
};
struct FloatElement {  // mostly widened halves, which are near
  using Type = float;
  static constexpr bool kFetch = false;
  static HWY_INLINE VF Load(const Type* p) { return hn::LoadU(DF(), p); }
};

// Part `step` of a block of memory, of kElements elements a part.
template <class E, int kElements>
HWY_INLINE void FetchPart(const typename E::Type* block, int step) {
  if constexpr (E::kFetch) {
    const typename E::Type* part = block + static_cast<int64_t>(step) * kElements;
    constexpr int kLine = 64 / static_cast<int>(sizeof(typename E::Type));
    for (int i = 0; i < kElements; i += kLine) hwy::Prefetch(part + i);
  }
}

// logits [kQueries][stride] of kVectors vectors of tokens. queries: scaled. values: of the same tokens,
// fetched meanwhile.
template <class E, int kQueries, int kVectors>
HWY_INLINE void KeyChunk(const typename E::Type* HWY_RESTRICT keys, int64_t key_stride, int dim,
                         const float* HWY_RESTRICT queries, int64_t query_stride, float* HWY_RESTRICT logits,
                         int stride, const typename E::Type* values) {
  VF acc[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::Zero(DF());
  }
  for (int d = 0; d < dim; ++d) {
    FetchPart<E, kVectors * kN>(values, d);
    VF key[kVectors];
    for (int v = 0; v < kVectors; ++v) key[v] = E::Load(keys + d * key_stride + kN * v);
    for (int i = 0; i < kQueries; ++i) {
      const VF q = hn::Set(DF(), queries[i * query_stride + d]);
      for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::MulAdd(key[v], q, acc[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[i][v], DF(), logits + i * stride + kN * v);
  }
}

// out[i][d ..] += factor[i] * sum over tokens of p[i][t] * values[t][d ..], kVectors vectors of dims. next:
// keys of the next tile, of as many dims, fetched meanwhile.
template <class E, int kQueries, int kVectors>
HWY_INLINE void ValueChunk(const typename E::Type* HWY_RESTRICT values, int dim, int tokens,
                           const float* HWY_RESTRICT p, int stride, const float* factor,
                           float* HWY_RESTRICT out, int64_t out_stride, const typename E::Type* next) {
  VF acc[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i) {
    for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::Zero(DF());
  }
  for (int t = 0; t < tokens; ++t) {
    FetchPart<E, kVectors * kN>(next, t);
    VF value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = E::Load(values + static_cast<int64_t>(t) * dim + kN * v);
    for (int i = 0; i < kQueries; ++i) {
      const VF weight = hn::Set(DF(), p[i * stride + t]);
      for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::MulAdd(value[v], weight, acc[i][v]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    const VF f = hn::Set(DF(), factor[i]);
    for (int v = 0; v < kVectors; ++v) {
      float* to = out + i * out_stride + kN * v;
      hn::StoreU(hn::MulAdd(acc[i][v], f, hn::LoadU(DF(), to)), DF(), to);
    }
  }
}

// State of a query, floats: running maximum (base 2), 16 lanes of the denominator, then dim sums.
constexpr int kStateSum = 16, kStateOutputs = 32;

// Softmax of one row of n tokens, of which [first, last) are visible; logits become probabilities relative to
// the row's maximum. Returns the factor that brings this row to the running maximum.
HWY_INLINE float SoftmaxRow(float* HWY_RESTRICT row, int n, int first, int last, int dim,
                            float* HWY_RESTRICT state) {
  const DF df;
  for (int t = 0; t < first; ++t) row[t] = kMasked;
  for (int t = last; t < n; ++t) row[t] = kMasked;
  VF largest = hn::Set(df, kMasked);
  for (int t = 0; t < n; t += kN) largest = hn::Max(largest, hn::LoadU(df, row + t));
  const float maximum = hn::GetLane(hn::MaxOfLanes(df, largest));
  float factor = 1.0f;
  if (maximum > state[0]) {
    if (state[0] > kMasked) {
      const VF decay = hn::Set(df, std::exp2(state[0] - maximum));
      for (int o = kStateSum; o < kStateOutputs + dim; o += kN) {
        hn::StoreU(hn::Mul(hn::LoadU(df, state + o), decay), df, state + o);
      }
    }
    state[0] = maximum;
  } else {
    factor = std::exp2(maximum - state[0]);
  }
  VF sum = hn::Zero(df);
  for (int t = 0; t < n; t += kN) {
    const VF e = Exp2(df, hn::Sub(hn::LoadU(df, row + t), hn::Set(df, maximum)));
    hn::StoreU(e, df, row + t);
    sum = hn::Add(sum, e);
  }
  hn::StoreU(hn::MulAdd(sum, hn::Set(df, factor), hn::LoadU(df, state + kStateSum)), df, state + kStateSum);
  return factor;
}

// Part of a tile worked on at once, at most kStepTokens tokens.
struct TileRange {
  int64_t start;       // position of the tile's first token
  int64_t begin, end;  // visible positions
  int tokens;          // of the tile's layout
  int first, last;     // tokens worth computing: multiples of 16 around [begin, end)
};

template <class E, int kQueries>
HWY_NOINLINE void AttendTile(const typename E::Type* keys, int dim, const TileRange& range,
                             const float* queries, const QueryBounds& bounds, float* logits, float* state,
                             int64_t state_stride, const typename E::Type* next) {
  const int stride = range.last - range.first;
  const typename E::Type* all_values = keys + static_cast<int64_t>(dim) * range.tokens;
  int t = range.first;
  for (; t + kMost * kN <= range.last; t += kMost * kN) {
    KeyChunk<E, kQueries, kMost>(keys + t, range.tokens, dim, queries, dim, logits + (t - range.first),
                                 stride, all_values + static_cast<int64_t>(t) * dim);
  }
  for (; t < range.last; t += kLeast * kN) {
    KeyChunk<E, kQueries, kLeast>(keys + t, range.tokens, dim, queries, dim, logits + (t - range.first),
                                  stride, all_values + static_cast<int64_t>(t) * dim);
  }
  float factor[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    const int64_t begin = bounds.Begin(i, range.begin), end = bounds.End(i, range.end);
    const int first = static_cast<int>(std::max<int64_t>(begin - range.start - range.first, 0));
    const int last = static_cast<int>(std::min<int64_t>(end - range.start - range.first, stride));
    if (first >= last) {
      std::fill_n(logits + i * stride, stride, 0.0f);
      factor[i] = 0.0f;
      continue;
    }
    factor[i] = SoftmaxRow(logits + i * stride, stride, first, last, dim, state + i * state_stride);
  }
  // Rows outside [begin, end) may be unwritten memory: their weight is zero only when they are skipped.
  const int from = static_cast<int>(std::max(range.begin - range.start, int64_t{0}));
  const int to = static_cast<int>(std::min<int64_t>(range.end - range.start, range.tokens));
  const typename E::Type* values = all_values + static_cast<int64_t>(from) * dim;
  const float* p = logits + (from - range.first);
  int d = 0;
  for (; d + kMost * kN <= dim; d += kMost * kN) {
    ValueChunk<E, kQueries, kMost>(values + d, dim, to - from, p, stride, factor, state + kStateOutputs + d,
                                   state_stride, next + static_cast<int64_t>(d) * range.tokens);
  }
  for (; d < dim; d += kLeast * kN) {
    ValueChunk<E, kQueries, kLeast>(values + d, dim, to - from, p, stride, factor, state + kStateOutputs + d,
                                    state_stride, next + static_cast<int64_t>(d) * range.tokens);
  }
}

template <class E>
HWY_INLINE void AttendBlocks(const typename E::Type* tile, int dim, const TileRange& range,
                             const float* queries, const QueryBounds& bounds, int count, float* logits,
                             float* state, int64_t state_stride, const typename E::Type* next) {
  for (int i = 0; i < count; i += kBlock) {
    const int block = std::min(count - i, kBlock);
    const QueryBounds of_block = bounds.From(i);
    if (!of_block.AnySees(block, range.begin, range.end)) continue;
    const float* q = queries + static_cast<int64_t>(i) * dim;
    float* at = state + i * state_stride;
    switch (block) {
      case 1:
        AttendTile<E, 1>(tile, dim, range, q, of_block, logits, at, state_stride, next);
        break;
      case 2:
        AttendTile<E, 2>(tile, dim, range, q, of_block, logits, at, state_stride, next);
        break;
      case 3:
        AttendTile < E, kBlock<3 ? 1 : 3>(tile, dim, range, q, of_block, logits, at, state_stride, next);
        break;
      default:
        AttendTile < E, kBlock<4 ? 1 : 4>(tile, dim, range, q, of_block, logits, at, state_stride, next);
    }
  }
}

// Copies the visible part of a half tile widened to float: K^T, then V.
void WidenTile(const hwy::float16_t* tile, int dim, const TileRange& range, float* out) {
  const int64_t plane = static_cast<int64_t>(dim) * range.tokens;
  for (int64_t i = 0; i < 2 * plane; i += kN) hn::StoreU(HalfElement::Load(tile + i), DF(), out + i);
}

// The same of a tile of latents, rows [step, end) of K [tokens, dim]: K^T and V of `tokens` = kStepTokens
// tokens.
template <class E>
void TurnTile(const typename E::Type* rows, int dim, int count, float* out) {
  float* values = out + static_cast<int64_t>(dim) * kStepTokens;
  for (int t = 0; t < count; ++t) {
    float* row = values + static_cast<int64_t>(t) * dim;
    for (int d = 0; d < dim; d += kN)
      hn::StoreU(E::Load(rows + static_cast<int64_t>(t) * dim + d), DF(), row + d);
  }
  for (int d = 0; d < dim; ++d) {
    float* column = out + static_cast<int64_t>(d) * kStepTokens;
    for (int t = 0; t < count; ++t) column[t] = values[static_cast<int64_t>(t) * dim + d];
    std::fill(column + count, column + kStepTokens, 0.0f);
  }
}

void AttendExactT(const ExactLayout& layout, std::span<const float* const> queries, float scale,
                  std::span<const std::byte* const> tiles, int64_t begin, int64_t end,
                  const QueryBounds& bounds, float* scratch, float* out, float* lse) {
  const int dim = layout.head_dim, tokens = layout.tile_tokens;
  const int count = static_cast<int>(queries.size());
  const int64_t state_stride = kStateOutputs + dim;
  float* scaled = scratch;
  float* state = scaled + static_cast<int64_t>(count) * dim;
  float* logits = state + count * state_stride;
  float* wide = logits + 4 * static_cast<int64_t>(kStepTokens);
  for (int i = 0; i < count; ++i) {
    for (int d = 0; d < dim; ++d) scaled[i * dim + d] = queries[i][d] * (scale * 1.4426950408889634f);
  }
  std::fill_n(state, count * state_stride, 0.0f);
  for (int i = 0; i < count; ++i) state[i * state_stride] = kMasked;

  const int64_t last = bounds.LastEnd(count, begin, end);
  // Widening a half tile once pays when several blocks of queries read it.
  const bool widen = layout.type == ExactType::kHalf && count > 2 * kBlock && tokens <= kStepTokens;
  const auto attend = [&](const std::byte* tile, int64_t start, int64_t from, int64_t to,
                          const std::byte* next) HWY_ATTR {
    TileRange range = {start, from, to, tokens, 0, 0};
    range.first = static_cast<int>(from - start) / 16 * 16;
    range.last = (static_cast<int>(to - start) + 15) / 16 * 16;
    if (layout.latents) {
      const int64_t step = (from - start) / kStepTokens * kStepTokens, first = step * dim;
      const int rows = static_cast<int>(to - start - step);
      if (layout.type == ExactType::kFloat) {
        TurnTile<FloatElement>(reinterpret_cast<const float*>(tile) + first, dim, rows, wide);
      } else {
        TurnTile<HalfElement>(reinterpret_cast<const hwy::float16_t*>(tile) + first, dim, rows, wide);
      }
      const int at = static_cast<int>(step);
      const TileRange turned = {start + step, from, to, kStepTokens, range.first - at, range.last - at};
      AttendBlocks<FloatElement>(wide, dim, turned, scaled, bounds, count, logits, state, state_stride, wide);
    } else if (layout.type == ExactType::kFloat) {
      AttendBlocks<FloatElement>(reinterpret_cast<const float*>(tile), dim, range, scaled, bounds, count,
                                 logits, state, state_stride, reinterpret_cast<const float*>(next));
    } else if (widen) {
      WidenTile(reinterpret_cast<const hwy::float16_t*>(tile), dim, range, wide);
      AttendBlocks<FloatElement>(wide, dim, range, scaled, bounds, count, logits, state, state_stride, wide);
    } else {
      AttendBlocks<HalfElement>(reinterpret_cast<const hwy::float16_t*>(tile), dim, range, scaled, bounds,
                                count, logits, state, state_stride,
                                reinterpret_cast<const hwy::float16_t*>(next));
    }
  };
  for (int64_t start = begin / tokens * tokens; start < last; start += tokens) {
    for (int64_t step = 0; step < tokens; step += kStepTokens) {
      const int64_t from = std::max(begin, start + step);
      const int64_t to = std::min({last, start + step + kStepTokens, start + tokens});
      const std::byte* tile = tiles[start / tokens];
      const std::byte* next = start + tokens < last ? tiles[start / tokens + 1] : tile;
      if (from < to) attend(tile, start, from, to, next);
    }
  }
  for (int i = 0; i < count; ++i) {
    const float* s = state + i * state_stride;
    if (s[0] <= kMasked) {
      std::fill_n(out + static_cast<int64_t>(i) * dim, dim, 0.0f);
      lse[i] = -std::numeric_limits<float>::infinity();
      continue;
    }
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) sum += s[kStateSum + k];
    for (int d = 0; d < dim; ++d) out[static_cast<int64_t>(i) * dim + d] = s[kStateOutputs + d] / sum;
    lse[i] = (s[0] + std::log2(sum)) * 0.6931471805599453f;
  }
}

// x [n], n a multiple of 16, as halves; as core/half.h rounds.
void ToHalfT(const float* HWY_RESTRICT x, int n, uint16_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  const hn::Rebind<hwy::float16_t, DF> dh;
  for (int i = 0; i < n; i += kN)
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(DF(), x + i)), dh, reinterpret_cast<hwy::float16_t*>(out + i));
#else
  for (int i = 0; i < n; ++i) out[i] = FloatToHalf(x[i]);  // Highway's own form rounds otherwise
#endif
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {
namespace {

// convert: floats [n], n a multiple of 16, to elements.
template <typename T, typename F>
void StoreTile(const ExactLayout& layout, const float* key, const float* value, int slot, T* tile,
               F convert) {
  const int dim = layout.head_dim, tokens = layout.tile_tokens;
  if (layout.latents) return convert(key, dim, tile + static_cast<int64_t>(slot) * dim);
  convert(value, dim, tile + static_cast<int64_t>(dim) * tokens + static_cast<int64_t>(slot) * dim);
  for (int first = 0; first < dim; first += kStepTokens) {
    T part[kStepTokens];
    const int n = std::min(kStepTokens, dim - first);
    convert(key + first, n, part);
    T* column = tile + static_cast<int64_t>(first) * tokens + slot;
    for (int d = 0; d < n; ++d) column[static_cast<int64_t>(d) * tokens] = part[d];
  }
}

template <typename T, typename F>
void LoadTile(const ExactLayout& layout, const T* tile, int slot, float* key, float* value, F convert) {
  const int dim = layout.head_dim, tokens = layout.tile_tokens;
  if (layout.latents) {
    const T* row = tile + static_cast<int64_t>(slot) * dim;
    for (int d = 0; d < dim; ++d) key[d] = convert(row[d]);
    return;
  }
  const T* row = tile + static_cast<int64_t>(dim) * tokens + static_cast<int64_t>(slot) * dim;
  for (int d = 0; d < dim; ++d) {
    key[d] = convert(tile[static_cast<int64_t>(d) * tokens + slot]);
    value[d] = convert(row[d]);
  }
}

}  // namespace

HWY_EXPORT(AttendExactT);
HWY_EXPORT(ToHalfT);

void StoreExact(const ExactLayout& layout, const float* key, const float* value, int slot, std::byte* tile) {
  if (layout.type == ExactType::kHalf) {
    StoreTile(layout, key, value, slot, reinterpret_cast<uint16_t*>(tile), HWY_DYNAMIC_DISPATCH(ToHalfT));
  } else {
    StoreTile(layout, key, value, slot, reinterpret_cast<float*>(tile),
              [](const float* x, int n, float* to) { std::copy_n(x, n, to); });
  }
}

void LoadExact(const ExactLayout& layout, const std::byte* tile, int slot, float* key, float* value) {
  if (layout.type == ExactType::kHalf) {
    LoadTile(layout, reinterpret_cast<const uint16_t*>(tile), slot, key, value, HalfToFloat);
  } else {
    LoadTile(layout, reinterpret_cast<const float*>(tile), slot, key, value, [](float x) { return x; });
  }
}

int64_t ExactScratchFloats(int head_dim, int count) {
  return static_cast<int64_t>(count) * (2 * head_dim + 32) + 4 * kStepTokens +
         2 * int64_t{kStepTokens} * head_dim;
}

void AttendExact(const ExactLayout& layout, std::span<const float* const> queries, float scale,
                 std::span<const std::byte* const> tiles, int64_t begin, int64_t end,
                 const QueryBounds& bounds, float* scratch, float* out, float* lse) {
  HWY_DYNAMIC_DISPATCH(AttendExactT)
  (layout, queries, scale, tiles, begin, end, bounds, scratch, out, lse);
}

}  // namespace blockgtq::cpu
#endif  // HWY_ONCE
