// See phase_table.h.
#include <cuda_fp16.h>

#include <cmath>
#include <numbers>

#include "src/cuda/launch.cuh"
#include "src/cuda/phase_table.h"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256;

// A thread has one block of one half tile.
__global__ void __launch_bounds__(kThreads)
    PhaseTableKernel(const uint64_t* steps, int blocks, int64_t first_row, int64_t count, __half2* table) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int block = static_cast<int>(i % blocks);
  const int64_t row = i / blocks;
  // Whole turns drop out; what is left is exact to 2^-43 turns at a million tokens.
  const uint64_t turns =
      steps[block] * static_cast<uint64_t>(2 * kHalfTile * (first_row + row) + kHalfTile - 1);
  double sine, cosine;
  sincospi(static_cast<double>(static_cast<int64_t>(turns)) * 0x1p-63, &sine, &cosine);
  const __half2 high = __floats2half2_rn(static_cast<float>(cosine), static_cast<float>(sine));
  const float2 rounded = __half22float2(high);
  __half2* to =
      table + (row / 2 * (blocks / 8) + block / 8) * 32 + block % 4 * 4 + block / 4 % 2 * 2 + row % 2;
  to[0] = high;
  to[16] = __floats2half2_rn(static_cast<float>(cosine - rounded.x), static_cast<float>(sine - rounded.y));
}

}  // namespace

std::vector<uint64_t> HalfTokenSteps(const RopeConfig& rope) {
  std::vector<uint64_t> steps;
  for (double radians : RopeFrequencies(rope)) {
    const long double turns =
        std::fmod(static_cast<long double>(radians) / (4 * std::numbers::pi_v<long double>), 1.0L);
    steps.push_back(static_cast<uint64_t>(std::roundl(turns * 0x1p64L)));
  }
  return steps;
}

Status LaunchPhaseTable(const uint64_t* steps, int head_dim, int64_t first_tile, int64_t tiles,
                        uint16_t* table, CUstream_st* stream) {
  const int blocks = head_dim / 2;
  const int64_t count = 2 * tiles * blocks;
  if (count <= 0) return Status::Ok();
  return Launch("phases of a key mean", PhaseTableKernel, (count + kThreads - 1) / kThreads, kThreads, 0,
                false, stream, steps, blocks, 2 * first_tile, count, reinterpret_cast<__half2*>(table));
}

}  // namespace blockgtq::cuda
