// Attention of a backend over small random layers, step by step, through the operations that a model calls:
// for tests that compare backends, or ways of one backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "src/backend/backend.h"
#include "src/cache/session.h"
#include "src/core/half.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

inline constexpr int kLayers = 4, kHeads = 4, kKvHeads = 2, kDim = 64;
inline constexpr int64_t kTokens = 1200, kSequences = 3, kMostRows = 400;

/// A cache of these layers.
struct CacheCase {
  CacheKind kind = CacheKind::kPacked;
  int sinks = 0, recent = 0;
  int64_t window = 0;
  std::vector<uint8_t> windowed = {1, 0, 1, 1};
  std::string Name() const {
    return (kind == CacheKind::kHalf
                ? std::string("fp16")
                : "packed, " + std::to_string(sinks) + " sinks, " + std::to_string(recent) + " recent") +
           ", a window of " + std::to_string(window) + " in " +
           std::to_string(std::count(windowed.begin(), windowed.end(), 1)) + " of 4 layers";
  }
};

/// Random rows, one a token of each sequence, which fp16 holds exactly. mean: of head 0.
inline std::vector<float> Rows(int heads, uint64_t seed, const std::vector<float>& mean = {}) {
  std::vector<float> rows =
      cpu::Normals(static_cast<size_t>(kSequences * kTokens * heads * kDim), 1.0f, seed);
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(heads) * kDim) {
    for (size_t d = 0; d < mean.size(); ++d) rows[row + d] += mean[d];
  }
  for (float& x : rows) x = HalfToFloat(FloatToHalf(x));
  return rows;
}

/// KV head 0 has the same mean in every layer, KV head 1 none.
inline Plan MakePlan() {
  Plan plan;
  plan.model.layers = kLayers;
  plan.model.kv_heads = kKvHeads;
  plan.model.heads = kHeads;
  plan.model.head_dim = kDim;
  for (int h = 0; h < kLayers * kKvHeads; ++h) {
    const std::vector<int> mean = h % kKvHeads == 0 ? std::vector<int>{0, 3} : std::vector<int>{};
    plan.heads.push_back(cpu::MakeHeadPlan({kDim, {{8, 64}}, 8, mean}, 40 + h));
    if (h % kKvHeads == 0) plan.heads.back().key_mean = plan.heads[0].key_mean;
  }
  return plan;
}

/// New tokens of one sequence.
struct Piece {
  int sequence = 0;
  int64_t count = 1;
  bool strict = false;
};

/// Attention of one backend, step by step.
class Runner {
 public:
  Runner(Backend& backend, const CacheCase& c) : backend_(backend), plan_(MakePlan()) {
    CacheGeometry geometry{kLayers, kKvHeads, kDim};
    geometry.window = c.window;
    geometry.windowed = c.windowed;
    CacheOptions options;
    options.kind = c.kind;
    options.sinks = c.sinks;
    options.recent = c.recent;
    options.max_tokens = 3072;
    options.memory = &backend.cache_memory();
    cache_ = Require(KvCache::Create(geometry, options, &plan_), "a cache");
    ropes_.configs.assign(2, cpu::MakeRope(kDim));
    ropes_.configs[1].freq_base = 500.0;
    for (int l = 0; l < kLayers; ++l) ropes_.of_layer.push_back(c.windowed[static_cast<size_t>(l)]);
    binding_ = Require(backend.BindCache(*cache_, ropes_), "a binding");
    const int heads[] = {kHeads, kKvHeads, kKvHeads};
    for (int i = 0; i < 3; ++i) {
      tables_[i] = Rows(heads[i], 1 + i, i == 1 ? plan_.heads[0].key_mean : std::vector<float>());
      const TensorView view{TensorType::kF32, reinterpret_cast<const std::byte*>(tables_[i].data()),
                            kSequences * kTokens, int64_t{heads[i]} * kDim};
      weights_[i] = Require(backend.LoadMatrix(view, "rows"), "rows");
      inputs_[i] = backend.MakeActivations(kMostRows, int64_t{heads[i]} * kDim);
    }
    for (int l = 0; l < kLayers; ++l) outputs_.push_back(backend.MakeActivations(kMostRows, kHeads * kDim));
  }

