// One layer's attention for a batch: see attention_op.h. The work of a slice is cut into *segments* that
// attend to the same codes; segments of one slice run one after the other, those of different slices side by
// side.
#include "src/cpu/attention_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "src/cpu/attention_codes.h"
#include "src/cpu/attention_exact.h"
#include "src/cpu/attention_segments.h"
#include "src/cpu/attention_simulated.h"

namespace blockgtq::cpu {
namespace {

constexpr int64_t kQueryBlock =
    32;  // prompt tokens a task: an unpacked tile serves 32 * (heads / kv_heads) queries
constexpr int64_t kMinSplitTokens = 512;  // a decode task reads at least this many tokens
constexpr int64_t kTasksPerThread = 8;    // decode tasks a thread, so that a late thread costs little
constexpr float kLargestHalf = 65504.0f;
constexpr float kNoTokens = -std::numeric_limits<float>::infinity();

/// One unit of attention work: a block of queries of a KV head against a range of codes and a range of exact
/// tokens.
struct Task {
  const Segment* segment = nullptr;
  int kv_head = 0;
  int64_t first = 0, count = 0;  // rows within the segment
  int64_t code_begin = 0, code_end = 0;
  int64_t exact_begin = 0, exact_end = 0;
  bool sinks = false;
  int64_t part = -1;      // slot of the partial result; -1: the task writes the output itself
  int64_t prepared = -1;  // in `split_queries`, shared by the parts; -1: the task prepares its own
};

/// Adds a part to a running softmax-weighted mean: out [rows, dim], lse [rows].
void MergePart(int64_t rows, int dim, const float* part, const float* part_lse, float* out, float* lse) {
  for (int64_t r = 0; r < rows; ++r) {
    if (part_lse[r] == kNoTokens) continue;
    const float top = std::max(lse[r], part_lse[r]);
    const float a = lse[r] == kNoTokens ? 0.0f : std::exp(lse[r] - top), b = std::exp(part_lse[r] - top);
    const float scale_a = a / (a + b), scale_b = b / (a + b);
    for (int d = 0; d < dim; ++d) out[r * dim + d] = scale_a * out[r * dim + d] + scale_b * part[r * dim + d];
    lse[r] = top + std::log(a + b);
  }
}

/// True when every |x| is at most `limit` (false for NaN).
bool Within(const float* x, int n, float limit) {
  bool within = true;
  for (int i = 0; i < n; ++i) within &= std::abs(x[i]) <= limit;
  return within;
}

/// Buffers of one worker.
struct Worker {
  CodesScratch codes;
  SimulatedCodes::Scratch simulated;
  PreparedQueries prepared;
  std::vector<const float*> queries;
  std::vector<int64_t> query_end;
  std::vector<const std::byte*> tiles;
  std::vector<float> out, lse, part, part_lse, rotated, exact_scratch, key, value;
};

}  // namespace

struct AttentionOp::Impl {
  Impl(ThreadPool& pool, KvCache& cache, const RopeConfig& rope_config)
      : pool(pool), cache(cache), rope(rope_config), workers(static_cast<size_t>(pool.threads())) {
    const CacheGeometry& g = cache.geometry();
    dim = g.head_dim;
    kv_heads = g.kv_heads;
    packed = cache.options().kind == CacheKind::kPacked;
    simulated = cache.options().kind == CacheKind::kSimulated;
    tile_layout = {cache.options().kind == CacheKind::kFloat ? ExactType::kFloat : ExactType::kHalf, dim,
                   kPageTokens};
    sink_layout = {ExactType::kHalf, dim, has_codes() ? cache.sink_tile_tokens() : 0};
    if (packed) {
      heads.reserve(cache.plan()->heads.size());
      for (const HeadPlan& plan : cache.plan()->heads) heads.push_back(PackedHead::Make(plan, rope));
    }
  }

  bool has_codes() const { return packed || simulated; }  // tokens become codes as they age
  const PackedHead& head(int kv_head) const { return heads[static_cast<size_t>(layer) * kv_heads + kv_head]; }
  float* RotatedQuery(int64_t row, int h) { return &q_rot[(row * query_heads + h) * dim]; }
  float* RotatedKey(int64_t row, int h) { return &k_rot[(row * kv_heads + h) * dim]; }

