// See latent_attention_op.h.
#include "src/cuda/latent_attention_op.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <tuple>
#include <utility>

#include "src/cuda/launch.cuh"
#include "src/cuda/layer_constants.h"

namespace blockgtq::cuda {
namespace {

/// Vectors (rows times heads) that attend at a time: bounds the memory of partial outputs.
constexpr int64_t kVectorsAtOnce = 8192;

/// Of the encoder's coordinates, where more than one layer is encoded.
constexpr int64_t kCoordinateBytes = int64_t{32} << 20;

int64_t TilesOf(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

Status Check(const KvCache& cache) {
  const CacheGeometry& g = cache.geometry();
  BGTQ_RETURN_IF_ERROR(CheckCache(cache));
  if (g.kv_heads != 1 || g.head_dim % kUnitDims != 0 || g.latent_dims % kUnitDims != 0) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("a cache of {} latents of {} dims, {} of them values: the GPU has one, in multiples of "
                    "{} dims; use --device cpu",
                    g.kv_heads, g.head_dim, g.latent_dims, kUnitDims));
  }
  return Status::Ok();
}

}  // namespace

LatentAttentionOp::LatentAttentionOp(Device& device, KvCache& cache, const RopeConfig& rope)
    : device_(device),
      cache_(cache),
      rope_(rope),
      packed_(cache.options().kind == CacheKind::kPacked),
      batch_(device, cache) {}

Result<std::unique_ptr<LatentAttentionOp>> LatentAttentionOp::Create(Device& device, KvCache& cache,
                                                                     const RopeConfig& rope) {
  BGTQ_RETURN_IF_ERROR(Check(cache));
  std::unique_ptr<LatentAttentionOp> op(new LatentAttentionOp(device, cache, rope));
  BGTQ_RETURN_IF_ERROR(op->UploadConstants());
  return op;
}

Status LatentAttentionOp::UploadConstants() {
  const CacheGeometry& g = cache_.geometry();
  BGTQ_ASSIGN_OR_RETURN(rope_steps_, ToDevice(RopeSteps(rope_), "RoPE"));
  BGTQ_ASSIGN_OR_RETURN(errors_, ErrorWords::Create(g.layers));
  if (!packed_) return Status::Ok();
  std::vector<LatentCodec> codecs;
  for (int layer = 0; layer < g.layers; ++layer) {
    BGTQ_ASSIGN_OR_RETURN(LatentTable table, BuildLatentTable(cache_.plan()->head(layer, 0),
                                                              fmt::format("layer {}'s plan", layer)));
    most_groups_ = std::max(most_groups_, static_cast<int>(table.groups.size()));
    for (const LatentGroup& group : table.groups)
      most_group_units_ = std::max(most_group_units_, group.units);
    most_units_ = std::max(most_units_, static_cast<int>(table.units.size()));
    has_mean_ = has_mean_ || table.has_mean;
    BGTQ_ASSIGN_OR_RETURN(LatentConstants constants, LatentConstants::Upload(std::move(table)));
    LatentCodec codec = constants.Codec();
    codec.record_offset = cache_.layer_offset(layer);
    codec.window_offset = WindowOffset(cache_, layer);
    codecs.push_back(codec);
    layers_.push_back(std::move(constants));
  }
  BGTQ_ASSIGN_OR_RETURN(codecs_, ToDevice(codecs, "a plan's constants"));
  return Status::Ok();
}

LatentAttentionOp::StepShape LatentAttentionOp::shape() const {
  const Segment& first = batch_.segments()[0];
  return {batch_.rows(), batch_.table_stride(), TokenBound(packed_ ? first.coded : first.longest)};
}

Status LatentAttentionOp::ReserveRows(const AttentionCall& call) {
  const int64_t vectors = batch_.rows() * call.heads, dim_bytes = int64_t{2} * cache_.geometry().head_dim;
  BGTQ_RETURN_IF_ERROR(device_.Reserve(queries_, vectors * dim_bytes, "queries of a batch"));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(query_scales_, 4 * vectors, "queries of a batch"));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(query_offsets_, 4 * vectors, "queries of a batch"));
  return device_.Reserve(keys_, batch_.rows() * dim_bytes, "keys of a batch");
}

