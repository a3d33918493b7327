// See layer_constants.h.
#include "src/cuda/layer_constants.h"

#include <cuda_runtime.h>

#include "src/cuda/launch.cuh"

namespace blockgtq::cuda {

Result<DeviceBuffer> UploadBytes(const void* data, int64_t bytes, const std::string& what) {
  BGTQ_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(bytes, what));
  if (bytes > 0) {
    BGTQ_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(buffer.data(), data, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
                   "uploading a plan"));
  }
  return buffer;
}

Result<LayerConstants> LayerConstants::Upload(const HeadTable& table) {
  const char* what = "a plan's constants";
  LayerConstants c;
  BGTQ_ASSIGN_OR_RETURN(c.heads_, ToDevice(table.heads, what));
  BGTQ_ASSIGN_OR_RETURN(c.query_transform_, ToDevice(table.query_transform, what));
  BGTQ_ASSIGN_OR_RETURN(c.value_fragments_, ToDevice(table.value_fragments, what));
  BGTQ_ASSIGN_OR_RETURN(c.mean_constants_, ToDevice(table.mean_constants, what));
  return c;
}

void LayerConstants::Bind(DecodeParams& params) const {
  params.heads = heads_.As<DeviceHead>();
  params.query_transform = query_transform_.As<uint16_t>();
  params.value_fragments = value_fragments_.As<uint16_t>();
  params.mean_constants = mean_constants_.data();
}

Result<PhaseTable> PhaseTable::Create(const RopeConfig& rope, int64_t tokens, CUstream_st* stream) {
  const int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  PhaseTable t;
  BGTQ_ASSIGN_OR_RETURN(t.steps_, ToDevice(HalfTokenSteps(rope), "RoPE"));
  BGTQ_ASSIGN_OR_RETURN(
      t.phases_, DeviceBuffer::Allocate(tiles * PhaseBytes(rope.head_dim),
                                        "phases of key means of " + std::to_string(tokens) + " tokens"));
  BGTQ_RETURN_IF_ERROR(
      LaunchPhaseTable(t.steps_.As<uint64_t>(), rope.head_dim, 0, tiles, t.phases_.As<uint16_t>(), stream));
  return t;
}

Result<CodecConstants> CodecConstants::Upload(const KvCache& cache, const LayerRopes& ropes) {
  const CacheGeometry& g = cache.geometry();
  CodecConstants c;
  std::vector<EncodeLayer> layers;
  std::vector<int64_t> window_offset;
  for (int layer = 0; layer < g.layers; ++layer) {
    layers.push_back({cache.layer_offset(layer), cache.group_of(layer)});
    window_offset.push_back(WindowOffset(cache, layer));
    c.rope_of_layer_.push_back(ropes.index(layer));
  }
  BGTQ_ASSIGN_OR_RETURN(const EncodeTable table,
                        BuildEncodeTable(cache.plan()->heads, g.kv_heads, layers, ropes));
  const UnpackTable unpack = BuildUnpackTable(cache.plan()->heads, table);
  const char* what = "a plan's constants";
  c.cache_ = &cache;
  c.key_units_ = table.key_units;
  BGTQ_ASSIGN_OR_RETURN(c.heads_, ToDevice(table.heads, what));
  BGTQ_ASSIGN_OR_RETURN(c.key_transform_, ToDevice(table.key_transform, what));
  BGTQ_ASSIGN_OR_RETURN(c.value_transform_, ToDevice(table.value_transform, what));
  BGTQ_ASSIGN_OR_RETURN(c.key_mean_, ToDevice(table.key_mean, what));
  BGTQ_ASSIGN_OR_RETURN(c.slot_rotation_, ToDevice(table.slot_rotation, what));
  BGTQ_ASSIGN_OR_RETURN(c.steps_, ToDevice(table.steps, what));
  BGTQ_ASSIGN_OR_RETURN(c.window_offset_, ToDevice(window_offset, what));
  BGTQ_ASSIGN_OR_RETURN(c.key_fragments_, ToDevice(unpack.key_fragments, what));
  BGTQ_ASSIGN_OR_RETURN(c.value_fragments_, ToDevice(unpack.value_fragments, what));
  BGTQ_ASSIGN_OR_RETURN(c.scale_, ToDevice(unpack.scale, what));
  return c;
}

EncodeParams CodecConstants::Encode() const {
  EncodeParams p;
  p.head_dim = cache_->geometry().head_dim;
  p.kv_heads = cache_->geometry().kv_heads;
  p.key_units = key_units_;
  for (int group = 0; group < cache_->groups(); ++group) {
    p.pool[group] = reinterpret_cast<uint8_t*>(cache_->pool_base(group));
    p.block_bytes[group] = cache_->block_bytes(group);
  }
  p.heads = heads_.As<EncodeHead>();
  p.key_transform = key_transform_.As<uint16_t>();
  p.value_transform = value_transform_.As<uint16_t>();
  p.key_mean = key_mean_.As<float>();
  p.slot_rotation = slot_rotation_.As<float>();
  p.steps = steps_.As<uint64_t>();
  p.window_offset = window_offset_.As<int64_t>();
  p.window_tiles = cache_->window_tiles();
  return p;
}

UnpackParams CodecConstants::Unpack(int layer) const {
  UnpackParams p;
  p.head_dim = cache_->geometry().head_dim;
  p.kv_heads = cache_->geometry().kv_heads;
  p.key_units = key_units_;
  p.layer = layer;
  p.sinks = cache_->options().sinks;
  const int group = cache_->group_of(layer), rope = rope_of_layer_[static_cast<size_t>(layer)];
  p.pool = reinterpret_cast<const uint8_t*>(cache_->pool_base(group));
  p.block_bytes = cache_->block_bytes(group);
  p.window_offset = WindowOffset(*cache_, layer);
  p.sink_offset = SinkOffset(*cache_, layer);
  p.window_tiles = cache_->window_tiles();
  p.sink_tile_tokens = cache_->sink_tile_tokens();
  p.heads = heads_.As<EncodeHead>();
  p.key_mean = key_mean_.As<float>();
  p.slot_rotation = slot_rotation_.As<float>() + int64_t{rope} * kPageTokens * p.head_dim;
  p.steps = steps_.As<uint64_t>() + int64_t{rope} * (p.head_dim / 2);
  p.key_fragments = key_fragments_.As<uint16_t>();
  p.value_fragments = value_fragments_.As<uint16_t>();
  p.scale = scale_.As<float>();
  return p;
}

int64_t WindowOffset(const KvCache& cache, int layer) {
  const CacheGeometry& g = cache.geometry();
  return ExactTileBytes(true, g.head_dim, kPageTokens, g.latent_dims > 0) * cache.window_tiles() *
         g.kv_heads * layer;
}

int64_t SinkOffset(const KvCache& cache, int layer) {
  return WindowOffset(cache, cache.geometry().layers) + ExactTileBytes(true, cache.geometry().head_dim,
                                                                       cache.sink_tile_tokens(),
                                                                       cache.geometry().latent_dims > 0) *
                                                            cache.geometry().kv_heads * layer;
}

}  // namespace blockgtq::cuda
