// A thread owns one frequency block (two channels) of a row and walks over heads: it computes the angle once.
// Angles are integers of 2^-64 turns, so that position * step wraps exactly; what is left is one rounding of
// a fraction of a turn to fp32.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/cuda/elementwise_rope.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/rope_rows.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks that are worth more than computing an angle once for several heads.
constexpr int64_t kEnoughBlocks = 4096;

__device__ __forceinline__ void StorePage(const RopeStoreCall& p, const RowTarget& target, bool is_value,
                                          int head, int d, __half2 pair) {
  static_assert(kMostPageGroups == 2);
  const int page = p.group == 0 ? target.page[0] : target.page[1];
  if (page < 0) return;
  __half* out = reinterpret_cast<__half*>(p.pool + page * p.page_bytes +
                                          static_cast<int64_t>(head) * 4 * p.head_dim * kPageSlots);
  const int slot = (is_value ? kPageSlots : 0) + target.position % kPageSlots;
  *reinterpret_cast<__half2*>(out + slot * p.head_dim + d) = pair;
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) RopeStoreKernel(const __grid_constant__ RopeStoreCall p) {
  constexpr int kBlocks = kHeadDim / 2, kLanes = kThreads / kBlocks;  // heads at a time
  const int j = threadIdx.x % kBlocks;
  const int64_t row = blockIdx.x % p.rows;
  const int part = static_cast<int>(blockIdx.x / p.rows), parts = static_cast<int>(gridDim.x / p.rows);
  const RopeChannels at = ChannelsOf(j, p.rotary_dims, p.neox);
  const uint64_t step = __ldg(p.steps + j);
  LetNextKernelStart();
  const RowTarget target = p.targets[row];
  const float2 turn = RopeTurn(target.position, step, j, p.rotary_dims, p.attention_factor);
  WaitForPreviousKernel();
  const int vectors = p.heads + 2 * p.kv_heads;
  for (int i = part * kLanes + threadIdx.x / kBlocks; i < vectors; i += parts * kLanes) {
    const bool is_query = i < p.heads, is_value = i >= p.heads + p.kv_heads;
    const int head = is_query ? i : (i - p.heads) % p.kv_heads;
    const int width = is_query ? p.heads : p.kv_heads;
    const int64_t vector = (row * width + head) * kHeadDim;
    float2 xy;
    if (is_value) {
      xy = *reinterpret_cast<const float2*>(p.v + vector + 2 * j);
    } else {
      const float* in = (is_query ? p.q : p.k) + vector;
      xy = Turned(in[at.x], in[at.y], turn);
    }
    if (!Within(xy, is_query ? kLargestHalf : kLargestStored)) atomicMin(p.error, target.position);
    const __half2 pair = __floats2half2_rn(xy.x, xy.y);
    uint16_t* out = is_query ? p.q_out : is_value ? p.v_out : p.k_out;
    if (out) *reinterpret_cast<__half2*>(out + vector + 2 * j) = pair;
    if (is_query) continue;
    StoreExact(p, kHeadDim, target, is_value, head, 2 * j, pair);
    StorePage(p, target, is_value, head, 2 * j, pair);
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