Status LatentAttentionOp::Run(const AttentionCall& call, const AttentionRows& rows) {
  if (call.window != 0) {
    return Status(ErrorCode::kUnsupported, "CUDA latent attention: there is none with a sliding window");
  }
  BGTQ_RETURN_IF_ERROR(ReserveRows(call));
  if (call.observer != nullptr) BGTQ_RETURN_IF_ERROR(Observe(call, rows));
  for (const Segment& s : batch_.segments()) {
    if (!packed_) {
      BGTQ_RETURN_IF_ERROR(AttendPages(call, rows, s));
    } else if (s.chunk) {
      BGTQ_RETURN_IF_ERROR(AttendChunk(call, rows, s));
    } else {
      BGTQ_RETURN_IF_ERROR(AttendRows(call, rows, s));
    }
  }
  return Status::Ok();
}

LatentTiles LatentAttentionOp::Tiles(int layer) const {
  LatentTiles tiles;
  if (packed_) {
    tiles.window_offset = WindowOffset(cache_, layer);
    tiles.sink_offset = SinkOffset(cache_, layer);
    tiles.window_tiles = cache_.window_tiles();
  } else {
    tiles.pool = reinterpret_cast<uint8_t*>(cache_.pool_base(0)) + cache_.layer_offset(layer);
    tiles.page_bytes = cache_.block_bytes(0);
  }
  return tiles;
}

/// Rotates a segment's rows, keeps its queries, and stores keys where the cache has exact tokens; keys: of
/// the segment's first row, also there, where not null.
Status LatentAttentionOp::Store(const AttentionCall& call, const AttentionRows& rows, const Segment& s,
                                uint16_t* keys) {
  const int64_t dim = cache_.geometry().head_dim, first = s.first_row * call.heads;
  LatentStoreCall store;
  store.rows = s.rows;
  store.heads = call.heads;
  store.head_dim = static_cast<int32_t>(dim);
  store.rotary_dims = rope_.rotary_dims;
  store.neox = rope_.pairing == RopePairing::kNeox;
  store.attention_factor = rope_.attention_factor;
  store.steps = rope_steps_.As<uint64_t>();
  store.q = rows.queries + first * dim;
  store.k = rows.keys + s.first_row * dim;
  store.queries = queries_.As<uint16_t>() + first * dim;
  store.query_scale = query_scales_.As<float>() + first;
  if (packed_ && layers_[static_cast<size_t>(call.layer)].table().has_latent_mean) {
    store.mean = layers_[static_cast<size_t>(call.layer)].mean();
    store.rope_dims = static_cast<int32_t>(dim) - cache_.geometry().latent_dims;
    store.query_offset = query_offsets_.As<float>() + first;
  }
  store.keys = keys;
  store.targets = batch_.targets() + s.first_row;
  store.tiles = Tiles(call.layer);
  store.error = errors_.of_layer(call.layer);
  return LaunchLatentStore(store, device_.stream());
}

Status LatentAttentionOp::Encode(const Segment& s, int first_layer, int layers, const uint16_t* keys,
                                 int64_t first_row) {
  LatentEncodeParams p;
  p.most_groups = most_groups_;
  p.most_group_units = most_group_units_;
  p.most_units = most_units_;
  p.has_mean = has_mean_;
  p.head_dim = cache_.geometry().head_dim;
  p.rotary_dims = rope_.rotary_dims;
  p.attention_factor = rope_.attention_factor;
  p.steps = rope_steps_.As<uint64_t>();
  p.jobs = batch_.jobs(s);
  p.job_count = batch_.job_count(s);
  p.max_jobs = s.jobs;
  p.pool = reinterpret_cast<uint8_t*>(cache_.pool_base(0));
  p.block_bytes = cache_.block_bytes(0);
  p.window_tiles = cache_.window_tiles();
  p.keys = keys;
  p.first_row = first_row;
  // So many layers at a time that their coordinates stay within bounds.
  p.layer_count = 1;
  const int at_once =
      static_cast<int>(std::clamp<int64_t>(kCoordinateBytes / LatentCoordinateBytes(p), 1, layers));
  for (int layer = first_layer; layer < first_layer + layers; layer += at_once) {
    p.layers = codecs_.As<LatentCodec>() + layer;
    p.layer_count = std::min(at_once, first_layer + layers - layer);
    p.error = errors_.of_layer(layer);
    // All of it at once: memory that grows later would make captured graphs stale.
    BGTQ_RETURN_IF_ERROR(device_.Reserve(coordinates_, std::max(kCoordinateBytes, LatentCoordinateBytes(p)),
                                         "coordinates of pages"));
    p.coordinates = coordinates_.As<float>();
    BGTQ_RETURN_IF_ERROR(LaunchLatentEncode(p, device_.stream()));
  }
  return Status::Ok();
}

