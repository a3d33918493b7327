// Attention by the library kernel (attention_op.h): a prompt's chunk over its packed prefix, unpacked, and
// the fp16 cache.
#include <cuda_runtime.h>

#include <algorithm>

#include "src/cuda/attention_op.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/merge.h"
#include "src/cuda/window_rows.h"

namespace blockgtq::cuda {

Status AttentionOp::Unpack(const Segment& s, int layer, int64_t first, int64_t count, uint16_t* keys,
                           uint16_t* values) {
  if (count == 0) return Status::Ok();
  UnpackParams params = codec_.Unpack(layer);
  params.first = first;
  params.count = count;
  params.coded_end = s.coded;
  params.block_table = batch_.block_table(cache_.group_of(layer), s.table_row);
  params.exact = reinterpret_cast<const uint8_t*>(cache_.exact_base(s.sequence));
  params.keys = keys;
  params.values = values;
  return LaunchUnpack(params, false, device_.stream());
}

/// Room for so many tokens' keys and values, and for what a library kernel may multiply by zero behind them.
Status AttentionOp::ReservePrefix(int64_t tokens) {
  constexpr int64_t kSlackTokens = 128;
  const CacheGeometry& g = cache_.geometry();
  const int64_t room =
      (tokens + kSlackTokens) * g.kv_heads * g.head_dim * static_cast<int64_t>(sizeof(uint16_t));
  for (DeviceBuffer* buffer : {&prefix_keys_, &prefix_values_}) {
    if (buffer->bytes() >= room) continue;
    BGTQ_RETURN_IF_ERROR(device_.Reserve(*buffer, room, "an unpacked prefix"));
    BGTQ_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(buffer->data(), 0, static_cast<size_t>(room), device_.stream()),
                   "clearing a buffer"));
  }
  return Status::Ok();
}

/// The first `bound` of those tokens.
HalfKeyValues AttentionOp::PrefixRows(int64_t bound) const {
  const CacheGeometry& g = cache_.geometry();
  HalfKeyValues rows;
  rows.keys = prefix_keys_.As<uint16_t>();
  rows.values = prefix_values_.As<uint16_t>();
  rows.token_stride = int64_t{g.kv_heads} * g.head_dim;
  rows.head_stride = g.head_dim;
  rows.outer_stride = bound * rows.token_stride;
  rows.max_tokens = bound;
  return rows;
}