  void Rotate(const AttentionCall& call);
  void Observe(const AttentionCall& call);
  void StoreSegment(const std::vector<Segment*>& wave);
  void MakeTasks(const std::vector<Segment*>& wave);
  void PointAtQueries(const Task& task, Worker& w);
  void PrepareSplitQueries();
  void AttendTaskCodes(const Task& task, int64_t rows, Worker& w);
  void RunTask(const Task& task, Worker& w);
  void EncodeRows(const Segment& s, int kv_head, int64_t begin, int64_t end, Worker& w);
  void EncodeTile(const Segment& s, int kv_head, int64_t begin, int64_t end, Worker& w);
  void Encode(const Segment& s, int kv_head, int64_t begin, int64_t end, const float* keys,
              const float* values, int64_t stride, Worker& w);
  void SimulateCodes(const Segment& s, int kv_head, int64_t begin, int64_t end, Worker& w);
  void Flush(const std::vector<Segment*>& wave);
  std::byte* ExactTile(const Segment& s, int kv_head, int64_t tile);
  void NoteNonFinite(int64_t position) {
    int64_t seen = bad_position.load();
    while (position < seen && !bad_position.compare_exchange_weak(seen, position)) {
    }
  }

  ThreadPool& pool;
  KvCache& cache;
  RopeTable rope;
  std::vector<PackedHead> heads;
  std::vector<Worker> workers;
  int dim = 0, kv_heads = 0;
  bool packed = false, simulated = false;
  ExactLayout tile_layout, sink_layout;

