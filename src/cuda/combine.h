// Last kernel of a layer's decode attention: merges the workers' partials and the exact tiles, un-rotates V.
#pragma once

#include "blockgtq/status.h"
#include "src/cuda/decode_params.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Workers up to which a block a query head can merge: it has a thread for each.
inline constexpr int kMaxWholeSplits = 1024;

/// Writes params.out. A sequence without any token gets zeros.
/// by_kv_head: a block a (sequence, KV head), for batches that fill the machine so; otherwise one a query
/// head.
Status LaunchCombine(const DecodeParams& params, bool by_kv_head, CUstream_st* stream);

}  // namespace blockgtq::cuda
