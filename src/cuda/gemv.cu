// Checks a call of few rows, and launches the instance of the kernel that it needs.
#include <algorithm>

#include "src/cuda/gemv.cuh"
#include "src/cuda/gemv.h"
#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {
namespace {

// A group of 32 weight rows halves the reads of x and the barriers; worth it once so many of them, in percent
// of the processors, keep the memory busy.
constexpr int64_t kTwoTilesPercent = 55;

Status Invalid(const std::string& what) {
  return Status(ErrorCode::kInvalidArgument, "CUDA matrix product of few rows: " + what);
}

Status CheckCall(const GemvCall& call, int tiles) {
  if (call.items.empty() || call.items.size() > kGemvMaxItems) {
    return Invalid(std::to_string(call.items.size()) + " products in a call; it takes 1.." +
                   std::to_string(kGemvMaxItems));
  }
  if (call.rows < 1 || call.rows > (call.x_lo ? kGemvMaxRows / 2 : kGemvMaxRows)) {
    return Invalid(std::to_string(call.rows) + " rows");
  }
  if (call.in < 8 || call.in % 8 != 0 || call.in > INT32_MAX / 2) {
    return Invalid("an input of " + std::to_string(call.in) + " columns; it takes multiples of 8");
  }
  if (tiles != 1 && tiles != 2) return Invalid(std::to_string(tiles) + " tiles");
  for (const MatMulItem& item : call.items) {
    if (item.out < 1 || item.out > INT32_MAX / 2 || item.y_stride < item.out) {
      return Invalid("an output of " + std::to_string(item.out) + " columns, rows " +
                     std::to_string(item.y_stride) + " apart");
    }
  }
  return Status::Ok();
}

/// blocks: at most; with a short queue there is one a group.
template <int kTiles, int kColumnTiles, bool kShort = false>
Status LaunchShape(const GemvParams& params, int blocks, bool early, cudaStream_t stream) {
  const int shared_bytes = HasSm90Code() ? GemvShape<kTiles, kColumnTiles, true, kShort>::kSharedBytes
                                         : GemvShape<kTiles, kColumnTiles, false, kShort>::kSharedBytes;
  const auto kernel = GemvKernel<kTiles, kColumnTiles, kShort>;
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                 "the shared memory of a matrix product"));
  return Launch("a matrix product of few rows", kernel, std::min(params.groups, blocks), kGemvThreads,
                shared_bytes, early, stream, params);
}

int64_t Groups(std::span<const MatMulItem> items, int tiles) {
  int64_t groups = 0;
  for (const MatMulItem& item : items) {
    groups += (item.out + tiles * kGemvTileRows - 1) / (tiles * kGemvTileRows);
  }
  return groups;
}

/// Whether `groups` of one tile, two blocks a processor, each hold all their weights in a short queue.
bool FitsShortQueues(int64_t groups, int64_t rows, bool has_low, int64_t in, int processors) {
  return HasSm90Code() && !has_low && rows <= kGemvColumns && groups <= 2 * processors &&
         in <= kGemvShortSteps * kGemvWarps * kGemvChunk;
}

}  // namespace

int ChooseGemvTiles(std::span<const MatMulItem> items, int64_t rows, bool has_low, int64_t in,
                    int processors) {
  if (FitsShortQueues(Groups(items, 1), rows, has_low, in, processors)) return 1;
  return Groups(items, 2) * 100 >= kTwoTilesPercent * processors ? 2 : 1;
}

Status LaunchGemv(const GemvCall& call, int tiles, int processors, bool early, CUstream_st* stream) {
  BGTQ_RETURN_IF_ERROR(CheckCall(call, tiles));
  GemvParams params = {};
  int64_t groups = 0;
  const int64_t group_rows = tiles * kGemvTileRows;
  for (size_t i = 0; i < call.items.size(); ++i) {
    const MatMulItem& item = call.items[i];
    params.item[i] = {item.weight,
                      item.bias,
                      item.y,
                      item.y_stride,
                      static_cast<int32_t>(item.out),
                      static_cast<int32_t>(groups),
                      item.alpha,
                      item.accumulate};
    groups += (item.out + group_rows - 1) / group_rows;
  }
  params.items = static_cast<int32_t>(call.items.size());
  params.groups = static_cast<int32_t>(groups);
  params.rows = static_cast<int32_t>(call.rows);
  params.in = static_cast<int32_t>(call.in);
  params.x[0] = call.x_hi;
  params.x_rows[0] = static_cast<int32_t>(std::min<int64_t>(call.rows, kGemvColumns));
  const bool has_low = call.x_lo != nullptr;
  const bool two = has_low || call.rows > kGemvColumns;
  if (two) {
    params.x[1] = has_low ? call.x_lo : call.x_hi + kGemvColumns * call.in;
    params.x_rows[1] = static_cast<int32_t>(has_low ? call.rows : call.rows - kGemvColumns);
  }
  params.second_scale = has_low ? 1.0f / kLowHalfScale : 0.0f;
  if (tiles == 1) {
    if (FitsShortQueues(groups, call.rows, has_low, call.in, processors)) {
      return LaunchShape<1, 1, true>(params, params.groups, early, stream);
    }
    return two ? LaunchShape<1, 2>(params, processors, early, stream)
               : LaunchShape<1, 1>(params, processors, early, stream);
  }
  return two ? LaunchShape<2, 2>(params, processors, early, stream)
             : LaunchShape<2, 1>(params, processors, early, stream);
}

}  // namespace blockgtq::cuda