  // State of the call in progress.
  int layer = 0, query_heads = 0, group = 0;
  float scale = 1;
  const CpuActivations *q_in = nullptr, *k_in = nullptr, *v_in = nullptr;
  CpuActivations* out = nullptr;
  std::atomic<int64_t> bad_position{0};
  std::vector<float> q_rot, k_rot;  // [rows, heads, D] post-RoPE, block order
  std::vector<std::byte> chunk;     // scratch tiles [tile, kv_head]
  std::vector<Task> tasks;
  std::vector<PreparedQueries> split_queries;
  std::vector<float> parts, parts_lse;  // partial results of split tasks
};

/// Where tokens of page `tile` are kept exactly while segment `s` runs.
std::byte* AttentionOp::Impl::ExactTile(const Segment& s, int kv_head, int64_t tile) {
  if (!has_codes()) return cache.PageHead(s.slice->sequence, layer, kv_head, tile);
  if (!s.chunk_tiles) return cache.WindowTile(s.slice->sequence, layer, kv_head, tile);
  const int64_t index = s.chunk_offset + (tile - s.coded / kPageTokens);
  return chunk.data() + (index * kv_heads + kv_head) * ExactTileBytes(true, dim, kPageTokens);
}

void AttentionOp::Impl::Rotate(const AttentionCall& call) {
  int64_t rows = 0, last = 0;
  for (const BatchSlice& s : call.slices) {
    rows = std::max(rows, s.first_row + s.count);
    last = std::max(last, s.first_position + s.count);
  }
  rope.Reserve(last + kPageTokens);
  q_rot.resize(static_cast<size_t>(rows) * query_heads * dim);
  k_rot.resize(static_cast<size_t>(rows) * kv_heads * dim);
  // Rotation keeps a pair's length: a key within half of fp16's range stays in it.
  const float limit =
      tile_layout.type == ExactType::kHalf ? kLargestHalf / 2 : std::numeric_limits<float>::max();
  const auto rotate_row = [&](const BatchSlice& s, int64_t i) {
    const int64_t row = s.first_row + i, position = s.first_position + i;
    for (int h = 0; h < query_heads; ++h)
      rope.Apply(q_in->row(row) + h * dim, position, RotatedQuery(row, h));
    for (int h = 0; h < kv_heads; ++h) {
      const float* key = k_in->row(row) + h * dim;
      if (!Within(key, dim, limit) || !Within(v_in->row(row) + h * dim, dim, limit)) NoteNonFinite(position);
      rope.Apply(key, position, RotatedKey(row, h));
    }
  };
  for (const BatchSlice& s : call.slices) {
    if (s.count < 8) {  // a parallel region costs more than these few rows
      for (int64_t i = 0; i < s.count; ++i) rotate_row(s, i);
    } else {
      pool.Run(s.count, [&](int64_t i, int) { rotate_row(s, i); });
    }
  }
}

void AttentionOp::Impl::Observe(const AttentionCall& call) {
  for (const BatchSlice& s : call.slices) {
    std::vector<float> q(static_cast<size_t>(s.count) * query_heads * dim);
    std::vector<float> k(static_cast<size_t>(s.count) * kv_heads * dim), v(k.size());
    for (int64_t i = 0; i < s.count; ++i) {
      const int64_t row = s.first_row + i;
      for (int h = 0; h < query_heads; ++h)
        rope.ToBlockOrder(q_in->row(row) + h * dim, &q[(i * query_heads + h) * dim]);
      for (int h = 0; h < kv_heads; ++h)
        rope.ToBlockOrder(k_in->row(row) + h * dim, &k[(i * kv_heads + h) * dim]);
      std::copy_n(v_in->row(row), kv_heads * dim, &v[i * kv_heads * dim]);
    }
    call.observer->Observe(layer, s.count, q.data(), k.data(), v.data());
  }
}

/// Encodes tokens [begin, end) of one page from the segment's own rows.
void AttentionOp::Impl::EncodeRows(const Segment& s, int kv_head, int64_t begin, int64_t end, Worker& w) {
  const int64_t row = s.slice->first_row + s.first + (begin - s.position), stride = int64_t{kv_heads} * dim;
  Encode(s, kv_head, begin, end, RotatedKey(row, kv_head), v_in->row(row) + kv_head * dim, stride, w);
}

/// Encodes tokens [begin, end) of one page from its exact tile.
void AttentionOp::Impl::EncodeTile(const Segment& s, int kv_head, int64_t begin, int64_t end, Worker& w) {
  const std::byte* tile = ExactTile(s, kv_head, begin / kPageTokens);
  w.key.resize(kPageTokens * dim);
  w.value.resize(kPageTokens * dim);
  for (int64_t t = begin; t < end; ++t) {
    LoadExact(tile_layout, tile, static_cast<int>(t % kPageTokens), &w.key[(t - begin) * dim],
              &w.value[(t - begin) * dim]);
  }
  Encode(s, kv_head, begin, end, w.key.data(), w.value.data(), dim, w);
}

void AttentionOp::Impl::Encode(const Segment& s, int kv_head, int64_t begin, int64_t end, const float* keys,
                               const float* values, int64_t stride, Worker& w) {
  if (simulated) {
    SimulatedCodes(cache, s.slice->sequence, layer, kv_head).Place(begin, end, keys, values, stride);
    return;
  }
  std::byte* record = cache.PageHead(s.slice->sequence, layer, kv_head, begin / kPageTokens);
  const int count = static_cast<int>(end - begin);
  if (!EncodeKeys(head(kv_head), rope, keys, stride, count, begin, w.codes, record) ||
      !EncodeValues(head(kv_head), values, stride, count, begin, w.codes, record)) {
    NoteNonFinite(begin);
  }
}

/// Second step of a simulated cache's encoding: tokens [begin, end) of one page, which Encode has put in
/// their places (as it has those that they depend on).
void AttentionOp::Impl::SimulateCodes(const Segment& s, int kv_head, int64_t begin, int64_t end, Worker& w) {
  if (end > begin) SimulatedCodes(cache, s.slice->sequence, layer, kv_head).Encode(begin, end, w.simulated);
}

void AttentionOp::Impl::StoreSegment(const std::vector<Segment*>& wave) {
  struct Store {
    Segment* s;
    int64_t page;
  };
  std::vector<Store> stores;
  for (Segment* s : wave) {
    for (int64_t page = s->position / kPageTokens; page <= (s->end() - 1) / kPageTokens; ++page) {
      stores.push_back({s, page});
    }
  }
  const auto store = [&](int64_t i, int worker) {
    const Segment& s = *stores[i / kv_heads].s;
    const int64_t page = stores[i / kv_heads].page;
    const int kv_head = static_cast<int>(i % kv_heads);
    const int64_t begin = std::max(s.position, page * kPageTokens),
                  end = std::min(s.end(), (page + 1) * kPageTokens);
    std::byte* tile = s.sees_own_codes ? nullptr : ExactTile(s, kv_head, page);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = s.slice->first_row + s.first + (t - s.position);
      const float* key = RotatedKey(row, kv_head);
      const float* value = v_in->row(row) + kv_head * dim;
      if (tile != nullptr) StoreExact(tile_layout, key, value, static_cast<int>(t % kPageTokens), tile);
      if (has_codes() && t < cache.options().sinks) {
        StoreExact(sink_layout, key, value, static_cast<int>(t),
                   cache.SinkTile(s.slice->sequence, layer, kv_head));
      }
    }
    if (s.sees_own_codes) EncodeRows(s, kv_head, begin, end, workers[worker]);
    // Exact tokens of earlier calls join the chunk's scratch tiles.
    if (s.chunk_tiles && cache.options().recent > 0 && page == s.position / kPageTokens) {
      for (int64_t t = s.coded; t < s.position; ++t) {
        Worker& w = workers[worker];
        w.key.resize(dim);
        w.value.resize(dim);
        const int slot = static_cast<int>(t % kPageTokens);
        LoadExact(tile_layout, cache.WindowTile(s.slice->sequence, layer, kv_head, t / kPageTokens), slot,
                  w.key.data(), w.value.data());
        StoreExact(tile_layout, w.key.data(), w.value.data(), slot, ExactTile(s, kv_head, t / kPageTokens));
      }
    }
  };
  const int64_t count = static_cast<int64_t>(stores.size()) * kv_heads;
  if (wave.size() == 1 && wave[0]->count == 1 && !wave[0]->sees_own_codes) {
    for (int64_t i = 0; i < count; ++i) store(i, 0);
  } else {
    pool.Run(count, store);
  }
  if (!simulated) return;
  pool.Run(count, [&](int64_t i, int worker) {
    const Segment& s = *stores[i / kv_heads].s;
    const int64_t page = stores[i / kv_heads].page;
    if (!s.sees_own_codes) return;
    SimulateCodes(s, static_cast<int>(i % kv_heads), std::max(s.position, page * kPageTokens),
                  std::min(s.end(), (page + 1) * kPageTokens), workers[worker]);
  });
}

