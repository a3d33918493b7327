// See expert_mix.h. The products are the tensor cores' with 16 weight rows as one operand and 8 choices of an
// expert as the other; a block's warps divide the input dimension and meet in shared memory in a fixed order,
// so that a choice's result does not depend on what else its expert has to do.
#include <algorithm>
#include <string>

#include "src/cuda/expert_mix.h"
#include "src/cuda/halves.cuh"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kRouteThreads = 512;
constexpr int kExpertsPerLane = kMaxExperts / 32;

struct Choice {
  float logit;
  int expert;
};
// The larger logit, of equals the lower expert.
__device__ __forceinline__ bool Before(Choice a, Choice b) {
  return a.logit > b.logit || (a.logit == b.logit && a.expert < b.expert);
}

// A row's experts in order, by one warp; lane i has the i-th. Returns the lane's expert and sets its weight.
__device__ __forceinline__ int ChooseExperts(const float* row, int experts, int chosen, bool renormalise,
                                             float scale, int lane, float* weight) {
  float logits[kExpertsPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    const int e = lane + 32 * i;
    const float x = e < experts ? row[e] : -INFINITY;
    logits[i] = x == x ? x : -INFINITY;  // a NaN comes last
    largest = fmaxf(largest, logits[i]);
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  float total = 0;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    if (lane + 32 * i < experts) total += expf(logits[i] - largest);
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(~0u, total, o);

  Choice last = {INFINITY, -1};
  int mine = 0;
  float power = 0;
#pragma unroll 1
  for (int place = 0; place < chosen; ++place) {
    Choice best = {-INFINITY, kMaxExperts};
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
      const Choice c = {logits[i], lane + 32 * i};
      if (c.expert < experts && Before(last, c) && Before(c, best)) best = c;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
      const Choice other = {__shfl_xor_sync(~0u, best.logit, o), __shfl_xor_sync(~0u, best.expert, o)};
      if (Before(other, best)) best = other;
    }
    last = best;
    if (lane == place) {
      mine = best.expert;
      power = expf(best.logit - largest);
    }
  }
  float taken = power;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) taken += __shfl_xor_sync(~0u, taken, o);
  *weight = scale * power / (renormalise ? taken : total);
  return mine;
}

// One block: the choices, their counts by expert, and the choices in the order of their experts. (Within an
// expert the order is that of arrival; nothing depends on it.)
__global__ void __launch_bounds__(kRouteThreads)
    RouteKernel(const float* logits, bool renormalise, float scale, ExpertRoutes routes) {
  __shared__ int counts[kMaxExperts];
  __shared__ int starts[kMaxExperts];
  const int thread = threadIdx.x, lane = thread & 31, warp = WarpIndex();
  const int experts = routes.experts, chosen = routes.chosen;
  if (thread < kMaxExperts) counts[thread] = 0;
  WaitForPreviousKernel();
  LetNextKernelStart();
  __syncthreads();
#pragma unroll 1
  for (int64_t row = warp; row < routes.rows; row += kRouteThreads / 32) {
    float weight;
    const int expert =
        ChooseExperts(logits + row * experts, experts, chosen, renormalise, scale, lane, &weight);
    if (lane < chosen) {
      routes.expert[row * chosen + lane] = expert;
      routes.weight[row * chosen + lane] = weight;
      atomicAdd(&counts[expert], 1);
    }
  }
  __syncthreads();
  if (warp == 0) {
    int choices = 0, used = 0;  // of the lane's experts, which are consecutive
    for (int i = 0; i < kExpertsPerLane; ++i) {
      const int count = counts[lane * kExpertsPerLane + i];
      choices += count;
      used += count > 0;
    }
    int first = choices, place = used;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int a = __shfl_up_sync(~0u, first, o), b = __shfl_up_sync(~0u, place, o);
      first += lane >= o ? a : 0;
      place += lane >= o ? b : 0;
    }
    if (lane == 31) *routes.group_count = place;
    first -= choices;
    place -= used;
    for (int i = 0; i < kExpertsPerLane; ++i) {
      const int expert = lane * kExpertsPerLane + i, count = counts[expert];
      starts[expert] = first;
      if (count > 0) routes.groups[place++] = {expert, first, count};
      first += count;
    }
  }
  __syncthreads();
  const int64_t choices = routes.rows * chosen;
  for (int64_t c = thread; c < choices; c += kRouteThreads) {
    routes.grouped[atomicAdd(&starts[routes.expert[c]], 1)] = static_cast<int32_t>(c);
  }
}

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTileRows = 16, kColumns = 8, kChunk = 32;

struct ExpertParams {
  const uint16_t* weights[2][kMaxExperts];  // gates and ups; downs alone
  ExpertRoutes routes;
  const uint16_t *x_hi, *x_lo;
  float alpha;        // of a product
  int32_t x_divisor;  // x's row of a choice is choice / x_divisor
  int32_t in, out, tiles;
  uint16_t *hi, *lo;  // of gated products
  float* y;           // of others
};