/// A chunk of a prompt attends to its packed prefix, unpacked, and to its own rows in fp16. The last piece of
/// the prefix, which holds the exact tokens, goes together with the chunk; the others are merged in. Behind
/// a window there is one piece, of what the chunk sees and of what it encodes.
Status AttentionOp::AttendChunk(const AttentionCall& call, const AttentionRows& rows, const Segment& s) {
  const CacheGeometry& g = cache_.geometry();
  const bool cut = call.window > 0 && s.longest > call.window;
  const int64_t first_needed = std::min(s.position + 1 - call.window, s.coded) / kPageTokens * kPageTokens;
  const int64_t base = cut ? std::max<int64_t>(first_needed, 0) : s.scratch_first;
  const int64_t pieces_end = cut ? 0 : base;
  const int64_t kv_cols = int64_t{g.kv_heads} * g.head_dim;
  const int64_t own = s.position - base, tokens = s.longest - base;
  BGTQ_RETURN_IF_ERROR(ReservePrefix(std::max(tokens, pieces_end > 0 ? kPrefixTokens : 0)));
  uint16_t *keys = prefix_keys_.As<uint16_t>(), *values = prefix_values_.As<uint16_t>();
  // The ring still has the tokens before the chunk: they are taken out before new ones are stored.
  BGTQ_RETURN_IF_ERROR(Unpack(s, call.layer, base, own, keys, values));
  BGTQ_RETURN_IF_ERROR(Store(call, rows, s, keys, values, own));
  const int64_t encoded = (s.coded - base) * kv_cols;
  if (s.jobs > 0) BGTQ_RETURN_IF_ERROR(Encode(s, call.layer, 1, keys + encoded, values + encoded));

  BGTQ_ASSIGN_OR_RETURN(FlashAttention * flash, flash_());
  const int64_t q_offset = s.first_row * call.heads * g.head_dim, sums = s.rows * call.heads;
  PrefillCall chunk;
  chunk.heads = Heads(call);
  chunk.cache = PrefixRows(TokenBound(tokens));
  chunk.rows = s.rows;
  chunk.tokens = tokens;
  chunk.window = cut ? call.window : 0;
  chunk.queries = queries_.As<uint16_t>() + q_offset;
  chunk.out = rows.out + q_offset;
  if (pieces_end > 0) {
    const int64_t sum_bytes = sums * static_cast<int64_t>(sizeof(float));
    BGTQ_RETURN_IF_ERROR(device_.Reserve(log_sum_, sum_bytes, "a chunk's sums"));
    BGTQ_RETURN_IF_ERROR(device_.Reserve(part_log_sum_, sum_bytes, "a chunk's sums"));
    BGTQ_RETURN_IF_ERROR(device_.Reserve(
        part_out_, sums * g.head_dim * static_cast<int64_t>(sizeof(uint16_t)), "a chunk's partial output"));
    chunk.log_sum = log_sum_.As<float>();
  }
  BGTQ_RETURN_IF_ERROR(flash->Prefill(chunk, device_.stream()));
  for (int64_t first = 0; first < pieces_end; first += kPrefixTokens) {
    BGTQ_RETURN_IF_ERROR(Unpack(s, call.layer, first, kPrefixTokens, keys, values));
    PrefillCall part = chunk;
    part.cache.max_tokens = part.tokens = kPrefixTokens;
    part.causal = false;
    part.out = part_out_.As<uint16_t>();
    part.log_sum = part_log_sum_.As<float>();
    BGTQ_RETURN_IF_ERROR(flash->Prefill(part, device_.stream()));
    BGTQ_RETURN_IF_ERROR(LaunchMerge({chunk.out, chunk.log_sum}, {part.out, part.log_sum}, s.rows, call.heads,
                                     g.head_dim, chunk.out, chunk.log_sum, false, device_.stream()));
  }
  return Status::Ok();
}

AttentionHeads AttentionOp::Heads(const AttentionCall& call) const {
  return {call.heads, cache_.geometry().kv_heads, cache_.geometry().head_dim, call.scale};
}

/// Pages of the uncompressed cache: a head has K [64, D], then V [64, D].
HalfKeyValues AttentionOp::HalfPages(int layer, const Segment& s) const {
  const CacheGeometry& g = cache_.geometry();
  const int group = cache_.group_of(layer);
  HalfKeyValues pages;
  pages.keys = reinterpret_cast<const uint16_t*>(cache_.pool_base(group) + cache_.layer_offset(layer));
  pages.values = pages.keys + int64_t{kPageTokens} * g.head_dim;
  pages.token_stride = g.head_dim;
  pages.head_stride = int64_t{2} * kPageTokens * g.head_dim;
  pages.outer_stride = cache_.block_bytes(group) / static_cast<int64_t>(sizeof(uint16_t));
  pages.max_tokens = batch_.table_stride() * kPageTokens;
  pages.pages = cache_.options().max_tokens / kPageTokens;
  pages.block_table = batch_.block_table(group, s.table_row);
  pages.table_stride = batch_.table_stride();
  return pages;
}

Status AttentionOp::AttendHalf(const AttentionCall& call, const AttentionRows& rows, const Segment& s) {
  BGTQ_RETURN_IF_ERROR(Store(call, rows, s, nullptr, nullptr, 0));
  // Of a decode step the block tables' width alone is known before it is captured.
  const int64_t longest = batch_.decode() ? batch_.table_stride() * kPageTokens : s.longest;
  if (call.window > 0 && longest > call.window) return AttendHalfWindows(call, rows, s);
  BGTQ_ASSIGN_OR_RETURN(FlashAttention * flash, flash_());
  if (batch_.decode()) {
    DecodeCall decode;
    decode.heads = Heads(call);
    decode.cache = HalfPages(call.layer, s);
    decode.batch = static_cast<int>(s.rows);
    decode.lengths = batch_.length();
    decode.queries = queries_.As<uint16_t>();
    decode.out = rows.out;
    return flash->Decode(decode, device_.stream());
  }
  const int64_t q_offset = s.first_row * call.heads * cache_.geometry().head_dim;
  PrefillCall chunk;
  chunk.heads = Heads(call);
  chunk.cache = HalfPages(call.layer, s);
  chunk.rows = s.rows;
  chunk.tokens = s.longest;
  chunk.queries = queries_.As<uint16_t>() + q_offset;
  chunk.out = rows.out + q_offset;
  return flash->Prefill(chunk, device_.stream());
}