void AttentionOp::Impl::MakeTasks(const std::vector<Segment*>& wave) {
  tasks.clear();
  int64_t part_rows = 0, shared = 0;
  const int sinks = has_codes() ? cache.options().sinks : 0;
  for (const Segment* s : wave) {
    const int64_t coded = s->sees_own_codes ? s->end() : s->coded;
    Task whole;
    whole.segment = s;
    whole.code_begin = std::min<int64_t>(sinks, coded);
    whole.code_end = coded;
    whole.sinks = whole.code_begin > 0;
    whole.exact_begin = coded;
    whole.exact_end = s->end();
    const bool split_codes = has_codes();
    const int64_t length = split_codes ? whole.code_end - whole.code_begin : whole.exact_end;
    const int64_t wanted =
        kTasksPerThread * pool.threads() / (static_cast<int64_t>(wave.size()) * kv_heads) + 1;
    const int64_t splits =
        s->count > 1 ? 1 : std::clamp<int64_t>(std::min(wanted, length / kMinSplitTokens), 1, wanted);
    for (int h = 0; h < kv_heads; ++h) {
      for (int64_t first = 0; first < s->count; first += kQueryBlock) {
        Task task = whole;
        task.kv_head = h;
        task.first = first;
        task.count = std::min(kQueryBlock, s->count - first);
        task.exact_end = std::min(task.exact_end, s->position + first + task.count);
        if (s->sees_own_codes) task.code_end = std::min(task.code_end, s->position + first + task.count);
        if (s->sees_own_codes) task.exact_begin = task.exact_end = 0;
        if (splits == 1) {
          tasks.push_back(task);
          continue;
        }
        const int64_t begin = split_codes ? task.code_begin : 0,
                      end = split_codes ? task.code_end : task.exact_end;
        const int64_t step =
            ((end - begin + splits - 1) / splits + kPageTokens - 1) / kPageTokens * kPageTokens;
        if (packed) task.prepared = shared++;
        for (int64_t b = begin; b < end; b = (b / kPageTokens * kPageTokens) + step) {
          Task part = task;
          const int64_t e = std::min(end, b / kPageTokens * kPageTokens + step);
          if (split_codes) {
            part.code_begin = b;
            part.code_end = e;
            part.sinks = task.sinks && b == begin;
            if (e != end) part.exact_begin = part.exact_end = 0;
          } else {
            part.exact_begin = b;
            part.exact_end = e;
          }
          part.part = part_rows;
          part_rows += task.count * group;
          tasks.push_back(part);
        }
      }
    }
  }
  parts.resize(static_cast<size_t>(part_rows) * dim);
  parts_lse.resize(static_cast<size_t>(part_rows));
}

