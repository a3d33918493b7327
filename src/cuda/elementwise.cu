// Embedding, norm, the feed-forward's gate, conversions and row gathering: bound by latency for a few rows,
// by memory for many. Vector loads, a block a row where rows matter.
#include <algorithm>

#include "src/cuda/elementwise.h"
#include "src/cuda/halves.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256;
// Few enough registers in all that a block finds room beside those of a product of few rows.
constexpr int kNormThreads = 512;
constexpr int kMaxNormVectors = 8;  // of 4 floats, a thread

__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const uint16_t* table, const int32_t* tokens, int64_t cols, float* out) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t token = tokens[blockIdx.x];
  const uint4* row = reinterpret_cast<const uint4*>(table + token * cols);
  float4* to = reinterpret_cast<float4*>(out + blockIdx.x * cols);
  for (int64_t i = threadIdx.x; i < cols / 8; i += kThreads) {
    const uint4 v = row[i];
    to[2 * i] =
        Widen(Half4{*reinterpret_cast<const __half2*>(&v.x), *reinterpret_cast<const __half2*>(&v.y)});
    to[2 * i + 1] =
        Widen(Half4{*reinterpret_cast<const __half2*>(&v.z), *reinterpret_cast<const __half2*>(&v.w)});
  }
}

// kVectors: of 4 floats, that a thread keeps in registers. kAdd: the result is added to y.
template <int kVectors, bool kAdd>
__global__ void __launch_bounds__(kNormThreads)
    RmsNormKernel(const float* x, const float* weight, float epsilon, int32_t cols, uint16_t* hi,
                  uint16_t* lo, float* y) {
  LetNextKernelStart();
  __shared__ float warp_sum[kNormThreads / 32];
  const int vectors = cols / 4, threads = blockDim.x, warps = threads >> 5;
  float4 w[kVectors], v[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = threadIdx.x + j * threads;
    w[j] = i < vectors ? __ldg(reinterpret_cast<const float4*>(weight) + i) : make_float4(0, 0, 0, 0);
  }
  WaitForPreviousKernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * vectors;
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = threadIdx.x + j * threads;
    v[j] = i < vectors ? reinterpret_cast<const float4*>(x)[first + i] : make_float4(0, 0, 0, 0);
    sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if ((threadIdx.x & 31) == 0) warp_sum[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = static_cast<int>(threadIdx.x & 31) < warps ? warp_sum[threadIdx.x & 31] : 0.0f;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(cols) + epsilon);
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = threadIdx.x + j * threads;
    if (i >= vectors) continue;
    const float4 out = make_float4(v[j].x * factor * w[j].x, v[j].y * factor * w[j].y,
                                   v[j].z * factor * w[j].z, v[j].w * factor * w[j].w);
    if (hi) StoreHalves(out, first + i, hi, lo);
    if (!y) continue;
    float4* to = reinterpret_cast<float4*>(y) + first + i;
    if constexpr (kAdd) {
      const float4 base = *to;
      *to = make_float4(base.x + out.x, base.y + out.y, base.z + out.z, base.w + out.w);
    } else {
      *to = out;
    }
  }
}

template <GateFunction kFunction>
__global__ void __launch_bounds__(kThreads)
    GateKernel(const float* gate, const float* up, int64_t vectors, uint16_t* hi, uint16_t* lo) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const float4 g = reinterpret_cast<const float4*>(gate)[i], u = reinterpret_cast<const float4*>(up)[i];
  StoreHalves(make_float4(Gated<kFunction>(g.x, u.x), Gated<kFunction>(g.y, u.y), Gated<kFunction>(g.z, u.z),
                          Gated<kFunction>(g.w, u.w)),
              i, hi, lo);
}

__global__ void __launch_bounds__(kThreads) ScaleKernel(float* x, float factor, int64_t vectors) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const float4 v = reinterpret_cast<const float4*>(x)[i];
  reinterpret_cast<float4*>(x)[i] = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

__global__ void __launch_bounds__(kThreads)
    SplitHalvesKernel(const float* x, int64_t vectors, uint16_t* hi, uint16_t* lo) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < vectors) StoreHalves(reinterpret_cast<const float4*>(x)[i], i, hi, lo);
}

__global__ void __launch_bounds__(kThreads)
    WidenKernel(const uint16_t* hi, const uint16_t* lo, int64_t vectors, float* y) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  float4 v = Widen(reinterpret_cast<const Half4*>(hi)[i]);
  if (lo) {
    const float4 l = Widen(reinterpret_cast<const Half4*>(lo)[i]);
    constexpr float kScale = 1.0f / kLowHalfScale;
    v = make_float4(fmaf(l.x, kScale, v.x), fmaf(l.y, kScale, v.y), fmaf(l.z, kScale, v.z),
                    fmaf(l.w, kScale, v.w));
  }
  reinterpret_cast<float4*>(y)[i] = v;
}

