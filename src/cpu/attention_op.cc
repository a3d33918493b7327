// One layer's attention for a batch: see attention_op.h. The work of a slice is cut into *segments* that
// attend to the same codes; segments of one slice run one after the other, those of different slices side by
// side.
#include "src/cpu/attention_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/cpu/attention_op_impl.h"

namespace blockgtq::cpu {
namespace {

constexpr float kLargestHalf = 65504.0f;

/// True when every |x| is at most `limit` (false for NaN).
bool Within(const float* x, int n, float limit) {
  bool within = true;
  for (int i = 0; i < n; ++i) within &= std::abs(x[i]) <= limit;
  return within;
}

}  // namespace

void AttentionOp::Impl::Rotate(const AttentionCall& call) {
  int64_t rows = 0, last = 0;
  for (const BatchSlice& s : call.slices) {
    rows = std::max(rows, s.first_row + s.count);
    last = std::max(last, s.first_position + s.count);
  }
  RopeTable& rope = this->rope();
  rope.Reserve(last + kPageTokens);
  q_rot.resize(static_cast<size_t>(rows) * query_heads * dim);
  k_rot.resize(static_cast<size_t>(rows) * kv_heads * dim);
  // Rotation keeps a pair's length but for the factor: a key within half of fp16's range stays in it.
  const float limit = tile_layout.type == ExactType::kHalf
                          ? kLargestHalf / 2 / std::max(1.0f, rope.config().attention_factor)
                          : std::numeric_limits<float>::max();
  const auto rotate_row = [&](const BatchSlice& s, int64_t i) {
    const int64_t row = s.first_row + i, position = s.first_position + i;
    for (int h = 0; h < query_heads; ++h)
      rope.Apply(q_in->row(row) + h * dim, position, RotatedQuery(row, h));
    for (int h = 0; h < kv_heads; ++h) {
      const float* key = k_in->row(row) + h * dim;
      const float* value = Value(row, h);
      if (!Within(key, dim, limit) || (value != nullptr && !Within(value, dim, limit)))
        NoteNonFinite(position);
      rope.Apply(key, position, RotatedKey(row, h));
    }
  };
  rotations.clear();
  for (const BatchSlice& s : call.slices) {
    for (int64_t i = 0; i < s.count; ++i) rotations.emplace_back(&s, i);
  }
  if (rotations.size() < 8) {  // a parallel region costs more than these few rows
    for (const auto& [slice, i] : rotations) rotate_row(*slice, i);
    return;
  }
  constexpr size_t kRowsPerTask = 4;
  const size_t blocks = (rotations.size() + kRowsPerTask - 1) / kRowsPerTask;
  pool.Run(static_cast<int64_t>(blocks), [&](int64_t block, int) {
    const size_t first = static_cast<size_t>(block) * kRowsPerTask;
    for (size_t r = first; r < std::min(first + kRowsPerTask, rotations.size()); ++r)
      rotate_row(*rotations[r].first, rotations[r].second);
  });
}

void AttentionOp::Impl::Observe(const AttentionCall& call) {
  const RopeTable& rope = this->rope();
  for (const BatchSlice& s : call.slices) {
    std::vector<float> q(static_cast<size_t>(s.count) * query_heads * dim);
    std::vector<float> k(static_cast<size_t>(s.count) * kv_heads * dim), v(k.size());
    for (int64_t i = 0; i < s.count; ++i) {
      const int64_t row = s.first_row + i;
      for (int h = 0; h < query_heads; ++h)
        rope.ToBlockOrder(q_in->row(row) + h * dim, &q[(i * query_heads + h) * dim]);
      for (int h = 0; h < kv_heads; ++h)
        rope.ToBlockOrder(k_in->row(row) + h * dim, &k[(i * kv_heads + h) * dim]);
      if (!latents) std::copy_n(v_in->row(row), kv_heads * dim, &v[i * kv_heads * dim]);
    }
    call.observer->Observe(layer, s.count, q.data(), k.data(), latents ? k.data() : v.data());
  }
}

AttentionOp::AttentionOp(ThreadPool& pool, KvCache& cache, const LayerRopes& ropes)
    : impl_(std::make_unique<Impl>(pool, cache, ropes)) {}
AttentionOp::~AttentionOp() = default;

Status AttentionOp::Run(const AttentionCall& call, const CpuActivations& queries, const CpuActivations& keys,
                        const CpuActivations* values, CpuActivations& out) {
  Impl& m = *impl_;
  m.layer = call.layer;
  m.query_heads = call.heads;
  m.group = call.heads / m.kv_heads;
  m.scale = call.scale;
  m.window = call.window;
  m.q_in = &queries;
  m.k_in = &keys;
  m.v_in = values;
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
  m.chunk.resize(static_cast<size_t>(plan.chunk_tiles * m.kv_heads * m.WindowTileBytes()));

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
    m.MergeSplitTasks();
    m.Flush(wave);
    BGTQ_RETURN_IF_ERROR(check());
  }
  return Status::Ok();
}

}  // namespace blockgtq::cpu
