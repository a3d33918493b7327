// See heads.h. A product's block has 32 or 64 outputs of one head for 16 or 64 rows, whose inputs are in
// shared memory as fp16. Within 32 inputs the order of the reduction is such that a lane reads its weights,
// and its rows' inputs, as 16 bytes.
#include <algorithm>
#include <string>

#include "src/cuda/heads.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/matmul_item.h"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 128, kWarps = 4, kCopyThreads = 256;

struct CopyCall {
  const float* x;
  float* y;
  int64_t x_cols, y_cols, from_stride, from_first, to_stride, to_first, width, rows;
  int heads;
};

__global__ void __launch_bounds__(kCopyThreads) CopyHeadsKernel(const __grid_constant__ CopyCall p) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i >= p.rows * p.heads * p.width) return;
  const int64_t c = i % p.width, h = i / p.width % p.heads, r = i / (p.width * p.heads);
  p.y[r * p.y_cols + h * p.to_stride + p.to_first + c] =
      p.x[r * p.x_cols + h * p.from_stride + p.from_first + c];
}

struct ProductCall {
  const uint16_t* weights[kMaxProductHeads];
  HeadInput x;
  float* y;
  int64_t y_cols, from_stride, from_first, to_stride, to_first, rows;
  int in, out, heads;
};

/// Halves between rows of inputs: a multiple of 32 inputs, and an odd multiple of 64 bytes.
__host__ __device__ inline int RowStride(int in) {
  const int groups = (in + 31) / 32;
  return 32 * (groups | 1);
}

/// An input row's values as halves. columns [rows][RowStride(in)].
__device__ __forceinline__ void LoadInputs(const ProductCall& p, int head, int64_t first, int count, int rows,
                                           __half* high, __half* low) {
  const int stride = RowStride(p.in);
  const int64_t column = head * p.from_stride + p.from_first;
  for (int i = threadIdx.x; i < rows * stride; i += kThreads) {
    const int r = i / stride, c = i % stride;
    __half hi = __float2half(0.0f), lo = hi;
    if (r < count && c < p.in) {
      const int64_t at = (first + r) * p.x.cols + column + c;
      if (p.x.full != nullptr) {
        const float x = p.x.full[at];
        hi = __float2half(x);
        if (low != nullptr) lo = __float2half((x - __half2float(hi)) * kLowHalfScale);
      } else {
        hi = reinterpret_cast<const __half*>(p.x.high)[at];
        if (low != nullptr) lo = reinterpret_cast<const __half*>(p.x.low)[at];
      }
    }
    high[i] = hi;
    if (low != nullptr) low[i] = lo;
  }
}

/// sums += the products of 32 inputs. weights: two quads of words a column block.
template <int kRowTiles, int kColumns>
__device__ __forceinline__ void AddProducts(const __half* rows, int stride, const uint4 (&weights)[kColumns],
                                            float (&sums)[kRowTiles][kColumns][4]) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const uint4 top = *reinterpret_cast<const uint4*>(rows + 16 * r * stride);
    const uint4 bottom = *reinterpret_cast<const uint4*>(rows + (16 * r + 8) * stride);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      MmaF16(sums[r][c], {top.x, bottom.x, top.y, bottom.y}, weights[c].x, weights[c].y);
      MmaF16(sums[r][c], {top.z, bottom.z, top.w, bottom.w}, weights[c].z, weights[c].w);
    }
  }
}

/// kColumns: blocks of 8 outputs of a warp.
template <int kRowTiles, int kColumns, bool kLow>
__global__ void __launch_bounds__(kThreads, 2) ProductHeadsKernel(const __grid_constant__ ProductCall p) {
  constexpr int kRows = 16 * kRowTiles, kOutputs = 8 * kColumns * kWarps;
  constexpr int kAhead = kRowTiles == 1 ? 8 : 2;  // loads of weights under way
  BGTQ_DYNAMIC_SHARED(uint8_t, 128, shared);
  const int stride = RowStride(p.in);
  __half* high = reinterpret_cast<__half*>(shared);
  __half* low = kLow ? high + kRows * stride : nullptr;
  const int output_blocks = (p.out + kOutputs - 1) / kOutputs;
  const int rest = static_cast<int>(blockIdx.x) / output_blocks, head = rest % p.heads;
  const int64_t first = static_cast<int64_t>(rest / p.heads) * kRows;
  const int count = static_cast<int>(p.rows - first < kRows ? p.rows - first : kRows);
  const int warp = WarpIndex(), lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int output = static_cast<int>(blockIdx.x) % output_blocks * kOutputs + warp * 8 * kColumns;
  const uint16_t* weights = p.weights[head] + static_cast<int64_t>(output + g) * p.in + 8 * t;
  uint4 w[kAhead][kColumns];
  const auto load = [&](int first_input) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = first_input + 32 * i;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        w[i][c] = {0, 0, 0, 0};
        if (output + 8 * c + g < p.out && k + 8 * t < p.in)
          w[i][c] = *reinterpret_cast<const uint4*>(weights + static_cast<int64_t>(8 * c) * p.in + k);
      }
    }
  };
  load(0);  // constants: they arrive while the kernel ahead finishes
  WaitForPreviousKernel();
  LetNextKernelStart();
  LoadInputs(p, head, first, count, kRows, high, low);
  __syncthreads();
  float sums[kRowTiles][kColumns][4] = {}, low_sums[kRowTiles][kColumns][4] = {};
  const int at = g * stride + 8 * t;