__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const uint4* x, int64_t vectors, const int32_t* indices, uint4* y) {
  LetNextKernelStart();
  WaitForPreviousKernel();
  const uint4* from = x + indices[blockIdx.x] * vectors;
  uint4* to = y + blockIdx.x * vectors;
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) to[i] = from[i];
}

Status CheckShape(const char* what, int64_t rows, int64_t cols, int64_t multiple) {
  if (rows < 1 || cols < 1 || rows > INT32_MAX) {
    return Status(ErrorCode::kInvalidArgument, std::string("CUDA ") + what + ": nothing to compute");
  }
  if (cols % multiple != 0) {
    return Status(ErrorCode::kUnsupported, std::string("CUDA ") + what + ": " + std::to_string(cols) +
                                               " elements; the kernel takes multiples of " +
                                               std::to_string(multiple));
  }
  return Status::Ok();
}

int64_t Blocks(int64_t vectors) { return (vectors + kThreads - 1) / kThreads; }

template <bool kAdd>
Status LaunchNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t cols,
                  uint16_t* hi, uint16_t* lo, float* y, bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("RMS norm", rows, cols, 4));
  const int64_t vectors = cols / 4;
  const int threads = static_cast<int>(std::min<int64_t>(kNormThreads, (vectors + 31) / 32 * 32));
  const int64_t held = (vectors + threads - 1) / threads;
  if (held > kMaxNormVectors) {
    return Status(ErrorCode::kUnsupported, "CUDA RMS norm: " + std::to_string(cols) +
                                               " columns; the kernel takes up to " +
                                               std::to_string(4 * kMaxNormVectors * kNormThreads));
  }
  const auto kernel = held == 1   ? RmsNormKernel<1, kAdd>
                      : held == 2 ? RmsNormKernel<2, kAdd>
                                  : RmsNormKernel<8, kAdd>;
  return Launch("RMS norm", kernel, rows, threads, 0, early, stream, x, weight, epsilon,
                static_cast<int32_t>(cols), hi, lo, y);
}

}  // namespace

Status LaunchEmbed(const uint16_t* table, const int32_t* tokens, int64_t rows, int64_t cols, float* out,
                   bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("embedding", rows, cols, 8));
  return Launch("embedding", EmbedKernel, rows, kThreads, 0, early, stream, table, tokens, cols, out);
}

Status LaunchRmsNorm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t cols,
                     uint16_t* hi, uint16_t* lo, float* y, bool early, CUstream_st* stream) {
  return LaunchNorm<false>(x, weight, epsilon, rows, cols, hi, lo, y, early, stream);
}

Status LaunchRmsNormAdd(const float* y, const float* weight, float epsilon, int64_t rows, int64_t cols,
                        float* x, bool early, CUstream_st* stream) {
  return LaunchNorm<true>(y, weight, epsilon, rows, cols, nullptr, nullptr, x, early, stream);
}

Status LaunchGate(GateFunction function, const float* gate, const float* up, int64_t count, uint16_t* hi,
                  uint16_t* lo, bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("gate", 1, count, 4));
  const auto kernel =
      function == GateFunction::kSilu ? GateKernel<GateFunction::kSilu> : GateKernel<GateFunction::kGeluTanh>;
  return Launch("gate", kernel, Blocks(count / 4), kThreads, 0, early, stream, gate, up, count / 4, hi, lo);
}

Status LaunchScale(float* x, float factor, int64_t count, bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("scaling", 1, count, 4));
  return Launch("scaling", ScaleKernel, Blocks(count / 4), kThreads, 0, early, stream, x, factor, count / 4);
}

Status LaunchSplitHalves(const float* x, int64_t count, uint16_t* hi, uint16_t* lo, bool early,
                         CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("rounding to fp16", 1, count, 4));
  return Launch("rounding to fp16", SplitHalvesKernel, Blocks(count / 4), kThreads, 0, early, stream, x,
                count / 4, hi, lo);
}

Status LaunchWiden(const uint16_t* hi, const uint16_t* lo, int64_t count, float* y, bool early,
                   CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("widening", 1, count, 4));
  return Launch("widening", WidenKernel, Blocks(count / 4), kThreads, 0, early, stream, hi, lo, count / 4, y);
}

Status LaunchGatherRows(const void* x, int64_t row_bytes, const int32_t* indices, int64_t rows, void* y,
                        bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckShape("gathering rows", rows, row_bytes, 16));
  return Launch("gathering rows", GatherRowsKernel, rows, kThreads, 0, early, stream,
                static_cast<const uint4*>(x), row_bytes / 16, indices, static_cast<uint4*>(y));
}

}  // namespace blockgtq::cuda
