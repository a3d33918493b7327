// Float matrix product: 256 columns of a row group are widened to a float panel in the cache, then multiplied
// with tiles of tokens by a register-blocked kernel of fused multiply-adds.
//
// Sums run over the columns in order inside a chunk of 256, and chunk totals are added in order: fixed, and
// more accurate than one long sum.
#include "src/cpu/simd_targets.h"
//
#include <algorithm>
#include <cstring>

#include "src/core/half.h"
#include "src/cpu/matmul_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/matmul_float.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/cache_control.h"
#include "hwy/highway.h"
//
#include "src/cpu/weight_unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {

// Two vectors of rows: with fewer, loads of activations limit; with more, registers do.
constexpr int kPanelRows = 2 * kRows;
constexpr int64_t kChunk = 256;
constexpr int kTileTokens = HWY_MAX_BYTES == 64 ? 12 : 6;

// Widens blocks into panel[k][kPanelRows], k from the first column of the chunk.
struct PanelSink {
  float* panel;

  template <class Unpacker>
  HWY_INLINE void Take(const UnpackedBlock& block) {
    for (int j = 0; j < 8; ++j) {
      const VF scale = Unpacker::kTwoScales && j >= 4 ? block.second : block.scale;
      Put<Unpacker, 0>(block.codes[j], scale, block.second);
      Put<Unpacker, 1>(block.codes[j], scale, block.second);
      Put<Unpacker, 2>(block.codes[j], scale, block.second);
      Put<Unpacker, 3>(block.codes[j], scale, block.second);
    }
  }

 private:
  template <class Unpacker, int kByte>
  HWY_INLINE void Put(VU codes, VF scale, VF second) {
    constexpr float kOffset = Unpacker::kOffsetLog2 == 0 ? 0.0f : 1 << Unpacker::kOffsetLog2;
    const DF df;
    const VF code = ByteToFloat<kByte>(codes);
    if constexpr (Unpacker::kHasMinimum) {
      hn::StoreU(hn::MulAdd(code, scale, second), df, panel);
    } else {
      hn::StoreU(hn::Mul(hn::Sub(code, hn::Set(df, kOffset)), scale), df, panel);
    }
    panel += kPanelRows;
  }
};

template <class Unpacker>
HWY_NOINLINE void WidenBlocks(RowGroup rows, int64_t first, int64_t count, float* panel) {
  rows.base += first / Unpacker::kElements * Unpacker::kBytes;
  PanelSink sink{panel};
  UnpackRows<Unpacker>(rows, count, sink);
}

// Formats of float weights: how a 32-bit word of a row becomes columns.
struct WordsF32 {
  static constexpr int kColumns = 1;  // a word
  static HWY_INLINE void Put(VU word, float* panel) { hn::StoreU(hn::BitCast(DF(), word), DF(), panel); }
  static float Scalar(const uint8_t* p) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
};
struct WordsF16 {
  static constexpr int kColumns = 2;
  static HWY_INLINE void Put(VU word, float* panel) {
    hn::StoreU(LowHalf(word), DF(), panel);
    hn::StoreU(HighHalf(word), DF(), panel + kPanelRows);
  }
  static float Scalar(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof(bits));
    return HalfToFloat(bits);
  }
};
struct WordsBF16 {
  static constexpr int kColumns = 2;
  static HWY_INLINE void Put(VU word, float* panel) {
    hn::StoreU(hn::BitCast(DF(), hn::ShiftLeft<16>(word)), DF(), panel);
    hn::StoreU(hn::BitCast(DF(), hn::And(word, hn::Set(DU(), 0xffff0000u))), DF(), panel + kPanelRows);
  }
  static float Scalar(const uint8_t* p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof(bits));
    return Bf16ToFloat(bits);
  }
};

template <class Words>
HWY_NOINLINE void WidenFloats(RowGroup rows, int64_t first, int64_t count, float* panel) {
  constexpr int kBytes = 4 / Words::kColumns;  // a column
  constexpr int kStep = 4 * Words::kColumns;   // columns in 16 bytes
  rows.base += first * kBytes;
  int64_t k = 0;
  for (; k + kStep <= count; k += kStep) {
    VU w0, w1, w2, w3;
    LoadWords(rows.base + k * kBytes, rows.stride, w0, w1, w2, w3);
    Words::Put(w0, panel + k * kPanelRows);
    Words::Put(w1, panel + (k + Words::kColumns) * kPanelRows);
    Words::Put(w2, panel + (k + 2 * Words::kColumns) * kPanelRows);
    Words::Put(w3, panel + (k + 3 * Words::kColumns) * kPanelRows);
  }
  for (; k < count; ++k) {
    for (int r = 0; r < kRows; ++r) {
      panel[k * kPanelRows + r] = Words::Scalar(rows.base + r * rows.stride + k * kBytes);
    }
  }
}

