// The plan of a step moves every token to where attention looks for it. Acts out the plan's stores and
// encodings on a model of the cache that holds token positions in place of bytes. Needs no device.
#include "src/cuda/step_plan.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>

#include "src/cache/kv_cache.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr int64_t kNothing = -1;

Plan TestPlan(int layers) {
  Plan plan;
  plan.model.layers = layers;
  plan.model.kv_heads = 1;
  plan.model.head_dim = 64;
  plan.heads.assign(
      static_cast<size_t>(layers),
      cpu::MakeHeadPlan({.head_dim = 64, .groups = {{3, 64}}, .value_width = 3, .mean_units = {}}, 1));
  return plan;
}

/// What the memory of a sequence holds: positions of tokens.
struct Sequence {
  std::vector<int64_t> codes;  // by position
  std::vector<std::vector<int64_t>> window;
  std::vector<int64_t> sinks;
};

class Actor {
 public:
  /// window: > 0: of a second layer.
  Actor(std::string name, CacheOptions options, int64_t window = 0)
      : name_(std::move(name)), window_(window), plan_(TestPlan(window > 0 ? 2 : 1)) {
    CacheGeometry geometry{plan_.model.layers, 1, 64};
    geometry.window = window;
    geometry.windowed = {0, 1};
    if (window == 0) geometry.windowed.clear();
    auto created = KvCache::Create(geometry, options, &plan_);
    Check(created.ok(), name_ + ": cache");
    cache_ = std::move(*created);
  }

  SequenceId Add() {
    const SequenceId id = *cache_->AddSequence();
    Sequence s;
    s.window.assign(static_cast<size_t>(cache_->window_tiles()), std::vector<int64_t>(64, kNothing));
    s.sinks.assign(static_cast<size_t>(cache_->sink_tile_tokens()), kNothing);
    sequences_[id] = s;
    return id;
  }

  void Truncate(SequenceId id, int64_t length) {
    Check(cache_->Truncate(id, length).ok(), name_ + ": truncation");
    auto& codes = sequences_[id].codes;
    codes.resize(std::min<size_t>(codes.size(), static_cast<size_t>(length)));
  }

  /// (sequence, new tokens, strict) of a step.
  struct Item {
    SequenceId id;
    int64_t count;
    bool strict;
  };
  void Step(const std::vector<Item>& items) {
    std::vector<BatchSlice> slices;
    rows_.clear();
    for (const Item& item : items) {
      const int64_t length = cache_->state(item.id).length;
      Check(cache_->Reserve(item.id, item.count).ok(), name_ + ": room");
      slices.push_back({item.id, static_cast<int64_t>(rows_.size()), item.count, length, item.strict});
      for (int64_t i = 0; i < item.count; ++i) {
        rows_.push_back({item.id, length + i, item.strict || item.count == 1});  // one row is a decoded token
      }
    }
    const StepPlan plan = PlanStep(*cache_, slices);
    if (window_ > 0) ExpectWindowPages(plan);
    Check(plan.targets.size() == rows_.size() && plan.coded.size() == rows_.size() &&
              plan.lengths.size() == rows_.size(),
          name_ + ": an entry a row");
    for (const Segment& s : plan.segments) Act(plan, s);
    if (plan.decode && cache_->options().recent > 0) {
      EncodeFromWindow(plan, plan.segments[0]);
    }
    for (const BatchSlice& slice : slices) {
      cache_->Commit(slice.sequence, slice.count, CodedEndAfter(*cache_, slice));
      const SequenceState state = cache_->state(slice.sequence);
      Expect(static_cast<int64_t>(sequences_[slice.sequence].codes.size()) == state.coded_end,
             "codes end where the books say", state.coded_end);
    }
  }

  const KvCache& cache() const { return *cache_; }

 private:
  struct Row {
    SequenceId id;
    int64_t position;
    bool strict;
  };

  void Expect(bool ok, const char* what, int64_t position) {
    if (!ok) Check(false, name_ + ": " + what + ", position " + std::to_string(position));
  }

  /// The windowed layer still has the pages that a segment's rows see, and of a chunk those of what it
  /// encodes.
  void ExpectWindowPages(const StepPlan& plan) {
    for (const Segment& s : plan.segments) {
      for (int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
        const Row& row = rows_[static_cast<size_t>(r)];
        int64_t first = std::max<int64_t>(row.position + 1 - window_, 0);
        if (s.chunk && cache_->options().kind == CacheKind::kPacked) first = std::min(first, s.coded);
        const std::span<const int32_t> blocks = cache_->blocks(row.id, 1);
        for (int64_t page = first / 64; page <= row.position / 64; ++page)
          Expect(blocks[static_cast<size_t>(page)] >= 0, "a page that is seen is there", page * 64);
      }
    }
  }

