// See attention_op.h.
#include "src/cuda/attention_op.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numbers>

#include "src/cuda/launch.cuh"
#include "src/cuda/merge.h"
#include "src/cuda/window_rows.h"

namespace blockgtq::cuda {
namespace {

int64_t PowerOfTwo(int64_t at_least) {
  int64_t size = kPageTokens;
  while (size < at_least) size *= 2;
  return size;
}

}  // namespace

AttentionOp::AttentionOp(Device& device, std::function<Result<FlashAttention*>()> flash, KvCache& cache,
                         const LayerRopes& ropes)
    : device_(device),
      flash_(std::move(flash)),
      cache_(cache),
      ropes_(ropes),
      packed_(cache.options().kind == CacheKind::kPacked),
      batch_(device, cache) {}

Result<std::unique_ptr<AttentionOp>> AttentionOp::Create(Device& device,
                                                         std::function<Result<FlashAttention*>()> flash,
                                                         KvCache& cache, const LayerRopes& ropes) {
  if (cache.options().kind == CacheKind::kFloat) {
    return Status(ErrorCode::kUnsupported,
                  "--recipe fp32: the GPU has no fp32 cache; use fp16, or --device cpu");
  }
  if (cache.options().max_tokens > std::numeric_limits<int32_t>::max()) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("KV cache of {} tokens: positions on the GPU have 31 bits", cache.options().max_tokens));
  }
  std::unique_ptr<AttentionOp> op(new AttentionOp(device, std::move(flash), cache, ropes));
  BGTQ_RETURN_IF_ERROR(op->UploadConstants());
  return op;
}

Status AttentionOp::UploadConstants() {
  const CacheGeometry& g = cache_.geometry();
  std::vector<uint64_t> rope_steps;
  for (const RopeConfig& rope : ropes_.configs) {
    const std::vector<uint64_t> steps = RopeSteps(rope);
    rope_steps.insert(rope_steps.end(), steps.begin(), steps.end());
  }
  BGTQ_ASSIGN_OR_RETURN(rope_steps_, ToDevice(rope_steps, "RoPE"));
  BGTQ_ASSIGN_OR_RETURN(errors_, ErrorWords::Create(g.layers));
  if (!packed_) return Status::Ok();

  const size_t kv_heads = static_cast<size_t>(g.kv_heads);
  const auto plans = [&](int layer) {
    return std::span(cache_.plan()->heads).subspan(static_cast<size_t>(layer) * kv_heads, kv_heads);
  };
  for (int layer = 0; layer < g.layers; ++layer) {
    BGTQ_ASSIGN_OR_RETURN(const HeadTraits traits, TraitsOf(plans(layer), ropes_[layer]));
    if (layer == 0) traits_ = traits;
    traits_.Include(traits);
  }
  for (int layer = 0; layer < g.layers; ++layer) {
    BGTQ_ASSIGN_OR_RETURN(const HeadTable table, BuildHeadTable(plans(layer), traits_, ropes_[layer]));
    BGTQ_ASSIGN_OR_RETURN(LayerConstants constants, LayerConstants::Upload(table));
    layers_.push_back(std::move(constants));
  }
  for (size_t r = 0; traits_.mean_units > 0 && r < ropes_.configs.size(); ++r) {
    BGTQ_ASSIGN_OR_RETURN(
        PhaseTable phases,
        PhaseTable::Create(ropes_.configs[r], cache_.options().max_tokens, device_.stream()));
    phases_.push_back(std::move(phases));
  }
  BGTQ_ASSIGN_OR_RETURN(codec_, CodecConstants::Upload(cache_, ropes_));
  return Status::Ok();
}

Status AttentionOp::BeginStep(const StepInput& input) {
  for (auto& [window, schedule] : schedules_) schedule.launched = false;
  return batch_.Build(input);
}

AttentionOp::StepShape AttentionOp::shape() const {
  return {batch_.rows(), batch_.table_stride(), PowerOfTwo(batch_.segments()[0].coded)};
}

Status AttentionOp::ReserveRows(const AttentionCall& call) {
  const CacheGeometry& g = cache_.geometry();
  const int64_t row_bytes = int64_t{g.head_dim} * static_cast<int64_t>(sizeof(uint16_t)),
                rows = batch_.rows();
  BGTQ_RETURN_IF_ERROR(device_.Reserve(queries_, rows * call.heads * row_bytes, "queries of a batch"));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(keys_, rows * g.kv_heads * row_bytes, "keys of a batch"));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(values_, rows * g.kv_heads * row_bytes, "values of a batch"));
  return Status::Ok();
}

