// The tokens that a sliding window still sees, out of the pages of an uncompressed cache: as rows, one after
// another, for library kernels that know pages but no window.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Device pointers unless said. Strides in elements, multiples of 8.
struct WindowRowsCall {
  int64_t sequences = 0;
  int32_t kv_heads = 0, head_dim = 0;  // head_dim: a multiple of 8
  int64_t span = 0;                    // the last tokens of a sequence that are wanted, where it has so many
  const int32_t* lengths = nullptr;    // [sequences] tokens

  // Token t of a sequence, KV head h: keys (values) at block_table[t / 64] * page_stride + h * head_stride +
  // (t % 64) * head_dim.
  const uint16_t *page_keys = nullptr, *page_values = nullptr;
  int64_t page_stride = 0, head_stride = 0;
  const int32_t* block_table = nullptr;  // [sequences][table_stride]; pages before the span are not read
  int64_t table_stride = 0;

  uint16_t *keys = nullptr, *values = nullptr;  // [sequences] row_stride apart: [span][kv_heads][head_dim]
  int64_t row_stride = 0;
  int32_t* counts = nullptr;  // [sequences] min(span, length): rows written
};

/// early: as LaunchEncode's. Errors: kInvalidArgument for an empty call, or sizes that are not multiples of
/// 8.
Status LaunchWindowRows(const WindowRowsCall& call, bool early, CUstream_st* stream);

}  // namespace blockgtq::cuda
