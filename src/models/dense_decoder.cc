// See dense_decoder.h.
#include "src/models/dense_decoder.h"

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/models/attention_probe.h"
#include "src/models/dense_decoder_weights.h"

namespace blockgtq {
namespace {

/// Activations of a batch, kept between calls and grown to the largest. Those that a family does not need are
/// null.
struct Workspace {
  std::unique_ptr<Activations> x, q, k, v, attention, inner;
  std::unique_ptr<Activations> added;   // what attention or feed-forward add, before a norm of it
  std::unique_ptr<Activations> normed;  // what experts read
  int64_t rows = 0;
};

class DenseDecoder : public Model {
 public:
  DenseDecoder(ModelConfig config, Backend& backend, const DenseDecoderTraits& traits, DecoderWeights weights)
      : Model(std::move(config)), backend_(backend), traits_(traits), weights_(std::move(weights)) {
    for (const DecoderLayer& layer : weights_.layers) {
      std::vector<GatedWeights>& views = experts_.emplace_back();
      for (const GatedWeightPtrs& expert : layer.experts) views.push_back(expert.view());
    }
  }

  Status Forward(const Batch& batch, Activations& hidden) override {
    const int64_t rows = static_cast<int64_t>(batch.tokens.size());
    Reserve(rows);
    const LayerRange& range = batch.layers;
    const int end = range.end > 0 ? range.end : config_.layers;
    if (range.first > 0) {
      Copy(*range.stream, rows, *work_.x);
    } else {
      backend_.Embed(*weights_.embedding, batch.tokens, *work_.x);
      if (config_.embedding_scale != 1)
        BGTQ_RETURN_IF_ERROR(backend_.Scale(config_.embedding_scale, rows, *work_.x));
    }
    for (int l = range.first; l < end; ++l) {
      BGTQ_RETURN_IF_ERROR(Attend(l, batch, rows));
      BGTQ_RETURN_IF_ERROR(weights_.layers[static_cast<size_t>(l)].router != nullptr ? MixExperts(l, rows)
                                                                                     : FeedForward(l, rows));
    }
    if (end < config_.layers) {
      Copy(*work_.x, rows, *range.stream);
    } else {
      backend_.RmsNorm(*work_.x, NormOf(weights_.output_norm), rows, hidden);
    }
    return Status::Ok();
  }

  void Logits(const Activations& hidden, int64_t rows, Activations& logits) override {
    const Product product{weights_.output != nullptr ? weights_.output.get() : weights_.embedding.get(),
                          nullptr, &logits};
    backend_.MatMul({&product, 1}, hidden, nullptr, rows);
  }

 private:
  Norm NormOf(const WeightPtr& weight) const { return {weight.get(), config_.norm_epsilon}; }

  void Copy(const Activations& from, int64_t rows, Activations& to) {
    std::vector<int64_t> all(static_cast<size_t>(rows));
    std::iota(all.begin(), all.end(), 0);
    backend_.GatherRows(from, all, to);
  }

  Status Attend(int l, const Batch& batch, int64_t rows) {
    const ModelConfig& c = config_;
    const DecoderLayer& layer = weights_.layers[static_cast<size_t>(l)];
    Workspace& w = work_;
    const Norm norm = NormOf(layer.attention_norm);
    const std::array<Product, 3> qkv = {Product{layer.q.get(), layer.q_bias.get(), w.q.get()},
                                        Product{layer.k.get(), layer.k_bias.get(), w.k.get()},
                                        Product{layer.v.get(), layer.v_bias.get(), w.v.get()}};
    backend_.MatMul(qkv, *w.x, traits_.norms_before ? &norm : nullptr, rows);
    if (traits_.qk_norm != QkNorm::kNone) {
      const bool head = traits_.qk_norm == QkNorm::kHead;
      BGTQ_RETURN_IF_ERROR(
          backend_.NormHeads(NormOf(layer.q_norm), head ? c.head_dim : w.q->cols(), rows, *w.q));
      BGTQ_RETURN_IF_ERROR(
          backend_.NormHeads(NormOf(layer.k_norm), head ? c.head_dim : w.k->cols(), rows, *w.k));
    }
    AttentionCall call;
    call.cache = batch.cache;
    call.layer = l;
    call.heads = c.heads;
    call.scale = c.attention_scale;
    call.window = c.window_of(l);
    call.queries = w.q.get();
    call.keys = w.k.get();
    call.values = w.v.get();
    call.out = w.attention.get();
    call.slices = batch.slices;
    call.observer = batch.observer;
    BGTQ_RETURN_IF_ERROR(backend_.Attention(call));
    if (batch.probe != nullptr)
      BGTQ_RETURN_IF_ERROR(RunProbe(backend_, call, *batch.probe, work_.rows, probed_));
    return AddProduct(*layer.attention_output, *w.attention, layer.post_attention_norm, rows);
  }