Status AttentionOp::Run(const AttentionCall& call, const AttentionRows& rows) {
  BGTQ_RETURN_IF_ERROR(ReserveRows(call));
  if (call.observer != nullptr) BGTQ_RETURN_IF_ERROR(Observe(call, rows));
  for (const Segment& s : batch_.segments()) {
    if (!packed_) {
      BGTQ_RETURN_IF_ERROR(AttendHalf(call, rows, s));
    } else if (s.chunk) {
      BGTQ_RETURN_IF_ERROR(AttendChunk(call, rows, s));
    } else {
      BGTQ_RETURN_IF_ERROR(AttendRows(call, rows, s));
    }
  }
  return Status::Ok();
}

/// Rotates a segment's rows, keeps its queries, and stores keys and values where the cache has exact tokens;
/// keys, values: also as rows from row `first_token_row` on, where not null.
Status AttentionOp::Store(const AttentionCall& call, const AttentionRows& rows, const Segment& s,
                          uint16_t* keys, uint16_t* values, int64_t first_token_row) {
  const CacheGeometry& g = cache_.geometry();
  const int64_t q_cols = int64_t{call.heads} * g.head_dim, kv_cols = int64_t{g.kv_heads} * g.head_dim;
  const RopeConfig& rope = ropes_[call.layer];
  RopeStoreCall store;
  store.rows = s.rows;
  store.heads = call.heads;
  store.kv_heads = g.kv_heads;
  store.head_dim = g.head_dim;
  store.rotary_dims = rope.rotary_dims;
  store.neox = rope.pairing == RopePairing::kNeox;
  store.attention_factor = rope.attention_factor;
  store.steps = rope_steps_.As<uint64_t>() + ropes_.index(call.layer) * (g.head_dim / 2);
  store.q = rows.queries + s.first_row * q_cols;
  store.k = rows.keys + s.first_row * kv_cols;
  store.v = rows.values + s.first_row * kv_cols;
  store.q_out = queries_.As<uint16_t>() + s.first_row * q_cols;
  if (keys != nullptr) {
    store.k_out = keys + first_token_row * kv_cols;
    store.v_out = values + first_token_row * kv_cols;
  }
  store.targets = batch_.targets() + s.first_row;
  if (packed_) {
    store.window_offset = WindowOffset(cache_, call.layer);
    store.sink_offset = SinkOffset(cache_, call.layer);
    store.window_tiles = cache_.window_tiles();
    store.sink_tile_tokens = cache_.sink_tile_tokens();
  } else {
    store.group = cache_.group_of(call.layer);
    store.pool = reinterpret_cast<uint8_t*>(cache_.pool_base(store.group)) + cache_.layer_offset(call.layer);
    store.page_bytes = cache_.block_bytes(store.group);
  }
  store.error = errors_.of_layer(call.layer);
  return LaunchRopeStore(store, true, device_.stream());
}

Status AttentionOp::Encode(const Segment& s, int first_layer, int layers, const uint16_t* keys,
                           const uint16_t* values) {
  EncodeParams params = codec_.Encode();
  params.first_layer = first_layer;
  params.layers = layers;
  params.jobs = batch_.jobs(s);
  params.job_count = batch_.job_count(s);
  params.max_jobs = s.jobs;
  params.keys = keys;
  params.values = values;
  params.error = errors_.of_layer(first_layer);
  return LaunchEncode(params, false, device_.stream());
}

