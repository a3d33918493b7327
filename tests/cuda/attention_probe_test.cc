// Passes that attend to several caches at once (AttentionProbe): each cache's outputs are those of a pass
// over it alone, and the cache that drives the pass is not disturbed. What fails in a pass is not told again
// by the next.
//
//   attention_probe_test
//
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/cuda/cuda_backend.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr int kLayers = 2, kHeads = 4, kKvHeads = 2, kDim = 64;
constexpr int64_t kPasses[] = {200, 55, 1, 1, 1, 1};  // rows, strict; a page leaves the window among the last
constexpr int64_t kTokens = 259, kBadToken = kTokens;

/// Random rows [kTokens, heads * kDim], as a matrix that a pass looks its tokens' rows up in; and of
/// kBadToken one that no cache can hold.
struct Rows {
  Rows(Backend& backend, int heads, uint64_t seed)
      : values(cpu::Normals(static_cast<size_t>(kTokens * heads * kDim), 1.0f, seed)) {
    values.resize(static_cast<size_t>((kTokens + 1) * heads * kDim), 40000.0f);
    const TensorView view{TensorType::kF32, reinterpret_cast<const std::byte*>(values.data()), kTokens + 1,
                          int64_t{heads} * kDim};
    weight = Require(backend.LoadMatrix(view, "rows"), "rows");
  }
  std::vector<float> values;
  std::unique_ptr<Weight> weight;
};

Plan MakePlan() {
  Plan plan;
  plan.model.layers = kLayers;
  plan.model.kv_heads = kKvHeads;
  plan.model.heads = kHeads;
  plan.model.head_dim = kDim;
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    plan.heads.push_back(cpu::MakeHeadPlan({kDim, {{4, 32}, {2, 32}}, 3, {}}, 40 + h));
  }
  return plan;
}

using Outputs = std::vector<std::vector<float>>;  // [passes * layers][rows * heads * dim]

class Passes {
 public:
  explicit Passes(Backend& backend)
      : backend_(backend),
        plan_(MakePlan()),
        ropes_{{cpu::MakeRope(kDim)}},
        queries_(backend, kHeads, 1),
        keys_(backend, kKvHeads, 2),
        values_(backend, kKvHeads, 3) {}

  std::unique_ptr<KvCache> Cache(CacheKind kind, int sinks, int recent) {
    CacheOptions options;
    options.kind = kind;
    options.sinks = sinks;
    options.recent = recent;
    options.max_tokens = 320;
    options.memory = &backend_.cache_memory();
    return Require(KvCache::Create({kLayers, kKvHeads, kDim}, options, &plan_), "a cache");
  }

  /// Caches with a sequence each: a pass is over the first, the others probed.
  struct Bound {
    std::span<KvCache* const> caches;
    std::vector<std::unique_ptr<CacheBinding>> bindings = {};
    std::vector<CacheBinding*> probed = {};
  };
  Bound Bind(std::span<KvCache* const> caches) {
    Bound bound{caches};
    for (KvCache* cache : caches) {
      Require(cache->AddSequence(), "a sequence");
      bound.bindings.push_back(Require(backend_.BindCache(*cache, ropes_), "a binding"));
      if (cache != caches[0]) bound.probed.push_back(bound.bindings.back().get());
    }
    return bound;
  }

  /// Runs all passes; [caches].
  std::vector<Outputs> Run(std::span<KvCache* const> caches) {
    const Bound bound = Bind(caches);
    std::vector<Outputs> outputs(caches.size());
    int64_t first = 0;
    for (const int64_t rows : kPasses) {
      std::vector<int32_t> tokens;
      for (int64_t t = first; t < first + rows; ++t) tokens.push_back(static_cast<int32_t>(t));
      Require(Pass(bound, tokens, first, Status::Ok(), outputs), "a pass");
      const BatchSlice slice{0, 0, rows, first, true};
      for (KvCache* cache : caches) cache->Commit(0, rows, CodedEndAfter(*cache, slice));
      first += rows;
    }
    return outputs;
  }

  /// One pass, which the caches do not keep. end: what an operation after the attention of every layer gives.
  Status Pass(const Bound& bound, std::span<const int32_t> tokens, int64_t first, const Status& end,
              std::vector<Outputs>& outputs) {
    const int64_t rows = static_cast<int64_t>(tokens.size());
    const BatchSlice slice{0, 0, rows, first, true};
    for (KvCache* cache : bound.caches) Require(cache->Reserve(0, rows), "room");
    const StepInput input{tokens, {&slice, 1}, bound.bindings[0].get(), true, bound.probed};
    return backend_.Step(input, [&] {
      Status ran = Forward(input, slice, bound.bindings, outputs);
      return ran.ok() ? end : ran;
    });
  }