  void Act(const StepPlan& plan, const Segment& s) {
    const CacheOptions& options = cache_->options();
    const bool packed = options.kind == CacheKind::kPacked, at_once = packed && options.recent == 0;
    scratch_.clear();
    if (packed && s.chunk) {  // the prefix is taken out first
      const int64_t coded = cache_->state(s.sequence).coded_end;
      Expect(s.coded == coded && s.scratch_first <= coded && s.scratch_first % kPrefixTokens == 0,
             "a chunk's scratch begins at a piece", s.scratch_first);
      for (int64_t t = s.scratch_first; t < s.position; ++t) {
        scratch_.push_back(Find(sequences_[s.sequence], t, coded, options.sinks));
        Expect(scratch_.back() == t, "the prefix is there", t);
      }
    }
    for (int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
      Store(plan.targets[static_cast<size_t>(r)], rows_[static_cast<size_t>(r)], packed);
      if (s.chunk) scratch_.push_back(rows_[static_cast<size_t>(r)].position);
    }
    if (packed && (s.chunk || at_once)) EncodeFromRows(plan, s);
    for (int64_t r = s.first_row; r < s.first_row + s.rows; ++r) Attend(plan, s, r, packed, at_once);
    if (packed && !s.chunk && !at_once && !plan.decode) EncodeFromWindow(plan, s);
  }

  int64_t Find(const Sequence& s, int64_t t, int64_t coded, int sinks) const {
    if (t < sinks) return s.sinks[static_cast<size_t>(t)];
    if (t < coded)
      return t < static_cast<int64_t>(s.codes.size()) ? s.codes[static_cast<size_t>(t)] : kNothing;
    if (s.window.empty()) return kNothing;
    return s.window[static_cast<size_t>(t / 64) % s.window.size()][static_cast<size_t>(t % 64)];
  }

  void Store(const RowTarget& target, const Row& row, bool packed) {
    Sequence& s = sequences_[row.id];
    Expect(target.position == row.position, "a row's position", row.position);
    Expect(target.exact == reinterpret_cast<const uint8_t*>(cache_->exact_base(row.id)), "its exact tiles",
           row.position);
    if (!packed) {
      for (int group = 0; group < cache_->groups(); ++group) {
        Expect(target.page[group] == cache_->blocks(row.id, group)[static_cast<size_t>(row.position / 64)],
               "its page", row.position);
      }
      return;
    }
    Expect(target.page[0] < 0 && target.page[1] < 0, "no page of a packed cache", row.position);
    if (target.window_tile >= 0) {
      s.window[static_cast<size_t>(target.window_tile)][static_cast<size_t>(row.position % 64)] =
          row.position;
    }
    if (target.sink_slot >= 0) s.sinks[static_cast<size_t>(target.sink_slot)] = row.position;
  }

  template <typename Source>
  void Encode(const StepPlan& plan, const Segment& s, Source source) {
    Expect(plan.counts[static_cast<size_t>(s.counter)] == s.jobs, "the number of jobs", s.position);
    std::map<int32_t, int> blocks;
    for (int64_t j = s.first_job; j < s.first_job + s.jobs; ++j) {
      const EncodeJob& job = plan.jobs[static_cast<size_t>(j)];
      const auto owner = std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
        return reinterpret_cast<const uint8_t*>(cache_->exact_base(entry.first)) == job.exact ||
               sequences_.size() == 1;
      });
      Check(owner != sequences_.end(), name_ + ": a job's sequence");
      for (int group = 0; group < cache_->groups(); ++group) {
        Expect(
            job.block[group] == cache_->blocks(owner->first, group)[static_cast<size_t>(job.position / 64)] &&
                job.block[group] >= 0,
            "a job's page", job.position);
      }
      Expect(++blocks[job.block[0]] == 1, "one job a page in a launch", job.position);
      Expect(0 <= job.begin && job.begin < job.end && job.end <= 64, "a job's slots", job.position);
      for (int slot = job.begin; slot < job.end; ++slot) {
        const int64_t t = job.position + slot;
        Expect(static_cast<int64_t>(owner->second.codes.size()) == t, "tokens are encoded in order, once", t);
        owner->second.codes.push_back(source(job, owner->second, slot));
        Expect(owner->second.codes.back() == t, "what is encoded is that token", t);
      }
    }
  }
  void EncodeFromWindow(const StepPlan& plan, const Segment& s) {
    Encode(plan, s, [&](const EncodeJob& job, const Sequence& sequence, int slot) {
      return sequence
          .window[static_cast<size_t>(job.position / 64) % sequence.window.size()][static_cast<size_t>(slot)];
    });
  }
  void EncodeFromRows(const StepPlan& plan, const Segment& s) {
    Encode(plan, s, [&](const EncodeJob& job, const Sequence&, int slot) {
      const size_t at = static_cast<size_t>(job.first_row + slot - job.begin);
      if (s.chunk) {  // from the first exact token on
        const size_t exact = at + static_cast<size_t>(s.coded - s.scratch_first);
        return exact < scratch_.size() ? scratch_[exact] : kNothing;
      }
      return at < rows_.size() ? rows_[at].position : kNothing;
    });
  }

  void Attend(const StepPlan& plan, const Segment& s, int64_t r, bool packed, bool at_once) {
    const Row& row = rows_[static_cast<size_t>(r)];
    const Sequence& sequence = sequences_[row.id];
    const int64_t coded = plan.coded[static_cast<size_t>(r)], length = plan.lengths[static_cast<size_t>(r)];
    Expect(length == row.position + 1, "a row sees itself and what is before it", row.position);
    if (!packed) return;
    const int64_t before = cache_->state(row.id).coded_end;
    const bool as_decoded = row.strict || plan.decode;
    const int64_t wanted = !as_decoded ? before
                           : at_once   ? row.position + 1
                                       : std::max(before, cache_->CodedEndBefore(row.position));
    Expect(coded == wanted, "codes that a row attends to", row.position);
    // All tokens near the ends, and some between.
    for (int64_t t = 0; t < length; t += t < 70 || t + 300 > length || t % 64 > 61 ? 1 : 17) {
      int64_t found = Find(sequence, t, s.chunk ? before : coded, cache_->options().sinks);
      if (s.chunk && t >= s.scratch_first) {
        const size_t at = static_cast<size_t>(t - s.scratch_first);
        found = at < scratch_.size() ? scratch_[at] : kNothing;
      }
      Expect(found == t, "a token that it attends to is there", t);
    }
  }

  std::string name_;
  int64_t window_ = 0;
  Plan plan_;
  std::unique_ptr<KvCache> cache_;
  std::map<SequenceId, Sequence> sequences_;
  std::vector<Row> rows_;
  std::vector<int64_t> scratch_;
};

