// Attention over packed records: tile by tile, codes are decoded once and met by every query (design.md 5).
//
// With u = logit + log2(value norm), e = 255 * 2^(u - max u) is rounded to the u8 probability that multiplies
// the value codes, and e / norm sums to the softmax's denominator: one maximum and one exponential a token.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/cpu/attention_codes_impl.h"
#include "src/cpu/simd_targets.h"

// foreach_target.h comes before highway.h.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/attention_codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
// clang-format on
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "src/cpu/dot-inl.h"
#include "src/cpu/exp2-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

constexpr float kMasked = -1e30f;
constexpr float kLog2Of255 = 7.994353436858858f;
constexpr float kLeastNorm = 1.4901161e-8f;  // 2^-26, below the least half: keeps log2 and 1 / norm finite

// State of one query between tiles, floats: maximum (base 2, less log2 255), then 16 lanes each of the
// denominator and of the sum of rounded probabilities, then outputs [units][32].
constexpr int kStateSum = 16, kStateRounded = 32, kStateOutputs = 48;

struct TileConstants {
  alignas(64) int32_t token[64];            // TileToken
  alignas(64) uint8_t norm_slot[64];        // NormSlot(TileToken)
  alignas(64) uint8_t expand[kPlanes][64];  // byte of a token block's 16 probabilities in tile order, or 0x80
  alignas(64) float log_norm[257];          // 2^((b - 128) / 32)
};

inline const TileConstants& Constants() {
  static const TileConstants constants = [] {
    TileConstants c;
    for (int p = 0; p < 64; ++p) {
      c.token[p] = TileToken(p);
      c.norm_slot[p] = static_cast<uint8_t>(NormSlot(TileToken(p)));
    }
    for (int plane = 0; plane < kPlanes; ++plane) {
      for (int b = 0; b < 64; ++b) {
        const int source = OperandSource(plane, b & 15);
        if (source < 0) {
          c.expand[plane][b] = 0x80;
          continue;
        }
        const int tq = source >> 2, j = source & 3;  // ValuePlace
        const int token = 2 * tq + (j >> 1) + 8 * (j & 1);
        int position = 0;
        while (TileToken(position) != token) ++position;
        // VNNI packs the four vectors of a tile into one: byte 4 * position + token block.
        c.expand[plane][b] = static_cast<uint8_t>(BGTQ_VNNI ? 4 * position + (b >> 4) : position);
      }
    }
    for (int b = 0; b <= 256; ++b) c.log_norm[b] = static_cast<float>(std::exp2((b - 128) / 32.0));
    return c;
  }();
  return constants;
}

// 64 norm bytes in tile order.
HWY_INLINE void OrderNorms(const TileConstants& c, const uint8_t* HWY_RESTRICT norms,
                           uint8_t* HWY_RESTRICT out) {
#if BGTQ_VNNI
  _mm512_store_si512(out, _mm512_permutexvar_epi8(_mm512_load_si512(c.norm_slot), _mm512_loadu_si512(norms)));
#else
  for (int p = 0; p < 64; p += 2) std::memcpy(out + p, norms + c.norm_slot[p], 2);  // slots come in pairs
#endif
}

// 2^((b - 128) / 32) of integers 0..256.
HWY_INLINE VF LogNorm(const TileConstants& c, VI b) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // The table's first 32 entries are one octave; the rest only adds to the exponent.
  const __m512 octave =
      _mm512_permutex2var_ps(_mm512_load_ps(c.log_norm), b.raw, _mm512_load_ps(c.log_norm + 16));
  const VI exponent = hn::ShiftLeft<23>(hn::ShiftRight<5>(b));
  return hn::BitCast(DF(), hn::Add(hn::BitCast(DI(), VF{octave}), exponent));
#else
  return hn::GatherIndex(DF(), c.log_norm, b);
#endif
}