  Status FeedForward(int l, int64_t rows) {
    const DecoderLayer& layer = weights_.layers[static_cast<size_t>(l)];
    const Norm norm = NormOf(layer.ffn_norm);
    BGTQ_RETURN_IF_ERROR(backend_.GatedMatMul(layer.ffn.view(), config_.gate, *work_.x,
                                              traits_.norms_before ? &norm : nullptr, rows, *work_.inner));
    return AddProduct(*layer.ffn.down, *work_.inner, layer.post_ffn_norm, rows);
  }

  Status MixExperts(int l, int64_t rows) {
    const DecoderLayer& layer = weights_.layers[static_cast<size_t>(l)];
    const ExpertConfig& e = config_.experts;
    backend_.RmsNorm(*work_.x, NormOf(layer.ffn_norm), rows, *work_.normed);
    const ExpertMix mix{
        layer.router.get(), experts_[static_cast<size_t>(l)], e.feed_forward, e.used, e.renormalise, e.scale,
        config_.gate};
    return backend_.MixExperts(mix, *work_.normed, rows, *work_.x);
  }

  /// x += W y, or norm(W y) where there is a norm.
  Status AddProduct(const Weight& weight, const Activations& y, const WeightPtr& norm, int64_t rows) {
    const Product product{&weight, nullptr, norm != nullptr ? work_.added.get() : work_.x.get(),
                          norm == nullptr};
    backend_.MatMul({&product, 1}, y, nullptr, rows);
    return norm != nullptr ? backend_.NormAdd(*work_.added, NormOf(norm), rows, *work_.x) : Status::Ok();
  }

  void Reserve(int64_t rows) {
    if (rows <= work_.rows) return;
    const ModelConfig& c = config_;
    const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
    work_.x = backend_.MakeActivations(rows, c.embedding);
    work_.q = backend_.MakeActivations(rows, q);
    work_.k = backend_.MakeActivations(rows, kv);
    work_.v = backend_.MakeActivations(rows, kv);
    work_.attention = backend_.MakeActivations(rows, q);
    if (c.experts.count == 0) work_.inner = backend_.MakeActivations(rows, c.feed_forward);
    if (c.experts.count > 0) work_.normed = backend_.MakeActivations(rows, c.embedding);
    if (traits_.norms_after) work_.added = backend_.MakeActivations(rows, c.embedding);
    work_.rows = rows;
  }

  Backend& backend_;
  DenseDecoderTraits traits_;
  DecoderWeights weights_;
  std::vector<std::vector<GatedWeights>> experts_;  // [layers], views of weights_
  Workspace work_;
  std::vector<std::unique_ptr<Activations>> probed_;  // attention outputs of a probe's caches
};

std::vector<Operation> NeededOperations(const ModelConfig& config, const DenseDecoderTraits& traits) {
  std::vector<Operation> needed;
  const auto need = [&](bool needs, Operation operation) {
    if (needs) needed.push_back(operation);
  };
  need(traits.qk_norm != QkNorm::kNone, Operation::kNormHeads);
  need(traits.norms_after, Operation::kNormAdd);
  need(!traits.norms_before, Operation::kUnnormedInput);
  need(config.gate == GateFunction::kGeluTanh, Operation::kGeluGate);
  need(config.embedding_scale != 1, Operation::kScaleRows);
  need(config.experts.count > 0, Operation::kExperts);
  need(config.window > 0, Operation::kSlidingWindow);
  need(config.window_rope.has_value(), Operation::kRopesByLayer);
  return needed;
}

}  // namespace

Result<std::unique_ptr<Model>> LoadDenseDecoder(const ModelSource& source, Backend& backend,
                                                const DenseDecoderTraits& traits) {
  BGTQ_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(source, traits.config));
  BGTQ_RETURN_IF_ERROR(CheckAllKeysRead(source));
  if (traits.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.embedding));
  if (traits.attention_scale != nullptr && !source.keys().Has("attention.scale"))
    config.attention_scale = traits.attention_scale(config);
  BGTQ_RETURN_IF_ERROR(RequireOperations(backend, NeededOperations(config, traits), source.name()));
  BGTQ_ASSIGN_OR_RETURN(DecoderWeights weights, TakeDecoderWeights(source, backend, config, traits));
  return std::unique_ptr<Model>(
      std::make_unique<DenseDecoder>(std::move(config), backend, traits, std::move(weights)));
}

}  // namespace blockgtq
