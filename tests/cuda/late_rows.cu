// See late_rows.h.
#include "tests/cuda/late_rows.h"

#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {
namespace {

constexpr int kMostRows = 3;
constexpr long long kDelayCycles = 200'000;  // 100 us at 2 GHz: kernels behind have started by then

struct LateCopies {
  LateCopy rows[kMostRows];
};

__global__ void LateRowsKernel(LateCopies copies) {
  LetNextKernelStart();
  for (const long long start = clock64(); clock64() - start < kDelayCycles;) continue;
  for (const LateCopy& c : copies.rows) {
    for (int64_t i = threadIdx.x; i < c.words; i += blockDim.x) c.to[i] = c.from[i];
  }
}

}  // namespace

Status LaunchLateRows(const std::vector<LateCopy>& rows, cudaStream_t stream) {
  if (rows.size() > kMostRows) return Status(ErrorCode::kInvalidArgument, "late rows: too many arrays");
  LateCopies copies = {};
  for (size_t i = 0; i < rows.size(); ++i) copies.rows[i] = rows[i];
  return Launch("late rows", LateRowsKernel, 1, 256, 0, false, stream, copies);
}

}  // namespace blockgtq::cuda