// Norms of one group in units of the reference, tile order.
HWY_INLINE void LoadNorms(const TileConstants& c, NormType type, const uint8_t* HWY_RESTRICT from,
                          float* HWY_RESTRICT out) {
  const DF df;
  if (type == NormType::kLog8) {
    alignas(64) uint8_t bytes[64];
    OrderNorms(c, from, bytes);
    const hn::Rebind<uint8_t, DI> d8;
    for (int p = 0; p < 64; p += kN) {
      hn::Store(LogNorm(c, hn::PromoteTo(DI(), hn::LoadU(d8, bytes + p))), df, out + p);
    }
    return;
  }
  alignas(64) uint16_t halves[64];
  for (int p = 0; p < 64; ++p) std::memcpy(&halves[p], from + 2 * c.norm_slot[p], 2);
  const hn::Rebind<hwy::float16_t, DF> d16;
  for (int p = 0; p < 64; p += kN) {
    hn::Store(hn::PromoteTo(df, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(halves) + p)), df,
              out + p);
  }
}

// log2 and inverse of the value norms.
HWY_INLINE void LoadValueNorms(const TileConstants& c, NormType type, const uint8_t* HWY_RESTRICT from,
                               float* HWY_RESTRICT log2, float* HWY_RESTRICT inverse) {
  const DF df;
  if (type == NormType::kLog8) {
    alignas(64) uint8_t bytes[64];
    OrderNorms(c, from, bytes);
    const hn::Rebind<uint8_t, DI> d8;
    for (int p = 0; p < 64; p += kN) {
      const VI b = hn::PromoteTo(DI(), hn::LoadU(d8, bytes + p));
      hn::Store(hn::MulAdd(hn::ConvertTo(df, b), hn::Set(df, 1.0f / 32.0f), hn::Set(df, -4.0f)), df,
                log2 + p);
      hn::Store(LogNorm(c, hn::Sub(hn::Set(DI(), 256), b)), df, inverse + p);
    }
    return;
  }
  LoadNorms(c, type, from, inverse);
  for (int p = 0; p < 64; p += kN) {
    const VF norm = hn::Max(hn::Load(df, inverse + p), hn::Set(df, kLeastNorm));
    hn::Store(hn::Log2(df, norm), df, log2 + p);
    hn::Store(hn::Div(hn::Set(df, 1.0f), norm), df, inverse + p);
  }
}

// cos and sin of the tile's first position for the blocks of the mean units, [2][mean_stride].
void LoadPhase(const PackedHead& head, const RopeTable& rope, int64_t position, float* out) {
  const PackedHead::Derived& d = *head.derived;
  const float* cos = rope.Cos(position);
  const float* sin = rope.Sin(position);
  for (int u = 0; u < d.mean_units; ++u) {
    const int first = kMeanUnitBlocks * head.plan.mean_units[u];
    const int blocks = std::min(kMeanUnitBlocks, head.plan.head_dim / 2 - first);
    for (int b = 0; b < blocks; ++b) {
      out[kMeanUnitBlocks * u + b] = cos[first + b];
      out[d.mean_stride + kMeanUnitBlocks * u + b] = sin[first + b];
    }
  }
}

// Stops the compiler from folding a load into each of its uses: the loads would be the limit.
HWY_INLINE void KeepInRegister(VF& v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  asm("" : "+v"(v.raw));
#endif
}