/// The rotated queries of a task: its rows, and the query heads of its KV head within each.
void AttentionOp::Impl::PointAtQueries(const Task& task, Worker& w) {
  const int64_t first_row = task.segment->slice->first_row + task.segment->first + task.first;
  w.queries.resize(task.count * group);
  for (int64_t i = 0; i < task.count * group; ++i) {
    w.queries[i] = RotatedQuery(first_row + i / group, task.kv_head * group + static_cast<int>(i % group));
  }
}

/// Prepares the queries of split tasks, once for all their parts.
void AttentionOp::Impl::PrepareSplitQueries() {
  std::vector<const Task*> firsts;  // the first part of each
  for (const Task& task : tasks) {
    if (task.prepared == static_cast<int64_t>(firsts.size())) firsts.push_back(&task);
  }
  if (firsts.empty()) return;
  if (split_queries.size() < firsts.size()) split_queries.resize(firsts.size());
  pool.Run(static_cast<int64_t>(firsts.size()), [&](int64_t i, int worker) {
    Worker& w = workers[worker];
    PointAtQueries(*firsts[i], w);
    PrepareQueries(head(firsts[i]->kv_head), w.queries, scale, split_queries[i]);
  });
}

/// Attention of a task's queries over its codes, to w.out and w.lse.
void AttentionOp::Impl::AttendTaskCodes(const Task& task, int64_t rows, Worker& w) {
  const Segment& s = *task.segment;
  const int64_t* query_end = s.sees_own_codes ? w.query_end.data() : nullptr;
  w.tiles.resize((task.code_end - 1) / kPageTokens + 1);
  for (int64_t t = task.code_begin / kPageTokens; t < static_cast<int64_t>(w.tiles.size()); ++t) {
    w.tiles[t] = cache.PageHead(s.slice->sequence, layer, task.kv_head, t);
  }
  if (simulated) {
    AttendExact(SimulatedCodes::Layout(cache), w.queries, scale, w.tiles, task.code_begin, task.code_end,
                query_end, w.exact_scratch.data(), w.out.data(), w.lse.data());
    return;
  }
  const PackedHead& packed_head = head(task.kv_head);
  w.rotated.resize(static_cast<size_t>(rows) * packed_head.value_dims);
  if (task.prepared < 0) PrepareQueries(packed_head, w.queries, scale, w.prepared);
  AttendCodes(packed_head, task.prepared < 0 ? w.prepared : split_queries[task.prepared], 0,
              static_cast<int>(rows), w.tiles, task.code_begin, task.code_end, query_end, rope, w.codes,
              w.rotated.data(), w.lse.data());
  for (int64_t r = 0; r < rows; ++r) {
    UnrotateValue(packed_head, &w.rotated[r * packed_head.value_dims], &w.out[r * dim]);
  }
}