/// Every row attends to codes, sinks and window as if it were decoded.
Status AttentionOp::AttendRows(const AttentionCall& call, const AttentionRows& rows, const Segment& s) {
  const CacheGeometry& g = cache_.geometry();
  const CacheOptions& options = cache_.options();
  const bool at_once = options.recent == 0;
  uint16_t* keys = at_once ? keys_.As<uint16_t>() : nullptr;
  uint16_t* values = at_once ? values_.As<uint16_t>() : nullptr;
  BGTQ_RETURN_IF_ERROR(Store(call, rows, s, keys, values, s.first_row));
  if (at_once) BGTQ_RETURN_IF_ERROR(Encode(s, call.layer, 1, keys, values));

  DecodeShape shape;
  shape.batch = static_cast<int>(s.rows);
  shape.kv_heads = g.kv_heads;
  shape.head_dim = g.head_dim;
  shape.query_heads = call.heads / g.kv_heads;
  shape.expected_tokens = PowerOfTwo(call.window > 0 ? std::min(s.coded, call.window) : s.coded);
  shape.has_exact = options.sinks > 0 || options.recent > 0;
  shape.window_tiles = cache_.window_tiles();
  shape.layers = g.layers;
  const std::vector<int64_t> key = {shape.batch, shape.query_heads, shape.expected_tokens};
  auto found = configs_.find(key);
  if (found == configs_.end()) {
    BGTQ_ASSIGN_OR_RETURN(const DecodeConfig config, ConfigureDecode(shape, traits_, device_.limits()));
    found = configs_.emplace(key, config).first;
  }
  const DecodeConfig& config = found->second;
  Schedule& schedule = schedules_[call.window];
  BGTQ_RETURN_IF_ERROR(
      device_.Reserve(schedule.scratch, config.scratch_bytes, "scratch of packed attention"));
  if (exchange_.bytes() < config.exchange_bytes) {
    BGTQ_RETURN_IF_ERROR(device_.Reserve(exchange_, config.exchange_bytes, "packed attention's exchange"));
    BGTQ_RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(exchange_.data(), 0, static_cast<size_t>(exchange_.bytes()), device_.stream()),
        "clearing a buffer"));
  }

  const int64_t q_offset = s.first_row * call.heads * g.head_dim;
  DecodeParams params{};
  BindDecode(config, schedule.scratch.data(), exchange_.data(), params);
  params.launch = static_cast<uint32_t>(call.layer);
  layers_[static_cast<size_t>(call.layer)].Bind(params);
  if (!phases_.empty()) phases_[static_cast<size_t>(ropes_.index(call.layer))].Bind(params);
  params.logit_scale = call.scale * std::numbers::log2e_v<float>;
  params.coded_end = batch_.coded_end() + s.first_row;
  params.length = batch_.length() + s.first_row;
  params.sinks = options.sinks;
  params.window = static_cast<int32_t>(std::min<int64_t>(call.window, std::numeric_limits<int32_t>::max()));
  const int group = cache_.group_of(call.layer);
  params.block_table = batch_.block_table(group, s.table_row);
  params.max_pages = batch_.decode() ? batch_.table_stride() : 0;  // rows of one sequence share its table
  params.pool = reinterpret_cast<uint8_t*>(cache_.pool_base(group)) + cache_.layer_offset(call.layer);
  params.page_bytes = cache_.block_bytes(group);
  params.sink_tile_tokens = cache_.sink_tile_tokens();
  params.exact = batch_.exact() + s.first_row;
  params.window_offset = WindowOffset(cache_, call.layer);
  params.sink_offset = SinkOffset(cache_, call.layer);
  params.queries = queries_.As<uint16_t>() + q_offset;
  params.out = rows.out + q_offset;
  const bool first_use =
      !schedule.launched || batch_.segments().size() > 1;  // segments share the schedule's memory
  schedule.launched = true;
  if (first_use) BGTQ_RETURN_IF_ERROR(LaunchDecodeSchedule(config, params, device_.stream()));
  BGTQ_RETURN_IF_ERROR(LaunchDecodeAttention(config, params, !at_once && !first_use, device_.stream()));
  // A decode step's pages are encoded after its last layer, all layers at once.
  if (!at_once && !batch_.decode() && s.jobs > 0) {
    BGTQ_RETURN_IF_ERROR(Encode(s, call.layer, 1, nullptr, nullptr));
  }
  return Status::Ok();
}

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
  chunk.cache = PrefixRows(PowerOfTwo(tokens));
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
  const int64_t bound = decode ? (span + kPageTokens - 1) / kPageTokens * kPageTokens : PowerOfTwo(span);
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

Status AttentionOp::Observe(const AttentionCall& call, const AttentionRows& rows) {
  const CacheGeometry& g = cache_.geometry();
  const int64_t heads[] = {call.heads, g.kv_heads, g.kv_heads};
  const float* from[] = {rows.queries, rows.keys, rows.values};
  std::vector<float> host[3];
  for (int i = 0; i < 3; ++i) {
    host[i].resize(static_cast<size_t>(batch_.rows() * heads[i] * g.head_dim));
    BGTQ_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(host[i].data(), from[i], host[i].size() * sizeof(float),
                                                    cudaMemcpyDeviceToHost, device_.stream()),
                                    "reading what enters attention"));
  }
  BGTQ_RETURN_IF_ERROR(device_.Synchronize());
  const RopeTable table(ropes_[call.layer]);
  std::vector<float> ordered;
  for (std::vector<float>* x : {&host[0], &host[1]}) {
    ordered.resize(x->size());
    for (size_t at = 0; at < x->size(); at += static_cast<size_t>(g.head_dim)) {
      table.ToBlockOrder(&(*x)[at], &ordered[at]);
    }
    x->swap(ordered);
  }
  call.observer->Observe(call.layer, batch_.rows(), host[0].data(), host[1].data(), host[2].data());
  return Status::Ok();
}

Status AttentionOp::EndStep() {
  const Segment& first = batch_.segments()[0];
  if (packed_ && batch_.decode() && cache_.options().recent > 0 && first.jobs > 0) {
    BGTQ_RETURN_IF_ERROR(Encode(first, 0, cache_.geometry().layers, nullptr, nullptr));
  }
  return errors_.Send(device_.stream());
}

}  // namespace blockgtq::cuda
