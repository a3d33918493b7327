// AttentionOp over caches of every kind, driven by random operations on several sequences, against a scalar
// model of what each token must see; and the same comparison with rules broken on purpose.
#include "src/cpu/attention_op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "src/cpu/cpu_backend.h"
#include "tests/cpu/attention_op_model.h"
#include "tests/cpu/packed_head_model.h"

namespace blockgtq::cpu {
namespace {

// Relative L2 of one query head's output. Codes: P is rounded to 8 bits (keys are 5 and 8 bits wide, for
// which queries keep 16). Exact tokens: float arithmetic.
constexpr double kCodesTolerance = 2e-2, kExactTolerance = 2e-5;

struct Setting {
  CacheKind kind;
  int sinks, recent, heads, kv_heads, dim;
  float value_size = 1.0f;
  int64_t window = 0;  // as AttentionCall::window
};

// Values so small that fp16 keeps a bit or two of them: codes of an fp16 copy differ from codes of the
// values.
constexpr float kTinyValues = 1e-7f;

std::string Name(const Setting& s) {
  const std::string shape = std::to_string(s.heads) + "on" + std::to_string(s.kv_heads) + "D" +
                            std::to_string(s.dim) + (s.window > 0 ? "Window" + std::to_string(s.window) : "");
  if (s.value_size != 1.0f) return "TinyValues" + std::to_string(s.sinks) + "_" + shape;
  if (s.kind == CacheKind::kHalf) return "Fp16_" + shape;
  if (s.kind == CacheKind::kFloat) return "Fp32_" + shape;
  return (s.kind == CacheKind::kSimulated ? "Simulated" : "Packed") + std::to_string(s.sinks) + "and" +
         std::to_string(s.recent) + "_" + shape;
}
void PrintTo(const Setting& s, std::ostream* os) { *os << Name(s); }

// Values of few bits: a token seen as codes differs much from the same token seen exactly.
Plan MakePlan(const Setting& s) {
  Plan plan;
  plan.model.layers = 1;
  plan.model.heads = s.heads;
  plan.model.kv_heads = s.kv_heads;
  plan.model.head_dim = s.dim;
  for (int h = 0; h < s.kv_heads; ++h) {
    HeadSpec spec{s.dim, {{8, 16}, {5, s.dim - 16}}, 2, {}};
    if (h == 1) {
      spec = {s.dim, {{5, s.dim}}, 1, {1}, s.value_size == 1.0f ? NormType::kHalf : NormType::kLog8};
    }
    plan.heads.push_back(MakeHeadPlan(spec, 40 + h));
    plan.heads.back().value.norm_reference *= s.value_size;
  }
  return plan;
}

CacheOptions MakeOptions(const Setting& s, int64_t max_tokens, const Plan& plan, const RopeConfig& rope) {
  CacheOptions options{s.kind, s.sinks, s.recent, max_tokens, ""};
  if (s.kind == CacheKind::kSimulated) options.simulated = SimulateWithLag(plan, rope);
  return options;
}

/// A cache, its operation and the model, kept in step.
class Harness {
 public:
  struct Piece {
    SequenceId id;
    int64_t count;
    bool strict;
  };

  Harness(const Setting& s, int64_t max_tokens, uint64_t seed)
      : setting_(s),
        plan_(MakePlan(s)),
        rope_(MakeRope(s.dim)),
        options_(MakeOptions(s, max_tokens, plan_, rope_)),
        cache_(KvCache::Create({1, s.kv_heads, s.dim}, options_, &plan_).value()),
        op_(pool_, *cache_, {{rope_}}),
        random_(seed),
        model(options_, &plan_, rope_, s.heads, s.kv_heads, Scale()) {
    model.window = s.window;
  }

  KvCache& cache() { return *cache_; }
  std::mt19937_64& random() { return random_; }
  int64_t Uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  /// The largest error of any compared query head since the start.
  double largest_error() const { return largest_error_; }

  SequenceId Add() {
    const SequenceId id = cache_->AddSequence().value();
    model.Add(id);
    return id;
  }
  void Remove(SequenceId id) {
    cache_->RemoveSequence(id);
    model.Remove(id);
  }
  void Truncate(SequenceId id, int64_t length) {
    ASSERT_TRUE(cache_->Truncate(id, length).ok());
    model.Truncate(id, length);
  }
  SequenceId Fork(SequenceId from, int64_t tokens) {
    const SequenceId id = cache_->ForkSequence(from, tokens).value();
    model.Fork(from, id, tokens);
    return id;
  }

