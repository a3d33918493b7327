// Products of a few vectors with a small dense matrix stored by columns. Re-included once a SIMD target.
#if defined(BGTQ_CPU_MATVEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BGTQ_CPU_MATVEC_INL_H_
#undef BGTQ_CPU_MATVEC_INL_H_
#else
#define BGTQ_CPU_MATVEC_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace blockgtq::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// out[i][r .. r + kVectors * N) = sum over c of columns[c][r ..] * x[i][c]
template <int kCount, int kVectors>
HWY_INLINE void MatVecChunk(const float* HWY_RESTRICT columns, int rows, int cols, const float* const* x,
                            float* HWY_RESTRICT out, int64_t out_stride) {
  const hn::ScalableTag<float> df;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>()));
  hn::Vec<decltype(df)> acc[kCount][kVectors];
  for (int i = 0; i < kCount; ++i) {
    for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::Zero(df);
  }
  for (int c = 0; c < cols; ++c) {
    hn::Vec<decltype(df)> column[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      column[v] = hn::LoadU(df, columns + static_cast<int64_t>(c) * rows + kLanes * v);
    }
    for (int i = 0; i < kCount; ++i) {
      const auto scalar = hn::Set(df, x[i][c]);
      for (int v = 0; v < kVectors; ++v) acc[i][v] = hn::MulAdd(column[v], scalar, acc[i][v]);
    }
  }
  for (int i = 0; i < kCount; ++i) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[i][v], df, out + i * out_stride + kLanes * v);
  }
}

template <int kCount>
HWY_INLINE void MatVecBlock(const float* columns, int rows, int cols, const float* const* x, float* out,
                            int64_t out_stride) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>()));
  constexpr int kLeast = 16 / kLanes;  // vectors of 16 rows
  constexpr int kMost = kLeast > 4 ? kLeast : 4;
  int r = 0;
  for (; r + kMost * kLanes <= rows; r += kMost * kLanes) {
    MatVecChunk<kCount, kMost>(columns + r, rows, cols, x, out + r, out_stride);
  }
  for (; r < rows; r += kLeast * kLanes) {
    MatVecChunk<kCount, kLeast>(columns + r, rows, cols, x, out + r, out_stride);
  }
}

// out [count, rows] (row stride out_stride) = matrix x[i], matrix by columns: [cols, rows], rows % 16 == 0.
HWY_INLINE void MatVec(const float* columns, int rows, int cols, const float* const* x, int count, float* out,
                       int64_t out_stride) {
  int i = 0;
  for (; i + 4 <= count; i += 4) MatVecBlock<4>(columns, rows, cols, x + i, out + i * out_stride, out_stride);
  for (; i < count; ++i) MatVecBlock<1>(columns, rows, cols, x + i, out + i * out_stride, out_stride);
}

}  // namespace blockgtq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