// The mean's part of the logits, q' R_t mu, for 64 tokens: with z = conj(q) mu e^(i theta 64 j) at the tile's
// centre and x the distance from it, sum Re(z) cos(theta x) - Im(z) sin(theta x). The cosines are even and
// the sines odd in x, so half a tile's sums give the other half.
//
// mean      query i's phasors at mean + i * 2 mean_stride
// rotated   [kQueries][2][mean_stride] scratch
// logits    [kQueries][64], overwritten
template <int kQueries>
HWY_INLINE void MeanLogits(const PackedHead& head, const float* HWY_RESTRICT mean,
                           const float* HWY_RESTRICT phase, float* HWY_RESTRICT rotated,
                           float* HWY_RESTRICT logits) {
  const DF df;
  const PackedHead::Derived& d = *head.derived;
  const int stride = d.mean_stride;
  for (int i = 0; i < kQueries; ++i) {
    for (int b = 0; b < stride; b += kN) {
      const VF cos = hn::LoadU(df, phase + b), sin = hn::LoadU(df, phase + stride + b);
      const VF re = hn::LoadU(df, mean + 2 * stride * i + b),
               im = hn::LoadU(df, mean + 2 * stride * i + stride + b);
      hn::StoreU(hn::NegMulAdd(im, sin, hn::Mul(re, cos)), df, rotated + 2 * stride * i + b);
      hn::StoreU(hn::Neg(hn::MulAdd(re, sin, hn::Mul(im, cos))), df, rotated + 2 * stride * i + stride + b);
    }
  }
  constexpr int kVectors = kHalfTile / kN < 2 ? 1 : 2;  // of half a tile, at a time
  for (int h = 0; h < kHalfTile / kN; h += kVectors) {
    VF even[kQueries][kVectors], odd[kQueries][kVectors];
    for (int i = 0; i < kQueries; ++i) {
      for (int v = 0; v < kVectors; ++v) even[i][v] = odd[i][v] = hn::Zero(df);
    }
    for (int u = 0; u < d.mean_units; ++u) {
      const float* table =
          d.phases->values.data() + kMeanUnitBlocks * 2 * kHalfTile * head.plan.mean_units[u] + kN * h;
      const float* z = rotated + kMeanUnitBlocks * u;
      for (int b = 0; b < kMeanUnitBlocks; ++b) {
        VF cos[kVectors], sin[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          cos[v] = hn::LoadU(df, table + 2 * kHalfTile * b + kN * v);
          sin[v] = hn::LoadU(df, table + 2 * kHalfTile * b + kHalfTile + kN * v);
          KeepInRegister(cos[v]);
          KeepInRegister(sin[v]);
        }
        for (int i = 0; i < kQueries; ++i) {
          const VF re = hn::Set(df, z[2 * stride * i + b]), im = hn::Set(df, z[2 * stride * i + stride + b]);
          for (int v = 0; v < kVectors; ++v) {
            even[i][v] = hn::MulAdd(cos[v], re, even[i][v]);
            odd[i][v] = hn::MulAdd(sin[v], im, odd[i][v]);
          }
        }
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        float* row = logits + 64 * i + kHalfTile;
        hn::StoreU(hn::Add(even[i][v], odd[i][v]), df, row + kN * (h + v));
        hn::StoreU(hn::Reverse(df, hn::Sub(even[i][v], odd[i][v])), df, row - kN * (h + v + 1));
      }
    }
  }
}

// A decoded tile.
struct Tile {
  const uint8_t* keys;    // [key units][kUnitScratch]
  const uint8_t* values;  // [value units][kUnitScratch]
  const float* norms;     // [groups][64]
  const float* value_log2;
  const float* value_inverse;
};

// The 64 probabilities of a tile from floats that hold them in their low byte (kRounder added), expanded for
// the dot products.
HWY_INLINE void StoreProbabilities(const TileConstants& c, const VF* rounded, uint8_t* HWY_RESTRICT out) {
#if BGTQ_VNNI
  const auto bits = [&](int k) HWY_ATTR { return _mm512_castps_si512(rounded[k].raw); };
  const auto select = [](__m512i a, __m512i b, int mask) HWY_ATTR {  // mask ? a : b
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(mask), a, b, 0xca);
  };
  const __m512i low = select(bits(0), _mm512_slli_epi32(bits(1), 8), 0xff);
  const __m512i high = select(_mm512_slli_epi32(bits(2), 16), _mm512_slli_epi32(bits(3), 24), 0xffffff);
  const __m512i all = select(low, high, 0xffff);
  for (int plane = 0; plane < kPlanes; ++plane) {
    _mm512_store_si512(out + 64 * plane, _mm512_permutexvar_epi8(_mm512_load_si512(c.expand[plane]), all));
  }
#else
  alignas(64) uint8_t bytes[64];
  const hn::Rebind<uint8_t, DI> d8;
  for (int k = 0; k < 64 / kN; ++k) {
    const VI p = hn::And(hn::BitCast(DI(), rounded[k]), hn::Set(DI(), 0xff));
    hn::StoreU(hn::DemoteTo(d8, p), d8, bytes + kN * k);
  }
  const DU8 du;
  for (int b = 0; b < 64; b += 4 * kN) {
    const VU8 p = hn::Load(du, bytes + b);
    for (int plane = 0; plane < kPlanes; ++plane) {
      hn::Store(hn::TableLookupBytesOr0(p, hn::Load(du, c.expand[plane] + b)), du, out + 64 * plane + b);
    }
  }