  /// Appends random tokens to several sequences in one batch and compares a sample of the rows.
  void Append(const std::vector<Piece>& pieces) {
    std::vector<BatchSlice> slices;
    int64_t rows = 0;
    for (const Piece& piece : pieces) {
      const Status reserved = cache_->Reserve(piece.id, piece.count);
      ASSERT_TRUE(reserved.ok()) << reserved.message();
      slices.push_back({piece.id, rows, piece.count, cache_->state(piece.id).length, piece.strict});
      rows += piece.count;
    }
    CpuActivations queries(rows, setting_.heads * setting_.dim), out(rows, setting_.heads * setting_.dim);
    CpuActivations keys(rows, setting_.kv_heads * setting_.dim),
        values(rows, setting_.kv_heads * setting_.dim);
    Fill(queries);
    Fill(keys);
    Fill(values);
    for (int64_t r = 0; r < rows; ++r) {
      AddMean(keys.row(r));
      for (int64_t c = 0; c < values.cols(); ++c) values.row(r)[c] *= setting_.value_size;
    }

    AttentionCall call;
    call.layer = 0;
    call.heads = setting_.heads;
    call.scale = Scale();
    call.window = setting_.window;
    call.slices = slices;
    const Status status = op_.Run(call, queries, keys, &values, out);
    ASSERT_TRUE(status.ok()) << status.message();
    for (const BatchSlice& slice : slices) {
      cache_->Commit(slice.sequence, slice.count, CodedEndAfter(*cache_, slice));
    }
    for (const BatchSlice& slice : slices) {
      const auto wanted = [&](int64_t i) {
        const int64_t apart = slice.count <= 12 ? 1 : slice.count <= 200 ? 5 : 250;
        return i % apart == 0 || i + 1 == slice.count;
      };
      const std::vector<std::vector<double>> expected =
          model.Append(slice.sequence, slice.count, slice.strict, queries.row(slice.first_row),
                       keys.row(slice.first_row), values.row(slice.first_row), wanted);
      for (int64_t i = 0; i < slice.count; ++i) {
        if (!expected[i].empty()) Compare(out.row(slice.first_row + i), expected[i], slice, i);
      }
      EXPECT_EQ(cache_->state(slice.sequence).length, model.state(slice.sequence).length);
      EXPECT_EQ(cache_->state(slice.sequence).coded_end, model.state(slice.sequence).coded_end);
    }
  }

 private:
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(setting_.dim)); }

  // Each row normal, rows of different sizes.
  void Fill(CpuActivations& x) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < x.rows(); ++r) {
      const float size = std::exp2(0.5f * std::clamp(normal(random_), -2.0f, 2.0f));
      for (int64_t c = 0; c < x.cols(); ++c) x.row(r)[c] = size * normal(random_);
    }
  }

  void AddMean(float* keys) const {
    for (int h = 0; h < setting_.kv_heads; ++h) {
      const std::vector<float>& mean = plan_.heads[h].key_mean;
      for (size_t d = 0; d < mean.size(); ++d) keys[h * setting_.dim + d] += mean[d];
    }
  }

  void Compare(const float* got, const std::vector<double>& want, const BatchSlice& slice, int64_t i) {
    const int dim = setting_.dim;
    const double tolerance = setting_.kind == CacheKind::kPacked ? kCodesTolerance : kExactTolerance;
    for (int h = 0; h < setting_.heads; ++h) {
      double error = 0, size = 0;
      for (int d = h * dim; d < (h + 1) * dim; ++d) {
        error += (got[d] - want[d]) * (got[d] - want[d]);
        size += want[d] * want[d];
      }
      const double relative = std::sqrt(error / size);
      // Written so that NaN counts.
      if (!(relative <= largest_error_)) largest_error_ = relative;
      if (model.mistake == Mistake::kNone) {
        EXPECT_LE(relative, tolerance)
            << "head " << h << " at position " << slice.first_position + i << " of sequence "
            << slice.sequence << ", row " << i << " of " << slice.count << (slice.strict ? " strict" : "");
      }
    }
  }

  Setting setting_;
  Plan plan_;
  RopeConfig rope_;
  CacheOptions options_;
  ThreadPool pool_{2};
  std::unique_ptr<KvCache> cache_;
  AttentionOp op_;
  std::mt19937_64 random_;
  double largest_error_ = 0;

 public:
  AttentionModel model;
};