// Two tiles of weight rows: the same rows of gate and up (kGated), or 32 rows of one matrix.
template <int kColumnTiles, bool kLow, bool kGated, GateFunction kFunction>
__global__ void __launch_bounds__(kThreads) ExpertKernel(const __grid_constant__ ExpertParams p) {
  constexpr int kColumnsAll = kColumns * kColumnTiles;
  __shared__ float partial[kWarps][2][kColumnsAll][kTileRows];
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int tile = blockIdx.x % p.tiles, place = blockIdx.x / p.tiles;
  if (place >= *p.routes.group_count) return;
  const ExpertGroup group = p.routes.groups[place];
  const int first_row = tile * (kGated ? kTileRows : 2 * kTileRows);
  const uint16_t* row[4];  // rows past the matrix repeat its last one
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int r = first_row + g + 8 * (kGated ? j & 1 : j);
    row[j] = p.weights[kGated ? j >> 1 : 0][group.expert] + static_cast<int64_t>(min(r, p.out - 1)) * p.in;
  }

#pragma unroll 1
  for (int first = 0; first < group.count; first += kColumnsAll) {
    int64_t x_at[kColumnTiles];  // elements; -1: no choice
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int column = first + kColumns * n + g;
      x_at[n] =
          column < group.count ? int64_t{p.routes.grouped[group.first + column] / p.x_divisor} * p.in : -1;
    }
    float sum[2][kColumnTiles][4] = {}, low[2][kColumnTiles][4] = {};
    constexpr uint4 kZero = {0, 0, 0, 0};
#pragma unroll 2
    for (int c = warp; c * kChunk < p.in; c += kWarps) {
      const int k = c * kChunk + 8 * t;
      const bool live = k < p.in;
      uint4 w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        w[j] = live ? __ldg(reinterpret_cast<const uint4*>(row[j] + k)) : kZero;
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const bool has = live && x_at[n] >= 0;
        const auto multiply = [&](const uint16_t* from, float(*to)[kColumnTiles][4]) {
          const uint4 x = has ? *reinterpret_cast<const uint4*>(from + x_at[n] + k) : kZero;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint4 &a = w[2 * i], &b = w[2 * i + 1];
            MmaF16(to[i][n], make_uint4(a.x, b.x, a.y, b.y), x.x, x.y);
            MmaF16(to[i][n], make_uint4(a.z, b.z, a.w, b.w), x.z, x.w);
          }
        };
        multiply(p.x_hi, sum);
        if constexpr (kLow) multiply(p.x_lo, low);
      }
    }
    if (first > 0) __syncthreads();  // the partial sums before have been read
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float value = kLow ? fmaf(low[i][n][j], 1.0f / kLowHalfScale, sum[i][n][j]) : sum[i][n][j];
          partial[warp][i][kColumns * n + 2 * t + (j & 1)][g + 8 * (j >> 1)] = value;
        }
      }
    }
    __syncthreads();
    const auto total = [&](int i, int column, int r) {
      float s = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) s += partial[w][i][column][r];
      return s * p.alpha;
    };
    for (int e = thread; e < kColumnsAll * kTileRows; e += kThreads) {
      const int r = e % kTileRows, column = e / kTileRows;
      if (first + column >= group.count) break;
      const int64_t choice = p.routes.grouped[group.first + first + column];
      if constexpr (kGated) {
        if (first_row + r >= p.out) continue;
        const float value = Gated<kFunction>(total(0, column, r), total(1, column, r));
        const int64_t at = choice * p.out + first_row + r;
        const __half high = __float2half(value);
        reinterpret_cast<__half*>(p.hi)[at] = high;
        if constexpr (kLow)
          reinterpret_cast<__half*>(p.lo)[at] = __float2half((value - __half2float(high)) * kLowHalfScale);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int m = first_row + kTileRows * i + r;
          if (m < p.out) p.y[choice * p.out + m] = total(i, column, r);
        }
      }
    }
  }
}

constexpr int kCombineThreads = 256;

__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const float* out, const float* weights, int chosen, int64_t vectors, int64_t all,
                  float* y) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x;
  if (i >= all) return;
  const int64_t row = i / vectors, at = i % vectors;
  float4 sum = reinterpret_cast<const float4*>(y)[i];
#pragma unroll 4
  for (int c = 0; c < chosen; ++c) {
    const int64_t choice = row * chosen + c;
    const float w = weights[choice];
    const float4 v = reinterpret_cast<const float4*>(out)[choice * vectors + at];
    sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w));
  }
  reinterpret_cast<float4*>(y)[i] = sum;
}

