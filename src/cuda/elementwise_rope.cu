// A thread owns one frequency block (two channels) of a row and walks over heads: it computes the angle once.
// Angles are integers of 2^-64 turns, so that position * step wraps exactly; what is left is one rounding of
// a fraction of a turn to fp32.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/cuda/elementwise_rope.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPageSlots = 64;  // tokens a window tile or page
constexpr float kLargestHalf = 65504.0f, kLargestStored = kLargestHalf / 2;
// Blocks that are worth more than computing an angle once for several heads.
constexpr int64_t kEnoughBlocks = 4096;

__device__ __forceinline__ void StoreExact(const RopeStoreCall& p, const RowTarget& target, bool is_value,
                                           int head, int d, __half2 pair) {
  const int slot = target.position % kPageSlots;
  const auto store = [&](uint8_t* tile, int tokens, int at) {
    __half* out = reinterpret_cast<__half*>(tile);
    if (is_value) {
      *reinterpret_cast<__half2*>(out + tokens * p.head_dim + at * p.head_dim + d) = pair;
    } else {
      out[d * tokens + at] = __low2half(pair);
      out[(d + 1) * tokens + at] = __high2half(pair);
    }
  };
  if (target.exact && target.window_tile >= 0) {
    const int64_t tile = static_cast<int64_t>(head) * p.window_tiles + target.window_tile;
    store(target.exact + p.window_offset + tile * 4 * p.head_dim * kPageSlots, kPageSlots, slot);
  }
  if (target.exact && target.sink_slot >= 0) {
    store(target.exact + p.sink_offset + static_cast<int64_t>(head) * 4 * p.head_dim * p.sink_tile_tokens,
          p.sink_tile_tokens, target.sink_slot);
  }
  static_assert(kMostPageGroups == 2);
  const int page = p.group == 0 ? target.page[0] : target.page[1];
  if (page >= 0) {
    __half* out = reinterpret_cast<__half*>(p.pool + page * p.page_bytes +
                                            static_cast<int64_t>(head) * 4 * p.head_dim * kPageSlots);
    *reinterpret_cast<__half2*>(out + ((is_value ? kPageSlots : 0) + slot) * p.head_dim + d) = pair;
  }
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) RopeStoreKernel(const __grid_constant__ RopeStoreCall p) {
  constexpr int kBlocks = kHeadDim / 2, kLanes = kThreads / kBlocks;  // heads at a time
  const int j = threadIdx.x % kBlocks;
  const int64_t row = blockIdx.x % p.rows;
  const int part = static_cast<int>(blockIdx.x / p.rows), parts = static_cast<int>(gridDim.x / p.rows);
  const bool rotates = 2 * j < p.rotary_dims;
  const int x_at = rotates && p.neox ? j : 2 * j;
  const int y_at = rotates && p.neox ? j + p.rotary_dims / 2 : 2 * j + 1;
  const uint64_t step = __ldg(p.steps + j);
  LetNextKernelStart();
  const RowTarget target = p.targets[row];
  float cosine = 1, sine = 0;
  if (rotates) {
    const uint64_t phase = static_cast<uint64_t>(target.position) * step;
    // High word, signed: half turns in [-1, 1) times 2^31.
    sincospif(static_cast<float>(static_cast<int32_t>(phase >> 32)) * 0x1p-31f, &sine, &cosine);
    cosine *= p.attention_factor;
    sine *= p.attention_factor;
  }
  WaitForPreviousKernel();
  const int vectors = p.heads + 2 * p.kv_heads;
  for (int i = part * kLanes + threadIdx.x / kBlocks; i < vectors; i += parts * kLanes) {
    const bool is_query = i < p.heads, is_value = i >= p.heads + p.kv_heads;
    const int head = is_query ? i : (i - p.heads) % p.kv_heads;
    const int width = is_query ? p.heads : p.kv_heads;
    const int64_t vector = (row * width + head) * kHeadDim;
    float x, y;
    if (is_value) {
      const float2 pair = *reinterpret_cast<const float2*>(p.v + vector + 2 * j);
      x = pair.x;
      y = pair.y;
    } else {
      const float* in = (is_query ? p.q : p.k) + vector;
      const float a = in[x_at], b = in[y_at];
      x = a * cosine - b * sine;
      y = a * sine + b * cosine;
    }
    const float limit = is_query ? kLargestHalf : kLargestStored;
    if (!(fabsf(x) <= limit && fabsf(y) <= limit)) atomicMin(p.error, target.position);
    const __half2 pair = __floats2half2_rn(x, y);
    uint16_t* out = is_query ? p.q_out : is_value ? p.v_out : p.k_out;
    if (out) *reinterpret_cast<__half2*>(out + vector + 2 * j) = pair;
    if (!is_query) StoreExact(p, target, is_value, head, 2 * j, pair);
  }
}

}  // namespace

std::vector<uint64_t> RopeSteps(const RopeConfig& config) {
  std::vector<uint64_t> steps;
  for (double radians : RopeFrequencies(config)) {
    const long double turns =
        std::fmod(static_cast<long double>(radians) / (2 * std::numbers::pi_v<long double>), 1.0L);
    steps.push_back(static_cast<uint64_t>(std::roundl(turns * 0x1p64L)));
  }
  return steps;
}

Status LaunchRopeStore(const RopeStoreCall& call, bool early, CUstream_st* stream) {
  if (call.rows < 1 || call.heads < 1 || call.kv_heads < 1) {
    return Status(ErrorCode::kInvalidArgument, "CUDA RoPE: an empty batch");
  }
  if (call.head_dim != 64 && call.head_dim != 128 && call.head_dim != 256) {
    return Status(ErrorCode::kUnsupported, "CUDA RoPE: head dim " + std::to_string(call.head_dim) +
                                               "; the kernel has 64, 128 and 256");
  }
  const int lanes = 2 * kThreads / call.head_dim;
  const int64_t most = (call.heads + 2 * call.kv_heads + lanes - 1) / lanes;
  const int64_t parts = std::max<int64_t>(1, std::min(most, kEnoughBlocks / call.rows));
  const auto kernel = call.head_dim == 64    ? RopeStoreKernel<64>
                      : call.head_dim == 128 ? RopeStoreKernel<128>
                                             : RopeStoreKernel<256>;
  return Launch("RoPE", kernel, call.rows * parts, kThreads, 0, early, stream, call);
}

}  // namespace blockgtq::cuda