LatentParams LatentAttentionOp::Params(const AttentionCall& call, const Segment& s) const {
  const CacheGeometry& g = cache_.geometry();
  const int64_t first = s.first_row * call.heads;
  LatentParams p;
  p.heads = call.heads;
  p.head_dim = g.head_dim;
  p.latent_dims = g.latent_dims;
  p.logit_scale = call.scale * std::numbers::log2e_v<float>;
  p.queries = queries_.As<uint16_t>() + first * g.head_dim;
  p.query_scale = query_scales_.As<float>() + first;
  p.coded_end = batch_.coded_end() + s.first_row;
  p.length = batch_.length() + s.first_row;
  p.sinks = cache_.options().sinks;
  p.block_table = batch_.block_table(0, s.table_row);
  p.table_stride = batch_.table_stride();
  p.pool = reinterpret_cast<const uint8_t*>(cache_.pool_base(0)) + cache_.layer_offset(call.layer);
  p.block_bytes = cache_.block_bytes(0);
  p.exact = batch_.exact() + s.first_row;
  p.steps = rope_steps_.As<uint64_t>();
  p.rotary_dims = rope_.rotary_dims;
  p.attention_factor = rope_.attention_factor;
  if (!packed_) return p;
  const LatentConstants& constants = layers_[static_cast<size_t>(call.layer)];
  constants.Bind(p);
  if (constants.table().has_latent_mean) p.query_offset = query_offsets_.As<float>() + first;
  p.window_offset = WindowOffset(cache_, call.layer);
  p.sink_offset = SinkOffset(cache_, call.layer);
  p.window_tiles = cache_.window_tiles();
  return p;
}

Status LatentAttentionOp::Attend(LatentParams params, const Segment& s, int64_t code_tiles,
                                 int64_t exact_tiles, uint16_t* out) {
  const int64_t at_once = std::max<int64_t>(1, kVectorsAtOnce / params.heads);
  for (int64_t first = 0; first < s.rows; first += at_once) {
    LatentParams p = params;
    const int64_t vector = first * p.heads;
    p.rows = static_cast<int32_t>(std::min(at_once, s.rows - first));
    p.group_rows = batch_.decode() ? 1 : p.rows;
    if (batch_.decode()) p.block_table += first * p.table_stride;
    p.queries += vector * p.head_dim;
    p.query_scale += vector;
    if (p.query_offset != nullptr) p.query_offset += vector;
    p.coded_end += first;
    p.length += first;
    p.exact += first;
    p.out = out + vector * p.head_dim;
    p.code_splits = code_tiles > 0 ? 1 : 0;
    p.exact_splits = exact_tiles > 0 ? 1 : 0;
    const int processors = device_.limits().processors;
    const int code_splits = code_tiles > 0 ? LatentSplits(p, processors, code_tiles) : 0;
    p.exact_splits = exact_tiles > 0 ? LatentSplits(p, processors, exact_tiles) : 0;
    p.code_splits = code_splits;
    BGTQ_RETURN_IF_ERROR(
        device_.Reserve(scratch_, LatentScratchBytes(p), "scratch of attention over latents"));
    BindLatentScratch(scratch_.data(), p);
    BGTQ_RETURN_IF_ERROR(LaunchLatents(p, device_.stream()));
  }
  return Status::Ok();
}