Status CheckMixture(const ExpertRoutes& r, int64_t in, int64_t multiple) {
  const auto refuse = [](const std::string& what) {
    return Status(ErrorCode::kUnsupported, "CUDA mixture of experts: " + what);
  };
  if (r.experts < 1 || r.experts > kMaxExperts) {
    return refuse(std::to_string(r.experts) + " experts; the kernels take up to " +
                  std::to_string(kMaxExperts));
  }
  if (r.chosen < 1 || r.chosen > kMaxChosen || r.chosen > r.experts) {
    return refuse(std::to_string(r.chosen) + " experts a row; the kernels take up to " +
                  std::to_string(std::min<int>(kMaxChosen, r.experts)));
  }
  if (r.rows < 1 || r.rows * r.chosen > INT32_MAX) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA mixture of experts: a batch of " + std::to_string(r.rows) + " rows");
  }
  if (in < 1 || in % multiple != 0) {
    return refuse(std::to_string(in) + " columns; the kernels take multiples of " + std::to_string(multiple));
  }
  return Status::Ok();
}

// Choices that share a read of an expert's weights: more where an expert has many.
bool ManyRows(const ExpertRoutes& r) { return r.rows * r.chosen > int64_t{kColumns} * r.experts; }

template <int kColumnTiles, bool kGated, GateFunction kFunction>
auto ChooseLow(bool low) {
  return low ? ExpertKernel<kColumnTiles, true, kGated, kFunction>
             : ExpertKernel<kColumnTiles, false, kGated, kFunction>;
}
template <bool kGated, GateFunction kFunction>
auto ChooseKernel(bool many, bool low) {
  return many ? ChooseLow<4, kGated, kFunction>(low) : ChooseLow<1, kGated, kFunction>(low);
}

Status LaunchProducts(void (*kernel)(ExpertParams), ExpertParams& p, const ExpertInput& x,
                      const ExpertRoutes& routes, int64_t in, int64_t out, int tile_rows, bool early,
                      CUstream_st* stream) {
  p.routes = routes;
  p.x_hi = x.hi;
  p.x_lo = x.lo;
  p.in = static_cast<int32_t>(in);
  p.out = static_cast<int32_t>(out);
  p.tiles = static_cast<int32_t>((out + tile_rows - 1) / tile_rows);
  const int64_t groups = std::min<int64_t>(routes.rows * routes.chosen, routes.experts);
  return Launch("mixture of experts", kernel, groups * p.tiles, kThreads, 0, early, stream, p);
}

}  // namespace

Status LaunchRouteExperts(const float* logits, bool renormalise, float scale, const ExpertRoutes& routes,
                          bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckMixture(routes, 1, 1));
  return Launch("choice of experts", RouteKernel, 1, kRouteThreads, 0, early, stream, logits, renormalise,
                scale, routes);
}

Status LaunchExpertGate(std::span<const uint16_t* const> gates, std::span<const uint16_t* const> ups,
                        GateFunction function, const ExpertInput& x, const ExpertRoutes& routes, int64_t in,
                        int64_t inner, uint16_t* hi, uint16_t* lo, bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckMixture(routes, in, 8));
  ExpertParams p{};
  std::copy(gates.begin(), gates.end(), p.weights[0]);
  std::copy(ups.begin(), ups.end(), p.weights[1]);
  p.alpha = x.scale;
  p.x_divisor = routes.chosen;
  p.hi = hi;
  p.lo = lo;
  const bool many = ManyRows(routes), low = x.lo != nullptr;
  const auto kernel = function == GateFunction::kSilu
                          ? ChooseKernel<true, GateFunction::kSilu>(many, low)
                          : ChooseKernel<true, GateFunction::kGeluTanh>(many, low);
  return LaunchProducts(kernel, p, x, routes, in, inner, kTileRows, early, stream);
}

Status LaunchExpertDown(std::span<const uint16_t* const> downs, const ExpertInput& inner_halves,
                        const ExpertRoutes& routes, int64_t inner, int64_t out_cols, float* out, bool early,
                        CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckMixture(routes, inner, 8));
  ExpertParams p{};
  std::copy(downs.begin(), downs.end(), p.weights[0]);
  p.alpha = inner_halves.scale;
  p.x_divisor = 1;
  p.y = out;
  const auto kernel = ChooseKernel<false, GateFunction::kSilu>(ManyRows(routes), inner_halves.lo != nullptr);
  return LaunchProducts(kernel, p, inner_halves, routes, inner, out_cols, 2 * kTileRows, early, stream);
}

Status LaunchCombineExperts(const float* out, const ExpertRoutes& routes, int64_t cols, float* y, bool early,
                            CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckMixture(routes, cols, 4));
  const int64_t vectors = cols / 4, all = routes.rows * vectors;
  return Launch("sum of experts", CombineKernel, (all + kCombineThreads - 1) / kCombineThreads,
                kCombineThreads, 0, early, stream, out, static_cast<const float*>(routes.weight),
                static_cast<int>(routes.chosen), vectors, all, y);
}

}  // namespace blockgtq::cuda