#endif
}

// Online softmax of one query over a tile: updates its state, writes expanded probabilities and returns the
// factor of this tile's value sums.
//
// first, last  visible tokens of the tile
HWY_INLINE float Softmax(const TileConstants& c, const Tile& tile, const float* HWY_RESTRICT logits,
                         int first, int last, bool rounded_sum, int outputs, float* HWY_RESTRICT state,
                         uint8_t* HWY_RESTRICT probabilities) {
  const DF df;
  constexpr int kVectors = 64 / kN;
  VF u[kVectors];
  for (int k = 0; k < kVectors; ++k) {
    u[k] = hn::Add(hn::LoadU(df, logits + kN * k), hn::Load(df, tile.value_log2 + kN * k));
  }
  if (first > 0 || last < kPageTokens) {
    for (int k = 0; k < kVectors; ++k) {
      const VI token = hn::Load(DI(), c.token + kN * k);
      const auto visible =
          hn::And(hn::Gt(token, hn::Set(DI(), first - 1)), hn::Lt(token, hn::Set(DI(), last)));
      u[k] = hn::IfThenElse(hn::RebindMask(df, visible), u[k], hn::Set(df, kMasked));
    }
  }
  VF largest = u[0];
  for (int k = 1; k < kVectors; ++k) largest = hn::Max(largest, u[k]);
  const VF shift = hn::Sub(hn::MaxOfLanes(df, largest), hn::Set(df, kLog2Of255));  // in every lane
  VF sum = hn::Zero(df), total = hn::Zero(df);
  for (int k = 0; k < kVectors; ++k) {
    const VF e = Exp2(df, hn::Sub(u[k], shift));
    sum = hn::MulAdd(e, hn::Load(df, tile.value_inverse + kN * k), sum);
    u[k] = hn::Add(e, hn::Set(df, kRounder));
    if (rounded_sum) total = hn::Add(total, hn::Sub(u[k], hn::Set(df, kRounder)));
  }
  StoreProbabilities(c, u, probabilities);

  // Either the state shrinks to the tile's maximum or the tile to the state's.
  const float tile_max = hn::GetLane(shift);
  const VF change = Exp2(df, hn::Neg(hn::Abs(hn::Sub(shift, hn::Set(df, state[0])))));
  VF factor = change;
  if (tile_max > state[0]) {
    for (int o = kStateSum; o < kStateOutputs + outputs; o += kN) {
      hn::StoreU(hn::Mul(hn::LoadU(df, state + o), change), df, state + o);
    }
    state[0] = tile_max;
    factor = hn::Set(df, 1.0f);
  }
  hn::StoreU(hn::MulAdd(sum, factor, hn::LoadU(df, state + kStateSum)), df, state + kStateSum);
  if (rounded_sum) {
    hn::StoreU(hn::MulAdd(total, factor, hn::LoadU(df, state + kStateRounded)), df, state + kStateRounded);
  }
  return hn::GetLane(factor);
}