std::vector<Setting> Settings() {
  std::vector<Setting> settings;
  struct Shape {
    int heads, kv_heads, dim;
  };
  for (const Shape& shape : {Shape{3, 1, 64}, Shape{4, 2, 32}}) {
    const auto add = [&](CacheKind kind, int sinks, int recent) {
      settings.push_back({kind, sinks, recent, shape.heads, shape.kv_heads, shape.dim});
    };
    add(CacheKind::kPacked, 0, 0);
    add(CacheKind::kPacked, 4, 0);
    add(CacheKind::kPacked, 4, 64);
    add(CacheKind::kPacked, 0, 100);
    add(CacheKind::kPacked, 16, 32);
    add(CacheKind::kPacked, 64, 1);
    add(CacheKind::kPacked, 4, 5000);  // never anything to encode
    // recent = 0: every token is encoded from float.
    settings.push_back({CacheKind::kPacked, 4, 0, shape.heads, shape.kv_heads, shape.dim, kTinyValues});
    add(CacheKind::kSimulated, 0, 0);
    add(CacheKind::kSimulated, 4, 64);
    add(CacheKind::kSimulated, 16, 100);
    add(CacheKind::kHalf, 0, 0);
    add(CacheKind::kFloat, 0, 0);
    // Within a page, over pages and as long as the sequences of the split test.
    for (const int64_t window : {int64_t{1}, int64_t{16}, int64_t{150}, int64_t{1300}}) {
      settings.push_back({CacheKind::kPacked, 4, 64, shape.heads, shape.kv_heads, shape.dim, 1.0f, window});
      settings.push_back({CacheKind::kFloat, 0, 0, shape.heads, shape.kv_heads, shape.dim, 1.0f, window});
    }
    settings.push_back({CacheKind::kPacked, 16, 0, shape.heads, shape.kv_heads, shape.dim, 1.0f, 40});
    settings.push_back({CacheKind::kSimulated, 16, 32, shape.heads, shape.kv_heads, shape.dim, 1.0f, 100});
    settings.push_back({CacheKind::kHalf, 0, 0, shape.heads, shape.kv_heads, shape.dim, 1.0f, 100});
  }
  return settings;
}

class AttentionOpTest : public ::testing::TestWithParam<Setting> {};

TEST_P(AttentionOpTest, RandomOperationsSeeWhatTheModelSees) {
  constexpr int kOperations = 40;
  constexpr int64_t kLongest = 480;
  constexpr size_t kMostSequences = 3;
  Harness harness(GetParam(), 4 * 512, 17);
  std::vector<SequenceId> ids = {harness.Add(), harness.Add()};
  for (int step = 0; step < kOperations && !HasFailure(); ++step) {
    SCOPED_TRACE("operation " + std::to_string(step));
    const SequenceId id = ids[harness.Uniform(0, static_cast<int64_t>(ids.size()) - 1)];
    const int64_t length = harness.cache().state(id).length, choice = harness.Uniform(0, 99);
    if (choice < 70) {
      std::shuffle(ids.begin(), ids.end(), harness.random());
      std::vector<Harness::Piece> pieces;
      for (SequenceId some : ids) {
        if (!pieces.empty() && harness.Uniform(0, 1) == 0) continue;
        const int64_t kind = harness.Uniform(0, 9);
        int64_t count = kind < 4 ? 1 : kind < 7 ? harness.Uniform(2, 40) : harness.Uniform(2, 200);
        count = std::min(count, kLongest - harness.cache().state(some).length);
        if (count > 0) pieces.push_back({some, count, harness.Uniform(0, 1) == 1});
      }
      if (!pieces.empty()) harness.Append(pieces);
    } else if (choice < 85) {
      // A little, or anywhere: below coded_end more often than not.
      harness.Truncate(id, harness.Uniform(0, 2) == 0
                               ? length - harness.Uniform(0, std::min<int64_t>(length, 70))
                               : harness.Uniform(0, length));
    } else if (choice < 95 && ids.size() < kMostSequences) {
      ids.push_back(harness.Fork(id, harness.Uniform(0, length)));
    } else if (ids.size() > 1) {
      harness.Remove(id);
      std::erase(ids, id);
    }
  }
}