  void Add() { Require(cache_->AddSequence(), "a sequence"); }
  void Fork(int from, int64_t dropped) {
    Require(cache_->ForkSequence(from, cache_->state(from).length - dropped), "a fork");
  }
  void Cut(int sequence, int64_t dropped) {
    Require(cache_->Truncate(sequence, cache_->state(sequence).length - dropped), "a cut");
  }
  void Remove(int sequence) { cache_->RemoveSequence(sequence); }
  void Save(int sequence, const std::string& path) const {
    const std::vector<int32_t> tokens(static_cast<size_t>(cache_->state(sequence).length));
    Require(SaveSession(*cache_, sequence, tokens, path), "saving a session");
  }
  void Load(const std::string& path) { Require(LoadSession(*cache_, path), "loading a session"); }

  /// Steps whose operations were called: a captured step's are not.
  int forwards() const { return forwards_; }
  const KvCache& cache() const { return *cache_; }
  const Plan& plan() const { return plan_; }
  const LayerRopes& ropes() const { return ropes_; }

  /// [layers] outputs of all rows.
  std::vector<std::vector<float>> Step(const std::vector<Piece>& pieces) {
    std::vector<BatchSlice> slices;
    std::vector<int32_t> tokens;
    for (const Piece& p : pieces) {
      const int64_t length = cache_->state(p.sequence).length;
      slices.push_back({p.sequence, static_cast<int64_t>(tokens.size()), p.count, length, p.strict});
      Require(cache_->Reserve(p.sequence, p.count), "room");
      for (int64_t i = 0; i < p.count; ++i)
        tokens.push_back(static_cast<int32_t>(p.sequence * kTokens + length + i));
    }
    const StepInput input{tokens, slices, binding_.get()};
    Require(backend_.Step(input,
                          [&] {
                            ++forwards_;
                            return Forward(tokens, slices);
                          }),
            "a step");
    for (const BatchSlice& slice : slices) {
      cache_->Commit(slice.sequence, slice.count, CodedEndAfter(*cache_, slice));
    }
    std::vector<std::vector<float>> out;
    for (const auto& layer : outputs_) {
      std::vector<float>& rows = out.emplace_back(tokens.size() * kHeads * kDim);
      for (size_t r = 0; r < tokens.size(); ++r) {
        Require(backend_.ReadRow(*layer, static_cast<int64_t>(r), &rows[r * kHeads * kDim]), "a row");
      }
    }
    return out;
  }

 private:
  Status Forward(std::span<const int32_t> tokens, std::span<const BatchSlice> slices) {
    for (int i = 0; i < 3; ++i) backend_.Embed(*weights_[i], tokens, *inputs_[i]);
    for (int layer = 0; layer < kLayers; ++layer) {
      AttentionCall call;
      call.cache = binding_.get();
      call.layer = layer;
      call.heads = kHeads;
      call.scale = 0.125f;
      call.window = cache_->geometry().is_windowed(layer) ? cache_->geometry().window : 0;
      call.queries = inputs_[0].get();
      call.keys = inputs_[1].get();
      call.values = inputs_[2].get();
      call.out = outputs_[static_cast<size_t>(layer)].get();
      call.slices = slices;
      BGTQ_RETURN_IF_ERROR(backend_.Attention(call));
    }
    return Status::Ok();
  }

  Backend& backend_;
  int forwards_ = 0;
  Plan plan_;
  LayerRopes ropes_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CacheBinding> binding_;
  std::vector<float> tables_[3];
  std::unique_ptr<Weight> weights_[3];
  std::unique_ptr<Activations> inputs_[3];
  std::vector<std::unique_ptr<Activations>> outputs_;
};

/// The largest relative L2 distance of a row.
inline double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  constexpr size_t kRow = size_t{kHeads} * kDim;
  for (size_t row = 0; row < a.size(); row += kRow) {
    double difference = 0, size = 1e-30;
    for (size_t i = row; i < row + kRow; ++i) {
      const double d = double{a[i]} - b[i];
      difference += std::isfinite(d) ? d * d : 1e30;
      size += double{a[i]} * a[i];
    }
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

}  // namespace blockgtq::cuda