/// What is seen of fp16 pages goes to rows first. Those of a decoded token's window are all of its tokens; a
/// chunk's are cut by the library kernel.
Status AttentionOp::AttendHalfWindows(const AttentionCall& call, const AttentionRows& rows,
                                      const Segment& s) {
  constexpr int64_t kMostRowBytes = int64_t{256} << 20;  // of keys
  const CacheGeometry& g = cache_.geometry();
  const int64_t kv_cols = int64_t{g.kv_heads} * g.head_dim, q_cols = int64_t{call.heads} * g.head_dim;
  const bool decode = batch_.decode();
  const int64_t span =
      decode ? call.window : std::min(s.longest, call.window + s.rows - 1);  // what all rows see together
  // A chunk's varies, and each bound is a plan of the library's.
  const int64_t bound = decode ? (span + kPageTokens - 1) / kPageTokens * kPageTokens : TokenBound(span);
  const int64_t row_bytes = bound * kv_cols * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t at_once = decode ? std::clamp<int64_t>(kMostRowBytes / row_bytes, 1, s.rows) : 1;
  BGTQ_RETURN_IF_ERROR(ReservePrefix(at_once * bound));
  const int64_t count_bytes = at_once * static_cast<int64_t>(sizeof(int32_t));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(window_lengths_, count_bytes, "lengths of windows"));
  BGTQ_ASSIGN_OR_RETURN(FlashAttention * flash, flash_());

  const HalfKeyValues pages = HalfPages(call.layer, s);
  WindowRowsCall gather;
  gather.kv_heads = g.kv_heads;
  gather.head_dim = g.head_dim;
  gather.span = span;
  gather.page_keys = pages.keys;
  gather.page_values = pages.values;
  gather.page_stride = pages.outer_stride;
  gather.head_stride = pages.head_stride;
  gather.table_stride = pages.table_stride;
  gather.keys = prefix_keys_.As<uint16_t>();
  gather.values = prefix_values_.As<uint16_t>();
  gather.row_stride = bound * kv_cols;
  gather.counts = window_lengths_.As<int32_t>();
  if (!decode) {
    gather.sequences = 1;
    gather.lengths = batch_.length() + s.first_row + s.rows - 1;
    gather.block_table = pages.block_table;
    BGTQ_RETURN_IF_ERROR(LaunchWindowRows(gather, false, device_.stream()));
    PrefillCall chunk;
    chunk.heads = Heads(call);
    chunk.cache = PrefixRows(bound);
    chunk.rows = s.rows;
    chunk.tokens = span;
    chunk.window = call.window;
    chunk.queries = queries_.As<uint16_t>() + s.first_row * q_cols;
    chunk.out = rows.out + s.first_row * q_cols;
    return flash->Prefill(chunk, device_.stream());
  }
  for (int64_t first = 0; first < s.rows; first += at_once) {
    gather.sequences = std::min(at_once, s.rows - first);
    gather.lengths = batch_.length() + first;
    gather.block_table = pages.block_table + first * pages.table_stride;
    BGTQ_RETURN_IF_ERROR(LaunchWindowRows(gather, false, device_.stream()));
    DecodeCall part;
    part.heads = Heads(call);
    part.cache = PrefixRows(bound);
    part.batch = static_cast<int>(gather.sequences);
    part.lengths = gather.counts;
    part.queries = queries_.As<uint16_t>() + first * q_cols;
    part.out = rows.out + first * q_cols;
    BGTQ_RETURN_IF_ERROR(flash->Decode(part, device_.stream()));
  }
  return Status::Ok();
}

}  // namespace blockgtq::cuda
