// See attention_op.h.
#include "src/cuda/attention_op.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numbers>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

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
  BGTQ_RETURN_IF_ERROR(CheckCache(cache));
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

Status AttentionOp::TakeErrors() {
  Status status = errors_.Take();
  if (!status.ok()) BGTQ_RETURN_IF_ERROR(ClearPrefix());
  return status;
}

Status AttentionOp::DropErrors() {
  BGTQ_RETURN_IF_ERROR(errors_.Clear());
  return ClearPrefix();
}

/// After a pass that failed: its rows lie where those of later ones end, and library kernels multiply them by
/// 0.
Status AttentionOp::ClearPrefix() {
  for (DeviceBuffer* buffer : {&prefix_keys_, &prefix_values_}) {
    if (buffer->bytes() == 0) continue;
    BGTQ_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(buffer->data(), 0, static_cast<size_t>(buffer->bytes()), device_.stream()),
                   "clearing a buffer"));
  }
  return Status::Ok();
}

Status AttentionOp::BeginStep(const StepInput& input) {
  for (auto& [window, schedule] : schedules_) schedule.launched = false;
  return batch_.Build(input);
}

AttentionOp::StepShape AttentionOp::shape() const {
  return {batch_.rows(), batch_.table_stride(), TokenBound(batch_.segments()[0].coded)};
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

/// What rotates a segment's rows, keeps its queries, and stores keys and values where the cache has exact
/// tokens.
RopeStoreCall AttentionOp::StoreCall(const AttentionCall& call, const AttentionRows& rows,
                                     const Segment& s) const {
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
  return store;
}

/// keys, values: also as rows from row `first_token_row` on, where not null.
Status AttentionOp::Store(const AttentionCall& call, const AttentionRows& rows, const Segment& s,
                          uint16_t* keys, uint16_t* values, int64_t first_token_row) {
  RopeStoreCall store = StoreCall(call, rows, s);
  if (keys != nullptr) {
    const int64_t first = first_token_row * store.kv_heads * store.head_dim;
    store.k_out = keys + first;
    store.v_out = values + first;
  }
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

  DecodeShape shape;
  shape.batch = static_cast<int>(s.rows);
  shape.kv_heads = g.kv_heads;
  shape.head_dim = g.head_dim;
  shape.query_heads = call.heads / g.kv_heads;
  shape.expected_tokens = TokenBound(call.window > 0 ? std::min(s.coded, call.window) : s.coded);
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
  // Rows of one sequence see each other's keys, so all of them are stored first.
  const bool fused = batch_.decode() && !at_once && config.fuses_rope();
  if (!fused) BGTQ_RETURN_IF_ERROR(Store(call, rows, s, keys, values, s.first_row));
  if (at_once) BGTQ_RETURN_IF_ERROR(Encode(s, call.layer, 1, keys, values));
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
  if (fused) {
    const RopeStoreCall store = StoreCall(call, rows, s);
    params.rope = {.enabled = true,
                   .neox = store.neox,
                   .rotary_dims = store.rotary_dims,
                   .attention_factor = store.attention_factor,
                   .steps = store.steps,
                   .q = store.q,
                   .k = store.k,
                   .v = store.v,
                   .targets = store.targets,
                   .error = store.error};
  }
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
