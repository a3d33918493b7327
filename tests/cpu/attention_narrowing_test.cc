// Simulated codes that change as a sequence grows: every token attends to codes as they are stored at its own
// time, whatever the batches were.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "src/cpu/attention_op.h"
#include "src/cpu/cpu_backend.h"
#include "tests/cpu/packed_head_model.h"

namespace blockgtq::cpu {
namespace {

constexpr int kDim = 16, kHeads = 2;
constexpr float kScale = 0.25f;
constexpr int64_t kTokens = 260;

/// Codes read as a share of the vector: all of it among few codes, less among more.
class ShrinkingHead : public SimulatedHead {
 public:
  explicit ShrinkingHead(float share = 0.25f) : share_(share) {}
  void RoundTripKeys(std::span<const float>, std::span<float> keys, int64_t) const override {
    for (float& x : keys) x *= share_;
  }
  void RoundTripValues(std::span<float> values, int64_t) const override {
    for (float& x : values) x *= share_;
  }
  double bytes_per_token() const override { return 64 * share_; }
  double key_bytes_per_token() const override { return 32 * share_; }
  const SimulatedHead& At(int64_t coded) const override {
    if (coded >= kSecond) return *this;
    static const ShrinkingHead kWhole(1), kHalf(0.5f);
    return coded >= kFirst ? kHalf : kWhole;
  }
  int64_t ChangesAfter(int64_t coded) const override {
    return coded < kFirst ? kFirst : (coded < kSecond ? kSecond : kNever);
  }
  static constexpr int64_t kFirst = 70, kSecond = 192;

 private:
  float share_;
};

struct Setting {
  int sinks, recent;
  std::vector<int64_t> pieces;  // strict batches; what is left comes token by token
};

class NarrowingCache : public testing::TestWithParam<Setting> {
 protected:
  NarrowingCache()
      : queries_(Normals(kTokens * kHeads * kDim, 1.0f, 1)),
        keys_(Normals(kTokens * kDim, 1.0f, 2)),
        values_(Normals(kTokens * kDim, 1.0f, 3)),
        rope_(MakeRope(kDim)) {
    CacheOptions options;
    options.kind = CacheKind::kSimulated;
    options.sinks = GetParam().sinks;
    options.recent = GetParam().recent;
    options.max_tokens = 2 * kTokens + 4 * kPageTokens;
    auto heads = std::make_shared<SimulatedHeads>();
    *heads = {"test", 1, 1, kDim, {}};
    heads->heads.push_back(std::make_unique<ShrinkingHead>());
    options.simulated = heads;
    cache_ = KvCache::Create({1, 1, kDim}, options, nullptr).value();
    op_ = std::make_unique<AttentionOp>(pool_, *cache_, LayerRopes{{MakeRope(kDim)}});
  }

  /// Appends the next `count` tokens; returns their outputs.
  std::vector<float> Append(SequenceId id, int64_t count) {
    const int64_t first = cache_->state(id).length;
    CpuActivations queries(count, kHeads * kDim), keys(count, kDim), values(count, kDim),
        out(count, kHeads * kDim);
    std::copy_n(&queries_[static_cast<size_t>(first * kHeads * kDim)], count * kHeads * kDim, queries.row(0));
    std::copy_n(&keys_[static_cast<size_t>(first * kDim)], count * kDim, keys.row(0));
    std::copy_n(&values_[static_cast<size_t>(first * kDim)], count * kDim, values.row(0));
    EXPECT_TRUE(cache_->Reserve(id, count).ok());
    const BatchSlice slice{id, 0, count, first, true};
    AttentionCall call;
    call.heads = kHeads;
    call.scale = kScale;
    call.slices = {&slice, 1};
    EXPECT_TRUE(op_->Run(call, queries, keys, &values, out).ok());
    cache_->Commit(id, count, CodedEndAfter(*cache_, slice));
    return {out.row(0), out.row(0) + count * kHeads * kDim};
  }