 private:
  Status Forward(const StepInput& input, const BatchSlice& slice,
                 const std::vector<std::unique_ptr<CacheBinding>>& bindings, std::vector<Outputs>& outputs) {
    const auto make = [&](int heads) { return backend_.MakeActivations(slice.count, heads * kDim); };
    const auto q = make(kHeads), k = make(kKvHeads), v = make(kKvHeads);
    backend_.Embed(*queries_.weight, input.tokens, *q);
    backend_.Embed(*keys_.weight, input.tokens, *k);
    backend_.Embed(*values_.weight, input.tokens, *v);
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<std::unique_ptr<Activations>> out;
      for (const auto& binding : bindings) {
        out.push_back(make(kHeads));
        AttentionCall call;
        call.cache = binding.get();
        call.layer = layer;
        call.heads = kHeads;
        call.scale = 0.125f;
        call.queries = q.get();
        call.keys = k.get();
        call.values = v.get();
        call.out = out.back().get();
        call.slices = {&slice, 1};
        BGTQ_RETURN_IF_ERROR(backend_.Attention(call));
      }
      for (size_t c = 0; c < out.size(); ++c) {
        std::vector<float>& rows = outputs[c].emplace_back(static_cast<size_t>(slice.count * kHeads * kDim));
        for (int64_t r = 0; r < slice.count; ++r)
          BGTQ_RETURN_IF_ERROR(backend_.ReadRow(*out[c], r, &rows[static_cast<size_t>(r * kHeads * kDim)]));
      }
    }
    return Status::Ok();
  }

  Backend& backend_;
  Plan plan_;
  LayerRopes ropes_;
  Rows queries_, keys_, values_;
};

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{a[i]} * a[i];
  }
  return std::sqrt(difference / size);
}

void TestProbes(Backend& backend) {
  Check(backend.has_attention_probes(), "the backend has probes");
  Passes passes(backend);
  const struct {
    const char* name;
    CacheKind kind;
    int sinks, recent;
  } kCaches[] = {{"fp16", CacheKind::kHalf, 0, 0},
                 {"no buffer", CacheKind::kPacked, 0, 0},
                 {"sinks", CacheKind::kPacked, 4, 0},
                 {"window", CacheKind::kPacked, 4, 64}};
  std::vector<std::unique_ptr<KvCache>> owned;
  std::vector<KvCache*> caches;
  for (const auto& c : kCaches) {
    owned.push_back(passes.Cache(c.kind, c.sinks, c.recent));
    caches.push_back(owned.back().get());
  }
  const std::vector<Outputs> together = passes.Run(caches);
  for (size_t c = 0; c < caches.size(); ++c) {
    const auto own = passes.Cache(kCaches[c].kind, kCaches[c].sinks, kCaches[c].recent);
    KvCache* const only = own.get();
    const Outputs alone = passes.Run({&only, 1})[0];
    for (size_t i = 0; i < alone.size(); ++i) {
      const std::string where = std::string(kCaches[c].name) + ", pass " + std::to_string(i / kLayers) +
                                ", layer " + std::to_string(i % kLayers) + ": ";
      const double apart = Distance(alone[i], together[c][i]);
      Check(apart <= 1e-3, where + "as a probe it is off by " + std::to_string(apart));
      if (c == 0) continue;
      const double error = Distance(together[0][i], together[c][i]);  // of 2 to 4 bits
      Check(error > 5e-3 && error < 0.7, where + "error to fp16 " + std::to_string(error));
    }
  }
}

/// Error words that a pass leaves, of the cache that drives it and of those beside it, are not the next
/// pass's.
void TestFailedPasses(Backend& backend) {
  Passes passes(backend);
  const auto driving = passes.Cache(CacheKind::kHalf, 0, 0), window = passes.Cache(CacheKind::kPacked, 4, 64),
             no_buffer = passes.Cache(CacheKind::kPacked, 0, 0);
  KvCache* const caches[] = {driving.get(), window.get(), no_buffer.get()};
  const std::vector<int32_t> good = {0, 1, 2}, bad = {0, kBadToken, 2};
  const Status stopped(ErrorCode::kUnsupported, "an operation that fails");
  for (const size_t count : {1, 3}) {
    const Passes::Bound bound = passes.Bind(std::span(caches).first(count));
    const auto pass = [&](const std::vector<int32_t>& tokens, const Status& end) {
      std::vector<Outputs> outputs(count);
      return passes.Pass(bound, tokens, 0, end, outputs);
    };
    const std::string where = std::to_string(count) + " caches: ";
    for (int round = 0; round < 2; ++round) {
      const Status damaged = pass(bad, Status::Ok());
      Check(damaged.code() == ErrorCode::kNonFinite &&
                damaged.message().find("position 1 ") != std::string::npos,
            where + "a value that no cache holds is found: " + damaged.message());
      const Status after_damage = pass(good, Status::Ok());
      Check(after_damage.ok(), where + "a pass after one with a bad value: " + after_damage.message());
      const Status failed = pass(bad, stopped);
      Check(failed.message() == stopped.message(), where + "the first failure is told: " + failed.message());
      const Status after_failure = pass(good, Status::Ok());
      Check(after_failure.ok(), where + "a pass after one that failed: " + after_failure.message());
    }
    for (KvCache* cache : bound.caches) cache->RemoveSequence(0);
  }
}

void Run(const DeviceLimits&, bool) {
  const auto backend = Require(CreateCudaBackend({"cuda", 1}), "the backend");
  TestProbes(*backend);
  TestFailedPasses(*backend);
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