// Asks for the next record a few lines at a time while this one is worked on: a page's records are no stream
// to the hardware, and all lines at once would stall on its few fill buffers.
class Prefetcher {
 public:
  Prefetcher(const std::byte* record, int bytes, int steps)
      : at_(record), end_(record + bytes), stride_((bytes / 64 / steps + 1) * 64) {}
  HWY_INLINE void Step() {
    const std::byte* stop = end_ - at_ > stride_ ? at_ + stride_ : end_;
    for (; at_ < stop; at_ += 64) hwy::Prefetch(at_);
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  int stride_;
};

struct TileRange {
  int64_t start;  // position of the tile's first token
  int64_t begin, end;
};

// kQueries queries, `query` the first, against a decoded tile.
template <int kQueries>
HWY_NOINLINE void AttendTile(const PackedHead& head, const PreparedQueries::Impl& q, int query,
                             const Tile& tile, const float* phase, float* rotated, const TileRange& range,
                             const QueryBounds& bounds, float* state, int64_t state_stride,
                             Prefetcher& next) {
  const PackedHead::Derived& d = *head.derived;
  const TileConstants& c = Constants();
  const int64_t passes = static_cast<int64_t>(d.passes.size());
  const int units = static_cast<int>(d.value_units.size());
  alignas(64) float logits[kQueries * 64];
  if (d.mean_units > 0) {
    MeanLogits<kQueries>(head, q.mean.data() + static_cast<int64_t>(query) * 2 * d.mean_stride, phase,
                         rotated, logits);
  } else {
    std::memset(logits, 0, sizeof logits);
  }
  for (int64_t p = 0; p < passes; ++p) {
    const KeyPass& pass = d.passes[p];
    next.Step();
    KeyDots<kQueries>(
        tile.keys + pass.first_unit * kUnitScratch, pass.units,
        q.operands.data() + (static_cast<int64_t>(query) * d.pass_units + pass.first_operand) * 64,
        64 * d.pass_units, q.start.data() + 4 * (query * passes + p), 4 * passes,
        q.scale.data() + 2 * (query * passes + p), 2 * passes, tile.norms + 64 * pass.group, logits);
  }
  alignas(64) uint8_t probabilities[kQueries * 64 * kPlanes];
  float factor[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    const int64_t begin = bounds.Begin(i, range.begin), end = bounds.End(i, range.end);
    const int first = static_cast<int>(std::max<int64_t>(begin - range.start, 0));
    const int last = static_cast<int>(std::min<int64_t>(end - range.start, kPageTokens));
    uint8_t* row = probabilities + i * 64 * kPlanes;
    next.Step();
    if (first >= last) {  // sees nothing of this tile
      std::memset(row, 0, 64 * kPlanes);
      factor[i] = 0.0f;
      continue;
    }
    factor[i] = Softmax(c, tile, logits + 64 * i, first, last, d.value_half != 0.0f, 32 * units,
                        state + i * state_stride, row);
  }
  int u = 0;
  if constexpr (BGTQ_VNNI) {
    for (; u + 2 <= units; u += 2) {
      ValueDots<kQueries, 2>(tile.values + u * kUnitScratch, probabilities, factor,
                             state + kStateOutputs + 32 * u, state_stride);
    }
  }
  for (; u < units; ++u) {
    ValueDots<kQueries, 1>(tile.values + u * kUnitScratch, probabilities, factor,
                           state + kStateOutputs + 32 * u, state_stride);
  }
}

// Final sums of one query.
void Finish(const PackedHead& head, const float* state, float* out, float* lse) {
  const PackedHead::Derived& d = *head.derived;
  const int units = static_cast<int>(d.value_units.size());
  if (state[0] <= kMasked) {
    std::fill_n(out, head.value_dims, 0.0f);
    *lse = -std::numeric_limits<float>::infinity();
    return;
  }
  float sum = 0.0f, rounded = 0.0f;
  for (int i = 0; i < 16; ++i) {
    sum += state[kStateSum + i];
    rounded += state[kStateRounded + i];
  }
  const float scale = d.value_constant / sum;
  const float half = rounded * d.value_half;
  for (int u = 0; u < units; ++u) {
    const float* lanes = state + kStateOutputs + 32 * u;
    for (int g = 0; g < 8; ++g) {
      out[16 * u + g] = (lanes[4 * g] + lanes[4 * g + 2] + half) * scale;
      out[16 * u + 8 + g] = (lanes[4 * g + 1] + lanes[4 * g + 3] + half) * scale;
    }
  }
  *lse = (state[0] + std::log2(sum)) * 0.6931471805599453f;
}

void AttendCodesT(const PackedHead& head, const PreparedQueries::Impl& q, int first, int count,
                  std::span<const std::byte* const> records, int64_t begin, int64_t end,
                  const QueryBounds& bounds, const RopeTable& rope, CodesScratch::Impl& scratch, float* out,
                  float* lse) {
  const PackedHead::Derived& d = *head.derived;
  const TileConstants& c = Constants();
  const int groups = static_cast<int>(head.plan.groups.size());
  const size_t key_units = d.key_units.size(), value_units = d.value_units.size();
  uint8_t* keys = scratch.codes.Reserve((key_units + value_units) * kUnitScratch);
  uint8_t* values = keys + key_units * kUnitScratch;
  float* norms = scratch.norms.Reserve(64 * (groups + 2));
  float* value_log2 = norms + 64 * groups;
  float* value_inverse = value_log2 + 64;
  float* phase = scratch.phase.Reserve(static_cast<size_t>(d.mean_stride) * 2 * (1 + kQueryBlock));
  const int64_t state_stride = kStateOutputs + 32 * static_cast<int64_t>(value_units);
  float* state = scratch.state.Reserve(static_cast<size_t>(state_stride) * count);
  std::memset(state, 0, sizeof(float) * state_stride * count);
  for (int i = 0; i < count; ++i) state[i * state_stride] = kMasked;

  const int64_t last = bounds.LastEnd(count, begin, end);
  const Tile tile = {keys, values, norms, value_log2, value_inverse};
  for (int64_t start = begin / kPageTokens * kPageTokens; start < last; start += kPageTokens) {
    const uint8_t* record = reinterpret_cast<const uint8_t*>(records[start / kPageTokens]);
    // Steps: one a unit, one a pass, one a query of the first block.
    const int steps =
        static_cast<int>(key_units + value_units + d.passes.size()) + std::min(count, kQueryBlock);
    Prefetcher next(records[start / kPageTokens], 0, 1);
    if (start + kPageTokens < last) next = {records[start / kPageTokens + 1], head.layout.bytes, steps};
    for (size_t u = 0; u < key_units; ++u) {
      next.Step();
      UnpackUnit<BGTQ_VNNI ? 0x80 : 0>(d.key_units[u].width, record + d.key_units[u].offset,
                                       keys + u * kUnitScratch);
    }
    for (int g = 0; g < groups; ++g) {
      LoadNorms(c, head.plan.norm_type, record + head.layout.key_norm[g], norms + 64 * g);
    }
    LoadValueNorms(c, head.plan.norm_type, record + head.layout.value_norm, value_log2, value_inverse);
    for (size_t u = 0; u < value_units; ++u) {
      next.Step();
      UnpackUnit<0>(d.value_units[u].width, record + d.value_units[u].offset, values + u * kUnitScratch);
    }
    if (d.mean_units > 0) LoadPhase(head, rope, start, phase);
    const TileRange range = {start, begin, last};
    for (int i = 0; i < count; i += kQueryBlock) {
      const int block = std::min(count - i, kQueryBlock);
      const QueryBounds of_block = bounds.From(i);
      if (!of_block.AnySees(block, std::max(start, begin), std::min(start + kPageTokens, last))) continue;
      float* at = state + i * state_stride;
      float* rotated = phase + 2 * d.mean_stride;
      switch (block) {
        case 1:
          AttendTile<1>(head, q, first + i, tile, phase, rotated, range, of_block, at, state_stride, next);
          break;
        case 2:
          AttendTile<2>(head, q, first + i, tile, phase, rotated, range, of_block, at, state_stride, next);
          break;
        case 3:
          AttendTile<3>(head, q, first + i, tile, phase, rotated, range, of_block, at, state_stride, next);
          break;
        default:
          AttendTile<4>(head, q, first + i, tile, phase, rotated, range, of_block, at, state_stride, next);
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    Finish(head, state + i * state_stride, out + static_cast<int64_t>(i) * head.value_dims, lse + i);
  }
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(AttendCodesT);

void AttendCodes(const PackedHead& head, const PreparedQueries& queries, int first, int count,
                 std::span<const std::byte* const> records, int64_t begin, int64_t end,
                 const QueryBounds& bounds, const RopeTable& rope, CodesScratch& scratch, float* out,
                 float* lse) {
  HWY_DYNAMIC_DISPATCH(AttendCodesT)
  (head, queries.impl(), first, count, records, begin, end, bounds, rope, scratch.impl(), out, lse);
}

}  // namespace blockgtq::cpu
#endif  // HWY_ONCE