  /// What the token at `position` must get, in double: codes are those that left the window, each at the
  /// share that so many codes have.
  std::vector<double> Expected(int64_t position) {
    const Setting& s = GetParam();
    const int64_t coded =
        s.recent == 0 ? position + 1 : std::max<int64_t>(position - s.recent, 0) / kPageTokens * kPageTokens;
    const double share = coded >= ShrinkingHead::kSecond ? 0.25 : (coded >= ShrinkingHead::kFirst ? 0.5 : 1);
    std::vector<double> out;
    std::vector<float> query(kDim), key(kDim);
    for (int h = 0; h < kHeads; ++h) {
      rope_.Apply(&queries_[static_cast<size_t>((position * kHeads + h) * kDim)], position, query.data());
      std::vector<double> weight, shares;
      double sum = 0;
      for (int64_t t = 0; t <= position; ++t) {
        rope_.Apply(&keys_[static_cast<size_t>(t * kDim)], t, key.data());
        const bool codes = t < coded && t >= s.sinks;
        double dot = 0;
        for (int d = 0; d < kDim; ++d) dot += double{query[d]} * key[d] * (codes ? share : 1);
        shares.push_back(codes ? share : 1);
        sum += weight.emplace_back(std::exp(dot * kScale));
      }
      for (int d = 0; d < kDim; ++d) {
        double of = 0;
        for (size_t t = 0; t < weight.size(); ++t) of += weight[t] / sum * shares[t] * values_[t * kDim + d];
        out.push_back(of);
      }
    }
    return out;
  }

  void ExpectRows(const std::vector<float>& rows, int64_t first) {
    for (int64_t p = first; p * kHeads * kDim < first * kHeads * kDim + static_cast<int64_t>(rows.size());
         ++p) {
      const std::vector<double> expected = Expected(p);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(rows[static_cast<size_t>(p - first) * expected.size() + i], expected[i], 2e-3)
            << "position " << p;
    }
  }

  std::vector<float> queries_, keys_, values_;
  RopeTable rope_;
  ThreadPool pool_{2};
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<AttentionOp> op_;
};

TEST_P(NarrowingCache, EveryTokenSeesCodesAsTheyAreAtItsTime) {
  const SequenceId id = cache_->AddSequence().value();
  int64_t first = 0;
  for (const int64_t piece : GetParam().pieces) {
    ExpectRows(Append(id, piece), first);
    first += piece;
  }
  for (; first < kTokens; ++first) ExpectRows(Append(id, 1), first);
}

// A fork's codes are its own: that one sequence outgrows its memory does not narrow the other's.
TEST_P(NarrowingCache, AForkNarrowsAlone) {
  const SequenceId id = cache_->AddSequence().value();
  Append(id, 180);
  const SequenceId fork = cache_->ForkSequence(id, 180).value();
  Append(id, kTokens - 180);
  ExpectRows(Append(fork, 1), 180);
}

TEST_P(NarrowingCache, BytesAreThoseOfTheCodesThere) {
  const SequenceId id = cache_->AddSequence().value();
  const int64_t exact = cache_->SequenceBytes(id);
  Append(id, kTokens);
  const int64_t pages = (kTokens + kPageTokens - 1) / kPageTokens, coded = cache_->state(id).coded_end;
  EXPECT_EQ(cache_->SequenceBytes(id) - exact,
            pages * kPageTokens * (coded >= ShrinkingHead::kSecond ? 16 : 32));
}

std::string Name(const testing::TestParamInfo<Setting>& info) {
  std::string name = std::to_string(info.param.sinks) + "and" + std::to_string(info.param.recent) + "in";
  for (const int64_t piece : info.param.pieces) name += std::to_string(piece) + "and";
  return name + "1";
}

INSTANTIATE_TEST_SUITE_P(Settings, NarrowingCache,
                         testing::Values(Setting{0, 0, {}}, Setting{0, 0, {250}},
                                         Setting{4, 0, {69, 1, 121, 2}}, Setting{0, 64, {260}},
                                         Setting{4, 64, {100, 59}}, Setting{1, 32, {}}),
                         Name);

}  // namespace
}  // namespace blockgtq::cpu
