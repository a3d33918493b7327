// Plans, tokens and device arrays for the tests of encoding and unpacking.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "src/codec/record.h"
#include "src/codec/reference_codec.h"
#include "src/core/half.h"
#include "src/cuda/encode.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

using cpu::HeadSpec;

/// fp16 tokens [tokens][head_dim] of one KV head.
struct HeadTokens {
  std::vector<uint16_t> keys, values;
};

inline std::vector<float> Widen(const uint16_t* halves, size_t n) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = HalfToFloat(halves[i]);
  return out;
}

/// Tokens at positions [first, first + count), of different sizes, with the plan's mean.
inline HeadTokens MakeTokens(const HeadPlan& plan, const RopeTable& rope, int64_t first, int64_t count,
                             uint64_t seed) {
  const int dim = plan.head_dim;
  std::vector<float> keys = cpu::Normals(count * dim, 1.0f, seed), mean(dim);
  std::vector<float> values = cpu::Normals(count * dim, 1.0f, seed + 1);
  HeadTokens tokens;
  for (int64_t t = 0; t < count; ++t) {
    const float size = std::exp2(0.5f * std::sin(0.7f * static_cast<float>(t)));
    if (!plan.key_mean.empty()) rope.Rotate(plan.key_mean.data(), first + t, mean.data());
    for (int d = 0; d < dim; ++d) {
      tokens.keys.push_back(FloatToHalf(keys[t * dim + d] * size + mean[d]));
      tokens.values.push_back(FloatToHalf(values[t * dim + d] * size));
    }
  }
  return tokens;
}

/// Layers of heads with different plans, and their constants on the device.
/// grouped: odd layers are a group of their own, with another RoPE. A block of the pool has both groups'
/// parts.
class EncodeModel {
 public:
  EncodeModel(const std::vector<HeadSpec>& specs, int layers, Rounding rounding, uint64_t seed,
              bool grouped = false) {
    kv_heads = static_cast<int>(specs.size());
    LayerRopes layer_ropes{{cpu::MakeRope(specs[0].head_dim, 1.1f)}};
    if (grouped) {
      layer_ropes.configs.push_back(layer_ropes.configs[0]);
      layer_ropes.configs[1].freq_base = 300.0;
      for (int l = 0; l < layers; ++l) layer_ropes.of_layer.push_back(l % 2);
    }
    for (int l = 0; l < layers; ++l) ropes.emplace_back(layer_ropes[l]);
    std::vector<EncodeLayer> encode_layers(static_cast<size_t>(layers));
    for (int i = 0; i < layers; ++i) {  // even ones first, where grouped
      const int even = (layers + 1) / 2, l = !grouped ? i : i < even ? 2 * i : 2 * (i - even) + 1;
      if (grouped && i == even) second_group = block_bytes;
      encode_layers[l] = {block_bytes - (grouped && i >= even ? second_group : 0), grouped ? l % 2 : 0};
      block_bytes += LayerBytes(specs, l, seed, rounding);
    }
    for (int l = 0; l < layers; ++l) {
      for (int h = 0; h < kv_heads; ++h) {
        plans.push_back(MakePlan(specs, l, h, seed, rounding));
        layouts.push_back(RecordLayout::For(plans.back()));
      }
    }
    table = Require(BuildEncodeTable(plans, kv_heads, encode_layers, layer_ropes), "encode table");
    heads = DeviceArray<EncodeHead>(table.heads);
    key_transform = DeviceArray<uint16_t>(table.key_transform);
    value_transform = DeviceArray<uint16_t>(table.value_transform);
    key_mean = DeviceArray<float>(table.key_mean);
    slot_rotation = DeviceArray<float>(table.slot_rotation);
    steps = DeviceArray<uint64_t>(table.steps);
    error = DeviceArray<int32_t>(std::vector<int32_t>{INT32_MAX});
  }
  EncodeParams Params(uint8_t* pool) const {
    EncodeParams p;
    p.head_dim = table.head_dim;
    p.kv_heads = table.kv_heads;
    p.key_units = table.key_units;
    p.layers = table.layers;
    p.pool[0] = pool;
    p.pool[1] = pool + second_group;
    p.block_bytes[0] = p.block_bytes[1] = block_bytes;
    p.heads = heads.data();
    p.key_transform = key_transform.data();
    p.value_transform = value_transform.data();
    p.key_mean = key_mean.data();
    p.slot_rotation = slot_rotation.data();
    p.steps = steps.data();
    p.error = error.data();
    return p;
  }
  /// The record of head `h` (counted over layers) in a block's bytes.
  std::span<std::byte> Record(std::vector<uint8_t>& pool, int64_t block, size_t h) const {
    const EncodeHead& head = table.heads[h];
    return {reinterpret_cast<std::byte*>(pool.data()) + block * block_bytes +
                (head.group == 1 ? second_group : 0) + head.record_offset,
            static_cast<size_t>(layouts[h].bytes)};
  }
  int dim() const { return table.head_dim; }
  /// Of head `h`, counted over layers.
  const RopeTable& rope(size_t h) const { return ropes[h / kv_heads]; }

