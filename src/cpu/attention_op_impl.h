// The state behind AttentionOp: who rotates and runs (attention_op.cc), what is stored and encoded
// (attention_store.cc), and the attention itself, cut into tasks (attention_tasks.cc).
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

#include "src/cpu/attention_codes.h"
#include "src/cpu/attention_exact.h"
#include "src/cpu/attention_op.h"
#include "src/cpu/attention_segments.h"
#include "src/cpu/attention_simulated.h"

namespace blockgtq::cpu {

inline constexpr float kNoTokens = -std::numeric_limits<float>::infinity();  // lse of an empty part

/// One unit of attention work: a block of queries of a KV head against a range of codes and a range of exact
/// tokens.
struct AttentionTask {
  const Segment* segment = nullptr;
  int kv_head = 0;
  int64_t first = 0, count = 0;  // rows within the segment
  int64_t code_begin = 0, code_end = 0;
  int64_t exact_begin = 0, exact_end = 0;
  bool sinks = false;
  int64_t part = -1;      // slot of the partial result; -1: the task writes the output itself
  int64_t prepared = -1;  // in `split_queries`, shared by the parts; -1: the task prepares its own
};

/// Buffers of one worker.
struct AttentionWorker {
  CodesScratch codes;
  SimulatedCodes::Scratch simulated;
  PreparedQueries prepared;
  std::vector<const float*> queries;
  std::vector<int64_t> query_begin, query_end;
  std::vector<const std::byte*> tiles;
  std::vector<float> out, lse, part, part_lse, rotated, exact_scratch, key, value;
};

struct AttentionOp::Impl {
  Impl(ThreadPool& pool, KvCache& cache, const LayerRopes& layer_ropes)
      : pool(pool),
        cache(cache),
        rope_of_layer(layer_ropes.of_layer),
        workers(static_cast<size_t>(pool.threads())) {
    for (const RopeConfig& config : layer_ropes.configs) ropes.emplace_back(config);
    const CacheGeometry& g = cache.geometry();
    dim = g.head_dim;
    kv_heads = g.kv_heads;
    latents = g.latent_dims > 0;
    packed = cache.options().kind == CacheKind::kPacked;
    simulated = cache.options().kind == CacheKind::kSimulated;
    tile_layout = {cache.options().kind == CacheKind::kFloat ? ExactType::kFloat : ExactType::kHalf, dim,
                   kPageTokens, latents};
    sink_layout = {ExactType::kHalf, dim, has_codes() ? cache.sink_tile_tokens() : 0, latents};
    if (packed) {
      heads.reserve(cache.plan()->heads.size());
      for (size_t h = 0; h < cache.plan()->heads.size(); ++h) {
        heads.push_back(PackedHead::Make(cache.plan()->heads[h], RopeOf(static_cast<int>(h) / kv_heads)));
      }
    }
  }

  bool has_codes() const { return packed || simulated; }  // tokens become codes as they age
  const PackedHead& head(int kv_head) const { return heads[static_cast<size_t>(layer) * kv_heads + kv_head]; }
  RopeTable& RopeOf(int l) {
    return ropes[rope_of_layer.empty() ? 0 : rope_of_layer[static_cast<size_t>(l)]];
  }
  RopeTable& rope() { return RopeOf(layer); }
  float* RotatedQuery(int64_t row, int h) { return &q_rot[(row * query_heads + h) * dim]; }
  float* RotatedKey(int64_t row, int h) { return &k_rot[(row * kv_heads + h) * dim]; }
  /// Null for latents.
  const float* Value(int64_t row, int h) const { return latents ? nullptr : v_in->row(row) + h * dim; }
  int64_t WindowTileBytes() const { return ExactTileBytes(true, dim, kPageTokens, latents); }

  void Rotate(const AttentionCall& call);
  void Observe(const AttentionCall& call);
  void StoreSegment(const std::vector<Segment*>& wave);
  /// The first token that the token at `position` sees.
  int64_t FirstSeen(int64_t position) const {
    return window > 0 ? std::max<int64_t>(position + 1 - window, 0) : 0;
  }
  void MakeTasks(const std::vector<Segment*>& wave);
  void PointAtQueries(const AttentionTask& task, AttentionWorker& w);
  void PrepareSplitQueries();
  QueryBounds Bounds(bool causal, const AttentionWorker& w) const;
  void AttendTaskCodes(const AttentionTask& task, int64_t rows, AttentionWorker& w);
  void RunTask(const AttentionTask& task, AttentionWorker& w);
  void MergeSplitTasks();
  void WriteOutput(const float* from, int64_t row, int h);
  void EncodeRows(const Segment& s, int kv_head, int64_t begin, int64_t end, AttentionWorker& w);
  void EncodeTile(const Segment& s, int kv_head, int64_t begin, int64_t end, AttentionWorker& w);
  void Encode(const Segment& s, int kv_head, int64_t begin, int64_t end, const float* keys,
              const float* values, int64_t stride, AttentionWorker& w);
  void SimulateCodes(const Segment& s, int kv_head, int64_t begin, int64_t end, int64_t coded,
                     AttentionWorker& w);
  void ChangeCodes(const std::vector<Segment*>& wave);
  void Flush(const std::vector<Segment*>& wave);
  std::byte* ExactTile(const Segment& s, int kv_head, int64_t tile);
  void NoteNonFinite(int64_t position) {
    int64_t seen = bad_position.load();
    while (position < seen && !bad_position.compare_exchange_weak(seen, position)) {
    }
  }

  ThreadPool& pool;
  KvCache& cache;
  std::vector<RopeTable> ropes;
  std::vector<uint8_t> rope_of_layer;  // empty: ropes[0]
  std::vector<PackedHead> heads;
  std::vector<AttentionWorker> workers;
  int dim = 0, kv_heads = 0;
  bool packed = false, simulated = false, latents = false;
  ExactLayout tile_layout, sink_layout;

  // State of the call in progress.
  int layer = 0, query_heads = 0, group = 0;
  float scale = 1;
  int64_t window = 0;
  const CpuActivations *q_in = nullptr, *k_in = nullptr, *v_in = nullptr;  // v_in: null for latents
  CpuActivations* out = nullptr;
  std::atomic<int64_t> bad_position{0};
  std::vector<std::pair<const BatchSlice*, int64_t>> rotations;  // the rows of a call: slice, row in it
  std::vector<float> q_rot, k_rot;                               // [rows, heads, D] post-RoPE, block order
  std::vector<std::byte> chunk;                                  // scratch tiles [tile, kv_head]
  std::vector<AttentionTask> tasks;
  std::vector<PreparedQueries> split_queries;
  std::vector<float> parts, parts_lse;  // partial results of split tasks
};

}  // namespace blockgtq::cpu