void Widen(TensorType type, RowGroup rows, int64_t first, int64_t count, float* panel) {
  switch (type) {
    case TensorType::kF32:
      return WidenFloats<WordsF32>(rows, first, count, panel);
    case TensorType::kF16:
      return WidenFloats<WordsF16>(rows, first, count, panel);
    case TensorType::kBF16:
      return WidenFloats<WordsBF16>(rows, first, count, panel);
    case TensorType::kQ4_0:
      return WidenBlocks<UnpackQ4_0>(rows, first, count, panel);
    case TensorType::kQ4_1:
      return WidenBlocks<UnpackQ4_1>(rows, first, count, panel);
    case TensorType::kQ5_0:
      return WidenBlocks<UnpackQ5_0>(rows, first, count, panel);
    case TensorType::kQ5_1:
      return WidenBlocks<UnpackQ5_1>(rows, first, count, panel);
    case TensorType::kQ8_0:
      return WidenBlocks<UnpackQ8_0>(rows, first, count, panel);
    case TensorType::kQ4_K:
      return WidenBlocks<UnpackQ4_K>(rows, first, count, panel);
    case TensorType::kQ5_K:
      return WidenBlocks<UnpackQ5_K>(rows, first, count, panel);
    case TensorType::kQ6_K:
      return WidenBlocks<UnpackQ6_K>(rows, first, count, panel);
  }
}

// y [kTokens, kPanelRows] += panel [count, kPanelRows] times x [count, kTokens].
template <int kTokens>
HWY_NOINLINE void MultiplyTile(const float* HWY_RESTRICT panel, const float* HWY_RESTRICT x, int64_t count,
                               float* HWY_RESTRICT y) {
  const DF df;
  VF sum0[kTokens], sum1[kTokens];
  for (int t = 0; t < kTokens; ++t) sum0[t] = sum1[t] = hn::Zero(df);
  for (int64_t k = 0; k < count; ++k) {
    const VF w0 = hn::LoadU(df, panel);
    const VF w1 = hn::LoadU(df, panel + kRows);
    for (int t = 0; t < kTokens; ++t) {
      const VF xt = hn::Set(df, x[t]);
      sum0[t] = hn::MulAdd(w0, xt, sum0[t]);
      sum1[t] = hn::MulAdd(w1, xt, sum1[t]);
    }
    panel += kPanelRows;
    x += kTokens;
  }
  for (int t = 0; t < kTokens; ++t) {
    float* out = y + t * kPanelRows;
    hn::StoreU(hn::Add(hn::LoadU(df, out), sum0[t]), df, out);
    hn::StoreU(hn::Add(hn::LoadU(df, out + kRows), sum1[t]), df, out + kRows);
  }
}

using TileFn = void (*)(const float* panel, const float* x, int64_t count, float* y);
constexpr TileFn kTileFns[] = {
    MultiplyTile<1>, MultiplyTile<2>, MultiplyTile<3>, MultiplyTile<4>,  MultiplyTile<5>,  MultiplyTile<6>,
#if HWY_MAX_BYTES == 64
    MultiplyTile<7>, MultiplyTile<8>, MultiplyTile<9>, MultiplyTile<10>, MultiplyTile<11>, MultiplyTile<12>,
#endif
};
static_assert(sizeof(kTileFns) / sizeof(kTileFns[0]) == kTileTokens);

void MultiplyFloat(const GroupArgs& args) {
  const auto* x = static_cast<const float*>(args.x);
  const RowGroup lower{args.weights, args.row_bytes};
  const RowGroup upper{args.weights + kRows * args.row_bytes, args.row_bytes};
  std::memset(args.y, 0, static_cast<size_t>(args.tokens) * kPanelRows * sizeof(float));
  for (int64_t first = 0; first < args.cols; first += kChunk) {
    const int64_t count = std::min(kChunk, args.cols - first);
    Widen(args.type, lower, first, count, args.panel_scratch);
    Widen(args.type, upper, first, count, args.panel_scratch + kRows);
    for (int64_t t = 0; t < args.tokens; t += kTileTokens) {
      const int64_t tile = std::min<int64_t>(kTileTokens, args.tokens - t);
      kTileFns[tile - 1](args.panel_scratch, x + t * args.cols + first * tile, count,
                         args.y + t * kPanelRows);
    }
  }
}

const FloatKernels* TargetFloatKernels() {
  static constexpr FloatKernels kKernels{kPanelRows, kTileTokens, static_cast<int>(kChunk) * kPanelRows,
                                         MultiplyFloat};
  return &kKernels;
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace blockgtq::cpu {

HWY_EXPORT(TargetFloatKernels);
const FloatKernels& BestFloatKernels() { return *HWY_DYNAMIC_DISPATCH(TargetFloatKernels)(); }

}  // namespace blockgtq::cpu
#endif