  int kv_heads = 0;
  std::vector<RopeTable> ropes;               // [layers]
  int64_t block_bytes = 0, second_group = 0;  // second_group: where its part of a block begins
  std::vector<HeadPlan> plans;                // [layers * kv_heads]
  std::vector<RecordLayout> layouts;
  EncodeTable table;
  DeviceArray<EncodeHead> heads;
  DeviceArray<uint16_t> key_transform, value_transform;
  DeviceArray<float> key_mean, slot_rotation;
  DeviceArray<uint64_t> steps;
  DeviceArray<int32_t> error;

 private:
  HeadPlan MakePlan(const std::vector<HeadSpec>& specs, int layer, int head, uint64_t seed,
                    Rounding rounding) const {
    HeadPlan plan =
        cpu::MakeHeadPlan(specs[(head + layer) % kv_heads], seed + 100 * (layer * kv_heads + head));
    plan.rounding = rounding;
    return plan;
  }
  int64_t LayerBytes(const std::vector<HeadSpec>& specs, int layer, uint64_t seed, Rounding rounding) const {
    int64_t bytes = 0;
    for (int h = 0; h < kv_heads; ++h)
      bytes += RecordLayout::For(MakePlan(specs, layer, h, seed, rounding)).bytes;
    return bytes;
  }
};

/// Exact tiles of one sequence: window [layers][kv_heads][window_tiles], then sinks [layers][kv_heads].
struct ExactTiles {
  int head_dim, kv_heads, layers, window_tiles, sink_tokens;
  std::vector<uint16_t> data;

  ExactTiles(int dim, int heads, int layer_count, int tiles, int sinks)
      : head_dim(dim), kv_heads(heads), layers(layer_count), window_tiles(tiles), sink_tokens(sinks) {
    data.assign(static_cast<size_t>(layers) * kv_heads * (window_tiles * 64 + sink_tokens) * 2 * dim, 0xffff);
  }
  int64_t WindowOffset(int layer) const {
    return int64_t{layer} * kv_heads * window_tiles * 4 * 64 * head_dim;
  }
  int64_t SinkOffset(int layer) const {
    return WindowOffset(layers) + int64_t{layer} * kv_heads * 4 * sink_tokens * head_dim;
  }
  void Put(uint16_t* tile, int tile_tokens, int slot, const uint16_t* key, const uint16_t* value) {
    for (int d = 0; d < head_dim; ++d) {
      tile[d * tile_tokens + slot] = key[d];
      tile[(tile_tokens + slot) * head_dim + d] = value[d];
    }
  }
  void PutWindow(int layer, int head, int64_t position, const uint16_t* key, const uint16_t* value) {
    const int64_t tile = int64_t{head} * window_tiles + position / 64 % window_tiles;
    Put(&data[WindowOffset(layer) / 2 + tile * 2 * 64 * head_dim], 64, static_cast<int>(position % 64), key,
        value);
  }
  void PutSink(int layer, int head, int slot, const uint16_t* key, const uint16_t* value) {
    Put(&data[SinkOffset(layer) / 2 + int64_t{head} * 2 * sink_tokens * head_dim], sink_tokens, slot, key,
        value);
  }
};

/// Median time of launch(set, stream), of graphs that run through the sets.
template <typename F>
double MedianMicroseconds(int sets, F launch) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t start, stop;
  Require(cudaStreamCreate(&stream), "stream");
  Require(cudaEventCreate(&start), "event");
  Require(cudaEventCreate(&stop), "event");
  const int launches = std::max(sets, 10);
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) launch(i % sets, stream);
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    Require(cudaEventRecord(start, stream), "event");
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaEventRecord(stop, stream), "event");
    Require(cudaStreamSynchronize(stream), "replay");
    float ms;
    Require(cudaEventElapsedTime(&ms, start, stop), "event");
    if (i >= 2) times.push_back(ms);
  }
  Require(cudaGraphExecDestroy(executable), "graph");
  Require(cudaGraphDestroy(graph), "graph");
  Require(cudaStreamDestroy(stream), "stream");
  std::sort(times.begin(), times.end());
  return 1e3 * times[times.size() / 2] / launches;
}

/// Mixed widths, padding and means for a head dim: one head each.
inline std::vector<HeadSpec> MixedSpecs(int dim) {
  const int q = dim / 4;
  return {{dim, {{4, q}, {3, 2 * q}, {2, q}}, 3, {0}},
          {dim, {{3, dim}}, 4, {}},
          {dim, {{5, q}, {4, q}, {3, q}, {1, q}}, 2, {1, 3 % (dim / 16)}},
          {dim, {{8, q}, {4, q}, {2, 2 * q}}, 5, {}},
          {dim, {{4, q - 6}, {3, 2 * q + 2}, {2, q + 4}}, 8, {0, 1, 2, 3}},
          {dim, {{2, dim}}, 1, {}}};
}

/// Two heads of dim 256, one with 8 groups of 23 units: their transforms do not fit in shared memory.
inline std::vector<HeadSpec> ManyUnitSpecs() {
  return {{256, {{8, 33}, {5, 33}, {4, 33}, {4, 33}, {3, 33}, {3, 33}, {2, 33}, {1, 25}}, 3, {0, 15}},
          {256, {{4, 64}, {3, 128}, {2, 64}}, 4, {}}};
}

}  // namespace blockgtq::cuda
