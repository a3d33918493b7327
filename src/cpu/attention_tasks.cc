// The attention of a batch's segments as tasks: blocks of queries against ranges of tokens, split where one
// query has many, and merged.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/cpu/attention_latent.h"
#include "src/cpu/attention_op_impl.h"

namespace blockgtq::cpu {
namespace {

constexpr int64_t kQueryBlock =
    32;  // prompt tokens a task: an unpacked tile serves 32 * (heads / kv_heads) queries
constexpr int64_t kMostQueryRows = 512;    // a block's tokens times heads: what scratch is sized by
constexpr int64_t kMinSplitTokens = 512;   // a decode task reads at least this many tokens,
constexpr int64_t kMinSplitLatents = 128;  // of latents, whose tokens take longer and serve every head
constexpr int64_t kTasksPerThread = 8;     // decode tasks a thread, so that a late thread costs little

}  // namespace

void AttentionOp::Impl::MakeTasks(const std::vector<Segment*>& wave) {
  tasks.clear();
  int64_t part_rows = 0, shared = 0;
  const int sinks = has_codes() ? cache.options().sinks : 0;
  for (const Segment* s : wave) {
    const int64_t coded = s->sees_own_codes ? s->end() : s->coded;
    AttentionTask whole;
    whole.segment = s;
    whole.code_begin = std::min<int64_t>(sinks, coded);
    whole.code_end = coded;
    whole.sinks = whole.code_begin > 0;
    whole.exact_begin = coded;
    whole.exact_end = s->end();
    const int64_t seen = FirstSeen(s->position);  // by the only row, where tasks are split
    const bool split_codes = has_codes();
    const int64_t length = std::max<int64_t>(
        split_codes ? whole.code_end - std::max(whole.code_begin, seen) : whole.exact_end - seen, 0);
    // Where a sequence is cut does not depend on what else is in the batch: its sums are then the same, to
    // the bit, alone and among others.
    const int64_t wanted = kTasksPerThread * pool.threads() / kv_heads + 1;
    const int64_t least = latents ? kMinSplitLatents : kMinSplitTokens;
    const int64_t splits =
        s->count > 1 ? 1 : std::clamp<int64_t>(std::min(wanted, length / least), 1, wanted);
    const int64_t block = std::clamp<int64_t>(kMostQueryRows / group, 1, kQueryBlock);
    for (int h = 0; h < kv_heads; ++h) {
      for (int64_t first = 0; first < s->count; first += block) {
        AttentionTask task = whole;
        task.kv_head = h;
        task.first = first;
        task.count = std::min(block, s->count - first);
        task.exact_end = std::min(task.exact_end, s->position + first + task.count);
        if (s->sees_own_codes) task.code_end = std::min(task.code_end, s->position + first + task.count);
        if (s->sees_own_codes) task.exact_begin = task.exact_end = 0;
        const int64_t first_seen = FirstSeen(s->position + first);
        task.sinks = task.sinks && first_seen < sinks;
        task.code_begin = std::max(task.code_begin, first_seen);
        task.exact_begin = std::max(task.exact_begin, first_seen);
        if (splits == 1) {
          tasks.push_back(task);
          continue;
        }
        const int64_t begin = split_codes ? task.code_begin : task.exact_begin,
                      end = split_codes ? task.code_end : task.exact_end;
        const int64_t step =
            ((end - begin + splits - 1) / splits + kPageTokens - 1) / kPageTokens * kPageTokens;
        if (packed) task.prepared = shared++;
        for (int64_t b = begin; b < end; b = (b / kPageTokens * kPageTokens) + step) {
          AttentionTask part = task;
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
void AttentionOp::Impl::PointAtQueries(const AttentionTask& task, AttentionWorker& w) {
  const int64_t first_row = task.segment->slice->first_row + task.segment->first + task.first;
  w.queries.resize(task.count * group);
  for (int64_t i = 0; i < task.count * group; ++i) {
    w.queries[i] = RotatedQuery(first_row + i / group, task.kv_head * group + static_cast<int>(i % group));
  }
}

/// Prepares the queries of split tasks, once for all their parts.
void AttentionOp::Impl::PrepareSplitQueries() {
  std::vector<const AttentionTask*> firsts;  // the first part of each
  for (const AttentionTask& task : tasks) {
    if (task.prepared == static_cast<int64_t>(firsts.size())) firsts.push_back(&task);
  }
  if (firsts.empty()) return;
  if (split_queries.size() < firsts.size()) split_queries.resize(firsts.size());
  pool.Run(static_cast<int64_t>(firsts.size()), [&](int64_t i, int worker) {
    AttentionWorker& w = workers[worker];
    PointAtQueries(*firsts[i], w);
    const auto prepare = latents ? PrepareLatentQueries : PrepareQueries;
    prepare(head(firsts[i]->kv_head), w.queries, scale, split_queries[i]);
  });
}

/// What a task's queries see: `causal` where the range may hold tokens after them.
QueryBounds AttentionOp::Impl::Bounds(bool causal, const AttentionWorker& w) const {
  return {window > 0 ? w.query_begin.data() : nullptr, causal ? w.query_end.data() : nullptr};
}

/// Attention of a task's queries over its codes, to w.out and w.lse.
void AttentionOp::Impl::AttendTaskCodes(const AttentionTask& task, int64_t rows, AttentionWorker& w) {
  const Segment& s = *task.segment;
  const QueryBounds bounds = Bounds(s.sees_own_codes, w);
  w.tiles.resize((task.code_end - 1) / kPageTokens + 1);
  for (int64_t t = task.code_begin / kPageTokens; t < static_cast<int64_t>(w.tiles.size()); ++t) {
    w.tiles[t] = cache.PageHead(s.slice->sequence, layer, task.kv_head, t);
  }
  if (simulated) {
    AttendExact(SimulatedCodes::Layout(cache), w.queries, scale, w.tiles, task.code_begin, task.code_end,
                bounds, w.exact_scratch.data(), w.out.data(), w.lse.data());
    return;
  }
  const PackedHead& packed_head = head(task.kv_head);
  if (latents) {
    if (task.prepared < 0) PrepareLatentQueries(packed_head, w.queries, scale, w.prepared);
    AttendLatents(packed_head, task.prepared < 0 ? w.prepared : split_queries[task.prepared],
                  static_cast<int>(rows), w.tiles, task.code_begin, task.code_end, bounds, rope(), w.codes,
                  w.out.data(), w.lse.data());
    return;
  }
  w.rotated.resize(static_cast<size_t>(rows) * packed_head.value_dims);
  if (task.prepared < 0) PrepareQueries(packed_head, w.queries, scale, w.prepared);
  AttendCodes(packed_head, task.prepared < 0 ? w.prepared : split_queries[task.prepared], 0,
              static_cast<int>(rows), w.tiles, task.code_begin, task.code_end, bounds, rope(), w.codes,
              w.rotated.data(), w.lse.data());
  for (int64_t r = 0; r < rows; ++r) {
    UnrotateValue(packed_head, &w.rotated[r * packed_head.value_dims], &w.out[r * dim]);
  }
}

/// One head's output; a latent's, without the mean of the rope keys that came with it.
void AttentionOp::Impl::WriteOutput(const float* from, int64_t row, int h) {
  float* to = out->row(row) + int64_t{h} * dim;
  const int unused = latents ? dim - cache.geometry().latent_dims : 0;
  std::fill_n(to, unused, 0.0f);
  std::copy_n(from + unused, dim - unused, to + unused);
}

void AttentionOp::Impl::RunTask(const AttentionTask& task, AttentionWorker& w) {
  const Segment& s = *task.segment;
  const int64_t rows = task.count * group;
  const int64_t first_row = s.slice->first_row + s.first + task.first;
  PointAtQueries(task, w);
  w.query_end.resize(rows);
  w.query_begin.resize(rows);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t position = s.position + task.first + i / group;
    w.query_begin[i] = FirstSeen(position);
    w.query_end[i] = position + 1;
  }
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
                std::min<int64_t>(cache.options().sinks, s.sees_own_codes ? s.end() : s.coded),
                Bounds(s.sees_own_codes, w), w.exact_scratch.data(), w.part.data(), w.part_lse.data());
    MergePart(rows, dim, w.part.data(), w.part_lse.data(), w.out.data(), w.lse.data());
  }
  if (task.exact_end > task.exact_begin) {
    w.tiles.resize((task.exact_end - 1) / kPageTokens + 1);
    for (int64_t t = task.exact_begin / kPageTokens; t < static_cast<int64_t>(w.tiles.size()); ++t) {
      w.tiles[t] = ExactTile(s, task.kv_head, t);
    }
    AttendExact(tile_layout, w.queries, scale, w.tiles, task.exact_begin, task.exact_end, Bounds(true, w),
                w.exact_scratch.data(), w.part.data(), w.part_lse.data());
    MergePart(rows, dim, w.part.data(), w.part_lse.data(), w.out.data(), w.lse.data());
  }
  if (task.part >= 0) {
    std::copy(w.out.begin(), w.out.end(), &parts[task.part * dim]);
    std::copy(w.lse.begin(), w.lse.end(), &parts_lse[task.part]);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    WriteOutput(&w.out[i * dim], first_row + i / group, task.kv_head * group + static_cast<int>(i % group));
  }
}

/// Split tasks: merges the parts of the same queries, which are adjacent, and writes their rows.
void AttentionOp::Impl::MergeSplitTasks() {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionTask& first = tasks[i];
    if (first.part < 0) continue;
    const int64_t rows = first.count * group;
    float* sum = &parts[first.part * dim];
    float* lse = &parts_lse[first.part];
    size_t j = i + 1;
    for (; j < tasks.size() && tasks[j].kv_head == first.kv_head && tasks[j].segment == first.segment; ++j) {
      MergePart(rows, dim, &parts[tasks[j].part * dim], &parts_lse[tasks[j].part], sum, lse);
    }
    const int64_t row = first.segment->slice->first_row + first.segment->first + first.first;
    for (int64_t r = 0; r < rows; ++r)  // of one token
      WriteOutput(sum + r * dim, row, first.kv_head * group + static_cast<int>(r));
    i = j - 1;
  }
}

}  // namespace blockgtq::cpu