CacheOptions Options(CacheKind kind, int sinks, int recent, int64_t tokens) {
  CacheOptions options;
  options.kind = kind;
  options.sinks = sinks;
  options.recent = recent;
  options.max_tokens = tokens;
  return options;
}

void RandomSteps(CacheKind kind, int sinks, int recent, int64_t window = 0) {
  std::string name = "sinks " + std::to_string(sinks) + ", recent " + std::to_string(recent);
  if (kind == CacheKind::kHalf) name = "fp16";
  if (window > 0) name += ", window " + std::to_string(window);
  // A sequence without exact tiles has none to be told by: one alone.
  const size_t most = sinks + recent > 0 && kind == CacheKind::kPacked ? 4 : 1;
  Actor actor(name, Options(kind, sinks, recent, 40000), window);
  std::mt19937 random(17);
  std::vector<SequenceId> ids;
  while (ids.size() < most) ids.push_back(actor.Add());
  const int64_t counts[] = {1, 1, 2, 30, 63, 64, 65, 100, 129, 700};
  for (int step = 0; step < 250; ++step) {
    std::vector<Actor::Item> items;
    const bool decode = random() % 2 == 0;
    for (const SequenceId id : ids) {
      const int64_t length = actor.cache().state(id).length;
      if (length > 4000 || random() % 12 == 0) {
        const int64_t most = window > 0 ? kRewindTokens + 1 : 80;  // pages of windows are given back
        const int64_t half = window > 0 ? 0 : length / 2;
        actor.Truncate(id, random() % 2 ? length - std::min<int64_t>(length, random() % most) : half);
      }
      if (random() % 4 == 0 && items.size() + 1 < ids.size()) continue;
      items.push_back({id, decode ? 1 : counts[random() % std::size(counts)], random() % 2 == 0});
    }
    if (!items.empty()) actor.Step(items);
  }
  Check(true, name);
}

// A prompt so long that its prefix is unpacked in pieces.
void LongPrompt(int recent) {
  Actor actor("a long prompt, recent " + std::to_string(recent),
              Options(CacheKind::kPacked, 4, recent, 140000));
  const SequenceId id = actor.Add();
  for (int64_t done = 0; done < 135168; done += 2048) actor.Step({{id, 2048, false}});
  Check(true, "a long prompt");
}

int Main() {
  for (const int recent : {0, 1, 64, 100, 300}) {
    for (const int sinks : {0, 4, 17}) RandomSteps(CacheKind::kPacked, sinks, recent);
  }
  RandomSteps(CacheKind::kHalf, 0, 0);
  for (const int64_t window : {20, 100, 1000}) {
    for (const int recent : {0, 64}) RandomSteps(CacheKind::kPacked, 4, recent, window);
    RandomSteps(CacheKind::kHalf, 0, 0, window);
  }
  LongPrompt(64);
  LongPrompt(0);
  std::printf("%d checks, %d failed\n", g_checks, g_failures);
  return g_failures > 0 ? 1 : 0;
}

}  // namespace
}  // namespace blockgtq::cuda

int main() { return blockgtq::cuda::Main(); }