// Long enough that a decoded token's range is split over tasks and merged; two sequences side by side.
TEST_P(AttentionOpTest, DecodedTokensOfLongSequencesAreMergedFromSplits) {
  Harness harness(GetParam(), 4096, 23);
  const SequenceId a = harness.Add(), b = harness.Add();
  harness.Append({{a, 1700, false}});
  harness.Append({{b, 1101, false}});
  for (int i = 0; i < 3; ++i) {
    harness.Append({{b, 1, false}, {a, 1, true}});
    harness.Append({{a, 1, false}});
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, AttentionOpTest, ::testing::ValuesIn(Settings()),
                         [](const auto& info) { return Name(info.param); });

/// Attention of one token whose queries, keys and values are 1 but for one element.
Status RunWith(CacheKind kind, int query, int key, int value, float element) {
  const Setting s{kind, 0, 0, 2, 1, 32};
  const Plan plan = MakePlan(s);
  const RopeConfig rope = MakeRope(s.dim);
  const auto cache = KvCache::Create({1, s.kv_heads, s.dim}, MakeOptions(s, 64, plan, rope), &plan).value();
  const auto backend = CreateCpuBackend({.threads = 1}).value();
  const auto binding = backend->BindCache(*cache, {{rope}}).value();
  CpuActivations queries(1, s.heads * s.dim), keys(1, s.dim), values(1, s.dim), out(1, s.heads * s.dim);
  for (CpuActivations* x : {&queries, &keys, &values}) std::fill_n(x->row(0), x->cols(), 1.0f);
  if (query >= 0) queries.row(0)[query] = element;
  if (key >= 0) keys.row(0)[key] = element;
  if (value >= 0) values.row(0)[value] = element;
  const SequenceId id = cache->AddSequence().value();
  EXPECT_TRUE(cache->Reserve(id, 1).ok());
  const std::vector<BatchSlice> slices = {{id, 0, 1, 0, false}};
  AttentionCall call;
  call.cache = binding.get();
  call.heads = s.heads;
  call.queries = &queries;
  call.keys = &keys;
  call.values = &values;
  call.out = &out;
  call.slices = slices;
  return backend->Attention(call);
}

// A score that is not finite would drop out of the softmax, and the output look like any other.
TEST(AttentionOp, AnElementThatIsNotFiniteIsAnErrorWhereverItStands) {
  for (const CacheKind kind : {CacheKind::kHalf, CacheKind::kFloat, CacheKind::kPacked}) {
    EXPECT_TRUE(RunWith(kind, 40, 3, 3, 1.5f).ok());
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      EXPECT_EQ(RunWith(kind, 40, -1, -1, bad).code(), ErrorCode::kNonFinite) << "query " << bad;
      EXPECT_EQ(RunWith(kind, -1, 3, -1, bad).code(), ErrorCode::kNonFinite) << "key " << bad;
      EXPECT_EQ(RunWith(kind, -1, -1, 3, bad).code(), ErrorCode::kNonFinite) << "value " << bad;
    }
  }
}

struct Planted {
  const char* name;
  Mistake mistake;
  CacheKind kind;
  int sinks, recent;
  float value_size = 1.0f;
  int64_t window = 0;
};
void PrintTo(const Planted& p, std::ostream* os) { *os << p.name; }

class PlantedMistakeTest : public ::testing::TestWithParam<Planted> {};

// The tolerance tells a wrong rule from rounding.
TEST_P(PlantedMistakeTest, ExceedsTheTolerance) {
  const Planted& p = GetParam();
  Harness harness({p.kind, p.sinks, p.recent, 4, 2, 32, p.value_size, p.window}, 1024, 29);
  const SequenceId id = harness.Add();
  harness.Append({{id, 150, false}});
  harness.Append({{id, 40, true}});
  ASSERT_LE(harness.largest_error(), kCodesTolerance);
  harness.model.mistake = p.mistake;
  harness.Append({{id, 20, false}});
  for (int i = 0; i < 16; ++i) harness.Append({{id, 1, false}});
  EXPECT_GT(harness.largest_error(), 2 * kCodesTolerance);
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, PlantedMistakeTest,
    ::testing::Values(Planted{"DropCoded", Mistake::kDropToken, CacheKind::kPacked, 4, 64},
                      Planted{"DropOwn", Mistake::kDropToken, CacheKind::kPacked, 0, 0},
                      Planted{"DropHalf", Mistake::kDropToken, CacheKind::kHalf, 0, 0},
                      Planted{"NextToken", Mistake::kNextToken, CacheKind::kPacked, 4, 64},
                      Planted{"NextTokenFloat", Mistake::kNextToken, CacheKind::kFloat, 0, 0},
                      Planted{"RepeatPage", Mistake::kRepeatPage, CacheKind::kPacked, 0, 32},
                      Planted{"DropSimulated", Mistake::kDropToken, CacheKind::kSimulated, 4, 64},
                      Planted{"LateFlushSimulated", Mistake::kLateFlush, CacheKind::kSimulated, 0, 32},
                      Planted{"OwnExactSimulated", Mistake::kOwnExact, CacheKind::kSimulated, 0, 0},
                      Planted{"SinkLess", Mistake::kSinkLess, CacheKind::kPacked, 4, 64},
                      Planted{"SinkMore", Mistake::kSinkMore, CacheKind::kPacked, 16, 0},
                      Planted{"LateFlush", Mistake::kLateFlush, CacheKind::kPacked, 0, 32},
                      Planted{"OwnExact", Mistake::kOwnExact, CacheKind::kPacked, 0, 0},
                      Planted{"OwnCodes", Mistake::kOwnCodes, CacheKind::kPacked, 4, 0},
                      Planted{"WideWindow", Mistake::kWideWindow, CacheKind::kFloat, 0, 0, 1.0f, 20},
                      Planted{"WideWindowPacked", Mistake::kWideWindow, CacheKind::kPacked, 4, 64, 1.0f, 20},
                      Planted{"FromHalf", Mistake::kFromHalf, CacheKind::kPacked, 0, 0, kTinyValues}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace blockgtq::cpu