#pragma unroll 1
  for (int k = 0; k < p.in; k += 32 * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (k + 32 * i >= p.in) break;
      AddProducts(high + at + k + 32 * i, stride, w[i], sums);
      if constexpr (kLow) AddProducts(low + at + k + 32 * i, stride, w[i], low_sums);
    }
    load(k + 32 * kAhead);
  }
  const int64_t column = head * p.to_stride + p.to_first;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = 16 * r + g + 8 * (e >> 1), n = output + 8 * c + 2 * t + (e & 1);
        if (row >= count || n >= p.out) continue;
        const float sum = kLow ? fmaf(low_sums[r][c][e], 1.0f / kLowHalfScale, sums[r][c][e]) : sums[r][c][e];
        p.y[(first + row) * p.y_cols + column + n] = sum * p.x.scale;
      }
    }
  }
}

template <int kRowTiles, int kColumns, bool kLow>
Status LaunchFor(const ProductCall& p, int64_t limit, cudaStream_t stream) {
  const int64_t bytes = int64_t{2} * 16 * kRowTiles * RowStride(p.in) * (kLow ? 2 : 1);
  if constexpr (kRowTiles > 1) {
    if (bytes > limit) return LaunchFor<1, 1, kLow>(p, limit, stream);
  }
  if (bytes > limit) {
    return Status(ErrorCode::kUnsupported,
                  "products of heads: " + std::to_string(p.in) + " inputs need " + std::to_string(bytes) +
                      " bytes of shared memory, the GPU has " + std::to_string(limit));
  }
  const auto kernel = ProductHeadsKernel<kRowTiles, kColumns, kLow>;
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "products of heads"));
  constexpr int kOutputs = 8 * kColumns * kWarps, kRows = 16 * kRowTiles;
  const int64_t blocks = (p.out + kOutputs - 1) / kOutputs * p.heads * ((p.rows + kRows - 1) / kRows);
  return Launch("products of heads", kernel, blocks, kThreads, static_cast<size_t>(bytes), true, stream, p);
}

}  // namespace

Status LaunchCopyHeads(const float* x, int64_t x_cols, const HeadColumns& from, int heads, int64_t rows,
                       float* y, int64_t y_cols, const HeadColumns& to, CUstream_st* stream) {
  const CopyCall call = {x,         y,        x_cols,   y_cols, from.stride, from.first,
                         to.stride, to.first, to.width, rows,   heads};
  const int64_t elements = rows * heads * to.width;
  if (elements < 1) return Status(ErrorCode::kInvalidArgument, "copying heads: nothing to copy");
  return Launch("copying heads", CopyHeadsKernel, (elements + kCopyThreads - 1) / kCopyThreads, kCopyThreads,
                0, true, stream, call);
}

Status LaunchProductHeads(std::span<const uint16_t* const> weights, const HeadInput& x,
                          const HeadColumns& from, int64_t rows, float* y, int64_t y_cols,
                          const HeadColumns& to, CUstream_st* stream) {
  if (weights.empty() || rows < 1 || from.width < 1 || to.width < 1)
    return Status(ErrorCode::kInvalidArgument, "products of heads: an empty shape");
  if (weights.size() > kMaxProductHeads || from.width % 8 != 0) {
    return Status(ErrorCode::kUnsupported,
                  "products of heads: " + std::to_string(weights.size()) + " heads of " +
                      std::to_string(from.width) + " inputs; the GPU has up to " +
                      std::to_string(kMaxProductHeads) + " heads of a multiple of 8");
  }
  ProductCall call{};
  std::copy(weights.begin(), weights.end(), call.weights);
  call.x = x;
  call.y = y;
  call.y_cols = y_cols;
  call.from_stride = from.stride, call.from_first = from.first;
  call.to_stride = to.stride, call.to_first = to.first;
  call.rows = rows;
  call.in = static_cast<int>(from.width);
  call.out = static_cast<int>(to.width);
  call.heads = static_cast<int>(weights.size());
  int device = 0, limit = 0;
  BGTQ_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "products of heads"));
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "products of heads"));
  const bool low = x.full != nullptr ? x.split : x.low != nullptr;
  if (rows <= 16)
    return low ? LaunchFor<1, 1, true>(call, limit, stream) : LaunchFor<1, 1, false>(call, limit, stream);
  return low ? LaunchFor<4, 2, true>(call, limit, stream) : LaunchFor<4, 2, false>(call, limit, stream);
}

}  // namespace blockgtq::cuda