void AttentionOp::Impl::RunTask(const Task& task, Worker& w) {
  const Segment& s = *task.segment;
  const int64_t rows = task.count * group;
  const int64_t first_row = s.slice->first_row + s.first + task.first;
  PointAtQueries(task, w);
  w.query_end.resize(rows);
  for (int64_t i = 0; i < rows; ++i) w.query_end[i] = s.position + task.first + i / group + 1;
  w.out.assign(static_cast<size_t>(rows) * dim, 0.0f);
  w.lse.assign(static_cast<size_t>(rows), kNoTokens);
  w.part.resize(static_cast<size_t>(rows) * dim);
  w.part_lse.resize(static_cast<size_t>(rows));
  w.exact_scratch.resize(ExactScratchFloats(dim, static_cast<int>(rows)));
  const SequenceId sequence = s.slice->sequence;

  if (task.code_end > task.code_begin) AttendTaskCodes(task, rows, w);
  if (task.sinks) {
    const std::byte* tile = cache.SinkTile(sequence, layer, task.kv_head);
    AttendExact(sink_layout, w.queries, scale, {&tile, 1}, 0,
                std::min<int64_t>(cache.options().sinks, task.code_begin),
                s.sees_own_codes ? w.query_end.data() : nullptr, w.exact_scratch.data(), w.part.data(),
                w.part_lse.data());
    MergePart(rows, dim, w.part.data(), w.part_lse.data(), w.out.data(), w.lse.data());
  }
  if (task.exact_end > task.exact_begin) {
    w.tiles.resize((task.exact_end - 1) / kPageTokens + 1);
    for (int64_t t = task.exact_begin / kPageTokens; t < static_cast<int64_t>(w.tiles.size()); ++t) {
      w.tiles[t] = ExactTile(s, task.kv_head, t);
    }
    AttendExact(tile_layout, w.queries, scale, w.tiles, task.exact_begin, task.exact_end, w.query_end.data(),
                w.exact_scratch.data(), w.part.data(), w.part_lse.data());
    MergePart(rows, dim, w.part.data(), w.part_lse.data(), w.out.data(), w.lse.data());
  }
  if (task.part >= 0) {
    std::copy(w.out.begin(), w.out.end(), &parts[task.part * dim]);
    std::copy(w.lse.begin(), w.lse.end(), &parts_lse[task.part]);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(&w.out[i * dim], dim,
                out->row(first_row + i / group) + (task.kv_head * group + i % group) * dim);
  }
}

/// Encodes what leaves the window, and keeps what stays of a chunk's scratch tiles in the window ring.
void AttentionOp::Impl::Flush(const std::vector<Segment*>& wave) {
  struct Work {
    Segment* s;
    int64_t page;
  };
  std::vector<Work> work;
  for (Segment* s : wave) {
    if (s->sees_own_codes || (s->coded_after == s->coded && !s->chunk_tiles)) continue;
    const int64_t last = s->chunk_tiles ? (s->end() - 1) / kPageTokens : (s->coded_after - 1) / kPageTokens;
    for (int64_t page = s->coded / kPageTokens; page <= last; ++page) work.push_back({s, page});
  }
  if (work.empty()) return;
  pool.Run(static_cast<int64_t>(work.size()) * kv_heads, [&](int64_t i, int worker) {
    const Segment& s = *work[i / kv_heads].s;
    const int64_t page = work[i / kv_heads].page;
    const int kv_head = static_cast<int>(i % kv_heads);
    Worker& w = workers[worker];
    const int64_t begin = std::max(s.coded, page * kPageTokens);
    const int64_t end = std::min(s.coded_after, (page + 1) * kPageTokens);
    // A prompt chunk's own tokens are at hand in float; decoded tokens have been through the window.
    if (end > begin && s.chunk_tiles && begin >= s.position) {
      EncodeRows(s, kv_head, begin, end, w);
    } else if (end > begin) {
      EncodeTile(s, kv_head, begin, end, w);
    }
    if (s.chunk_tiles && cache.options().recent > 0 && (page + 1) * kPageTokens > s.coded_after) {
      std::copy_n(ExactTile(s, kv_head, page), ExactTileBytes(true, dim, kPageTokens),
                  cache.WindowTile(s.slice->sequence, layer, kv_head, page));
    }
  });
  if (!simulated) return;
  pool.Run(static_cast<int64_t>(work.size()) * kv_heads, [&](int64_t i, int worker) {
    const Segment& s = *work[i / kv_heads].s;
    const int64_t page = work[i / kv_heads].page;
    SimulateCodes(s, static_cast<int>(i % kv_heads), std::max(s.coded, page * kPageTokens),
                  std::min(s.coded_after, (page + 1) * kPageTokens), workers[worker]);
  });
}