/// Every row attends to codes, sinks and window as if it were decoded.
Status LatentAttentionOp::AttendRows(const AttentionCall& call, const AttentionRows& rows, const Segment& s) {
  const CacheOptions& options = cache_.options();
  const int64_t dim = cache_.geometry().head_dim;
  const bool at_once = options.recent == 0;
  BGTQ_RETURN_IF_ERROR(Store(call, rows, s, at_once ? keys_.As<uint16_t>() + s.first_row * dim : nullptr));
  if (at_once) BGTQ_RETURN_IF_ERROR(Encode(s, call.layer, 1, keys_.As<uint16_t>(), 0));
  // A decode step's launches may not depend on whether there are codes yet.
  const int64_t coded = at_once ? s.longest : s.coded;
  const int64_t code_tiles = coded > 0 || batch_.decode() ? TilesOf(TokenBound(coded)) : 0;
  const int64_t exact_tiles = (at_once ? 0 : cache_.window_tiles()) + (options.sinks > 0 ? 1 : 0);
  BGTQ_RETURN_IF_ERROR(
      Attend(Params(call, s), s, code_tiles, exact_tiles, rows.out + s.first_row * call.heads * dim));
  // A decode step's pages are encoded after its last layer, all layers at once.
  if (!at_once && !batch_.decode() && s.jobs > 0) return Encode(s, call.layer, 1, nullptr, 0);
  return Status::Ok();
}

/// Rows of a prompt attend to one another, and to what the window has before them, as fp16 rows.
Status LatentAttentionOp::AttendChunk(const AttentionCall& call, const AttentionRows& rows,
                                      const Segment& s) {
  const int64_t dim = cache_.geometry().head_dim, base = s.coded / kPageTokens * kPageTokens;
  BGTQ_RETURN_IF_ERROR(
      device_.Reserve(exact_rows_, 2 * dim * TokenBound(s.longest - base), "keys of a prompt's chunk"));
  uint16_t* exact = exact_rows_.As<uint16_t>();
  // The ring still has the tokens before the chunk: they are taken out before new ones are stored.
  if (s.position > s.coded) {
    BGTQ_RETURN_IF_ERROR(LaunchLatentGather(reinterpret_cast<const uint8_t*>(cache_.exact_base(s.sequence)),
                                            Tiles(call.layer), static_cast<int32_t>(dim), s.coded,
                                            s.position - s.coded, base, exact, device_.stream()));
  }
  BGTQ_RETURN_IF_ERROR(Store(call, rows, s, exact + (s.position - base) * dim));
  if (s.jobs > 0) BGTQ_RETURN_IF_ERROR(Encode(s, call.layer, 1, exact, base - s.coded));
  LatentParams params = Params(call, s);
  params.exact_kind = LatentExact::kRows;
  params.exact_rows = exact;
  params.first_exact_row = base;
  return Attend(params, s, TilesOf(s.coded), TilesOf(s.longest - base) + 1,
                rows.out + s.first_row * call.heads * dim);
}

/// An uncompressed cache.
Status LatentAttentionOp::AttendPages(const AttentionCall& call, const AttentionRows& rows,
                                      const Segment& s) {
  BGTQ_RETURN_IF_ERROR(Store(call, rows, s, nullptr));
  LatentParams params = Params(call, s);
  params.exact_kind = LatentExact::kPages;
  return Attend(params, s, 0, TilesOf(TokenBound(s.longest)),
                rows.out + s.first_row * call.heads * cache_.geometry().head_dim);
}

Status LatentAttentionOp::Observe(const AttentionCall& call, const AttentionRows& rows) {
  const int64_t dim = cache_.geometry().head_dim;
  const RopeTable table(rope_);
  std::vector<float> ordered[2];
  for (const auto& [from, vectors, to] : {std::tuple{rows.queries, batch_.rows() * call.heads, &ordered[0]},
                                          std::tuple{rows.keys, batch_.rows(), &ordered[1]}}) {
    std::vector<float> host(static_cast<size_t>(vectors * dim));
    BGTQ_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(host.data(), from, host.size() * sizeof(float),
                                                    cudaMemcpyDeviceToHost, device_.stream()),
                                    "reading what enters attention"));
    BGTQ_RETURN_IF_ERROR(device_.Synchronize());
    to->resize(host.size());
    for (int64_t v = 0; v < vectors; ++v) table.ToBlockOrder(host.data() + v * dim, to->data() + v * dim);
  }
  call.observer->Observe(call.layer, batch_.rows(), ordered[0].data(), ordered[1].data(), ordered[1].data());
  return Status::Ok();
}

Status LatentAttentionOp::EndStep() {
  const Segment& first = batch_.segments()[0];
  if (packed_ && batch_.decode() && cache_.options().recent > 0 && first.jobs > 0)
    BGTQ_RETURN_IF_ERROR(Encode(first, 0, cache_.geometry().layers, nullptr, 0));
  return errors_.Send(device_.stream());
}

}  // namespace blockgtq::cuda
