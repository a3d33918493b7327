// A block copies kTokens rows of one sequence, 16 bytes a thread at a time.
#include "src/cuda/launch.cuh"
#include "src/cuda/ptx.cuh"
#include "src/cuda/window_rows.h"

namespace blockgtq::cuda {
namespace {

constexpr int kThreads = 256, kTokens = 16, kPageSlots = 64;
constexpr int kPiece = 8;  // elements of 16 bytes

__global__ void __launch_bounds__(kThreads) WindowRowsKernel(const __grid_constant__ WindowRowsCall p) {
  WaitForPreviousKernel();
  LetNextKernelStart();
  const int64_t parts = (p.span + kTokens - 1) / kTokens, sequence = blockIdx.x / parts;
  const int64_t first = blockIdx.x % parts * kTokens;  // row
  const int64_t length = p.lengths[sequence], count = min(length, p.span), start = length - count;
  if (first == 0 && threadIdx.x == 0) p.counts[sequence] = static_cast<int32_t>(count);
  const int head_pieces = p.head_dim / kPiece, row_pieces = p.kv_heads * head_pieces;
  const int rows = static_cast<int>(min(count - first, static_cast<int64_t>(kTokens)));
  const int32_t* table = p.block_table + sequence * p.table_stride;
  const int64_t to = sequence * p.row_stride + first * row_pieces * kPiece;
  for (int i = threadIdx.x; i < rows * row_pieces; i += kThreads) {
    const int64_t token = start + first + i / row_pieces;
    const int piece = i % row_pieces, head = piece / head_pieces;
    const int64_t from = table[token / kPageSlots] * p.page_stride + head * p.head_stride +
                         token % kPageSlots * p.head_dim + piece % head_pieces * kPiece;
    const int64_t at = to + int64_t{i} * kPiece;
    *reinterpret_cast<uint4*>(p.keys + at) = *reinterpret_cast<const uint4*>(p.page_keys + from);
    *reinterpret_cast<uint4*>(p.values + at) = *reinterpret_cast<const uint4*>(p.page_values + from);
  }
}

}  // namespace

Status LaunchWindowRows(const WindowRowsCall& call, bool early, CUstream_st* stream) {
  if (call.sequences < 1 || call.span < 1 || call.kv_heads < 1 || call.head_dim < 1) {
    return Status(ErrorCode::kInvalidArgument, "CUDA rows of a window: nothing to copy");
  }
  if (call.head_dim % kPiece != 0 || call.page_stride % kPiece != 0 || call.head_stride % kPiece != 0 ||
      call.row_stride % kPiece != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA rows of a window: head dim and strides must be multiples of 8");
  }
  const int64_t parts = (call.span + kTokens - 1) / kTokens;
  return Launch("rows of a window", WindowRowsKernel, call.sequences * parts, kThreads, 0, early, stream,
                call);
}

}  // namespace blockgtq::cuda