AttentionOp::AttentionOp(ThreadPool& pool, KvCache& cache, const RopeConfig& rope)
    : impl_(std::make_unique<Impl>(pool, cache, rope)) {}
AttentionOp::~AttentionOp() = default;

Status AttentionOp::Run(const AttentionCall& call, const CpuActivations& queries, const CpuActivations& keys,
                        const CpuActivations& values, CpuActivations& out) {
  Impl& m = *impl_;
  m.layer = call.layer;
  m.query_heads = call.heads;
  m.group = call.heads / m.kv_heads;
  m.scale = call.scale;
  m.q_in = &queries;
  m.k_in = &keys;
  m.v_in = &values;
  m.out = &out;
  m.bad_position = std::numeric_limits<int64_t>::max();
  const auto check = [&]() -> Status {
    const int64_t bad = m.bad_position.load();
    if (bad == std::numeric_limits<int64_t>::max()) return Status::Ok();
    return Status(
        ErrorCode::kNonFinite,
        fmt::format("layer {}: a key or value at position {} is NaN or infinite; the model file or its "
                    "numerics are damaged",
                    call.layer, bad));
  };
  m.Rotate(call);
  BGTQ_RETURN_IF_ERROR(check());
  if (call.observer != nullptr) m.Observe(call);
  SegmentPlan plan = PlanSegments(m.cache, call.slices);
  m.chunk.resize(
      static_cast<size_t>(plan.chunk_tiles * m.kv_heads * ExactTileBytes(true, m.dim, kPageTokens)));

  for (size_t step = 0;; ++step) {  // segment `step` of every slice
    std::vector<Segment*> wave;
    for (std::vector<Segment>& of_slice : plan.segments) {
      if (step < of_slice.size()) wave.push_back(&of_slice[step]);
    }
    if (wave.empty()) break;
    m.StoreSegment(wave);
    BGTQ_RETURN_IF_ERROR(check());
    m.MakeTasks(wave);
    m.PrepareSplitQueries();
    m.pool.Run(static_cast<int64_t>(m.tasks.size()),
               [&](int64_t i, int worker) { m.RunTask(m.tasks[i], m.workers[worker]); });
    // Split tasks: parts of the same queries are adjacent.
    for (size_t i = 0; i < m.tasks.size(); ++i) {
      const Task& first = m.tasks[i];
      if (first.part < 0) continue;
      const int64_t rows = first.count * m.group;
      float* sum = &m.parts[first.part * m.dim];
      float* lse = &m.parts_lse[first.part];
      size_t j = i + 1;
      for (; j < m.tasks.size() && m.tasks[j].kv_head == first.kv_head && m.tasks[j].segment == first.segment;
           ++j) {
        MergePart(rows, m.dim, &m.parts[m.tasks[j].part * m.dim], &m.parts_lse[m.tasks[j].part], sum, lse);
      }
      const int64_t row = first.segment->slice->first_row + first.segment->first + first.first;
      std::copy_n(sum, rows * m.dim, out.row(row) + first.kv_head * m.group * m.dim);
      i = j - 1;
    }
    m.Flush(wave);
    BGTQ_RETURN_IF_ERROR(check());
  }
  return Status::Ok();
}

}  // namespace blockgtq::cpu
