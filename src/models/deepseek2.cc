// See deepseek2.h.
#include "src/models/deepseek2.h"

#include <array>
#include <vector>

#include "src/models/attention_probe.h"
#include "src/models/deepseek2_weights.h"
#include "src/models/model_config.h"

namespace blockgtq {
namespace {

/// Activations of a batch, kept between calls and grown to the largest. C = the latent's rank, R = rope_dims,
/// N = nope_dims.
struct Workspace {
  std::unique_ptr<Activations> x, normed;
  std::unique_ptr<Activations> q_a;               // [rows, query_rank]; null where queries have no latent
  std::unique_ptr<Activations> q;                 // [rows, heads (N + R)]
  std::unique_ptr<Activations> latent, rope_key;  // [rows, C], [rows, R]
  std::unique_ptr<Activations> queries;           // [rows, heads (R + C)]: [rope | in the latent's space]
  std::unique_ptr<Activations> keys;              // [rows, R + C]
  std::unique_ptr<Activations> attention;         // [rows, heads (R + C)]
  std::unique_ptr<Activations> values;            // [rows, heads value_dims]
  std::unique_ptr<Activations> inner, shared_inner;
  int64_t rows = 0;
};

class DeepSeek2 : public Model {
 public:
  DeepSeek2(ModelConfig config, Backend& backend, LatentWeights weights)
      : Model(std::move(config)), backend_(backend), weights_(std::move(weights)) {
    for (const LatentLayer& layer : weights_.layers) {
      LayerViews& views = views_.emplace_back();
      for (const GatedWeightPtrs& expert : layer.decoder.experts) views.experts.push_back(expert.view());
      for (const WeightPtr& w : layer.to_latent) views.to_latent.push_back(w.get());
      for (const WeightPtr& w : layer.from_latent) views.from_latent.push_back(w.get());
    }
  }

  Status Forward(const Batch& batch, Activations& hidden) override {
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    Reserve(rows);
    backend_.Embed(*weights_.embedding, batch.tokens, *work_.x);
    for (int l = 0; l < config_.layers; ++l) {
      BGTQ_RETURN_IF_ERROR(Attend(l, batch, rows));
      BGTQ_RETURN_IF_ERROR(LayerOf(l).decoder.router != nullptr ? MixExperts(l, rows) : FeedForward(l, rows));
    }
    backend_.RmsNorm(*work_.x, NormOf(weights_.output_norm), rows, hidden);
    return Status::Ok();
  }

  void Logits(const Activations& hidden, int64_t rows, Activations& logits) override {
    const Product product{weights_.output != nullptr ? weights_.output.get() : weights_.embedding.get(),
                          nullptr, &logits};
    backend_.MatMul({&product, 1}, hidden, nullptr, rows);
  }

 private:
  /// Views of the weights of a layer.
  struct LayerViews {
    std::vector<GatedWeights> experts;
    std::vector<const Weight*> to_latent, from_latent;  // by head
  };

  const LatentLayer& LayerOf(int l) const { return weights_.layers[static_cast<size_t>(l)]; }
  const LayerViews& ViewsOf(int l) const { return views_[static_cast<size_t>(l)]; }
  Norm NormOf(const WeightPtr& weight) const { return {weight.get(), config_.norm_epsilon}; }

  /// queries, keys: what attends and what is cached.
  Status Project(int l, int64_t rows) {
    const LatentConfig& c = config_.latent;
    const LatentLayer& layer = LayerOf(l);
    Workspace& w = work_;
    const Norm norm = NormOf(layer.decoder.attention_norm);
    const bool query_latent = layer.q_a != nullptr;
    const std::array<Product, 3> products = {Product{query_latent ? layer.q_a.get() : layer.q.get(), nullptr,
                                                     query_latent ? w.q_a.get() : w.q.get()},
                                             Product{layer.latent.get(), nullptr, w.latent.get()},
                                             Product{layer.rope_key.get(), nullptr, w.rope_key.get()}};
    backend_.MatMul(products, *w.x, &norm, rows);
    if (query_latent) {
      const Product q{layer.q.get(), nullptr, w.q.get()};
      const Norm q_norm = NormOf(layer.q_a_norm);
      backend_.MatMul({&q, 1}, *w.q_a, &q_norm, rows);
    }
    BGTQ_RETURN_IF_ERROR(backend_.NormHeads(NormOf(layer.latent_norm), c.rank, rows, *w.latent));

    const int64_t cached = config_.head_dim, head = c.nope_dims + c.rope_dims;
    const HeadColumns rope{cached, 0, c.rope_dims}, latent{cached, c.rope_dims, c.rank};
    BGTQ_RETURN_IF_ERROR(
        backend_.CopyHeads(*w.rope_key, {c.rope_dims, 0, c.rope_dims}, 1, rows, *w.keys, rope));
    BGTQ_RETURN_IF_ERROR(backend_.CopyHeads(*w.latent, {c.rank, 0, c.rank}, 1, rows, *w.keys, latent));
    BGTQ_RETURN_IF_ERROR(
        backend_.CopyHeads(*w.q, {head, c.nope_dims, c.rope_dims}, config_.heads, rows, *w.queries, rope));
    return backend_.MatMulHeads(ViewsOf(l).to_latent, *w.q, {head, 0, c.nope_dims}, rows, *w.queries, latent);
  }

  Status Attend(int l, const Batch& batch, int64_t rows) {
    BGTQ_RETURN_IF_ERROR(Project(l, rows));
    Workspace& w = work_;
    AttentionCall call;
    call.cache = batch.cache;
    call.layer = l;
    call.heads = config_.heads;
    call.scale = config_.attention_scale;
    call.queries = w.queries.get();
    call.keys = w.keys.get();
    call.out = w.attention.get();
    call.slices = batch.slices;
    call.observer = batch.observer;
    BGTQ_RETURN_IF_ERROR(backend_.Attention(call));
    if (batch.probe != nullptr)
      BGTQ_RETURN_IF_ERROR(RunProbe(backend_, call, *batch.probe, work_.rows, probed_));
    const LatentConfig& c = config_.latent;
    BGTQ_RETURN_IF_ERROR(backend_.MatMulHeads(ViewsOf(l).from_latent, *w.attention,
                                              {config_.head_dim, c.rope_dims, c.rank}, rows, *w.values,
                                              {c.value_dims, 0, c.value_dims}));
    return AddProduct(*LayerOf(l).decoder.attention_output, *w.values, rows);
  }

  Status FeedForward(int l, int64_t rows) {
    const DecoderLayer& layer = LayerOf(l).decoder;
    const Norm norm = NormOf(layer.ffn_norm);
    BGTQ_RETURN_IF_ERROR(
        backend_.GatedMatMul(layer.ffn.view(), config_.gate, *work_.x, &norm, rows, *work_.inner));
    return AddProduct(*layer.ffn.down, *work_.inner, rows);
  }

  Status MixExperts(int l, int64_t rows) {
    const LatentLayer& layer = LayerOf(l);
    const ExpertConfig& e = config_.experts;
    backend_.RmsNorm(*work_.x, NormOf(layer.decoder.ffn_norm), rows, *work_.normed);
    const ExpertMix mix{layer.decoder.router.get(),
                        ViewsOf(l).experts,
                        e.feed_forward,
                        e.used,
                        e.renormalise,
                        e.scale,
                        config_.gate};
    BGTQ_RETURN_IF_ERROR(backend_.MixExperts(mix, *work_.normed, rows, *work_.x));
    if (e.shared == 0) return Status::Ok();
    BGTQ_RETURN_IF_ERROR(backend_.GatedMatMul(layer.shared.view(), config_.gate, *work_.normed, nullptr, rows,
                                              *work_.shared_inner));
    return AddProduct(*layer.shared.down, *work_.shared_inner, rows);
  }

  /// x += W y.
  Status AddProduct(const Weight& weight, const Activations& y, int64_t rows) {
    const Product product{&weight, nullptr, work_.x.get(), true};
    backend_.MatMul({&product, 1}, y, nullptr, rows);
    return Status::Ok();
  }

  void Reserve(int64_t rows) {
    if (rows <= work_.rows) return;
    const LatentConfig& c = config_.latent;
    const auto make = [&](int64_t cols) { return backend_.MakeActivations(rows, cols); };
    const int64_t heads = config_.heads, shared = config_.experts.shared * config_.experts.feed_forward;
    work_.x = make(config_.embedding);
    work_.normed = make(config_.embedding);
    if (c.query_rank > 0) work_.q_a = make(c.query_rank);
    work_.q = make(heads * (c.nope_dims + c.rope_dims));
    work_.latent = make(c.rank);
    work_.rope_key = make(c.rope_dims);
    work_.queries = make(heads * config_.head_dim);
    work_.keys = make(config_.head_dim);
    work_.attention = make(heads * config_.head_dim);
    work_.values = make(heads * c.value_dims);
    work_.inner = make(config_.feed_forward);
    if (shared > 0) work_.shared_inner = make(shared);
    work_.rows = rows;
  }

  Backend& backend_;
  LatentWeights weights_;
  std::vector<LayerViews> views_;
  Workspace work_;
  std::vector<std::unique_ptr<Activations>> probed_;  // attention outputs of a probe's caches
};

}  // namespace

Result<std::unique_ptr<Model>> LoadDeepSeek2(const ModelSource& source, Backend& backend) {
  constexpr ConfigDefaults kDefaults{
      .experts = true, .renormalise = false, .shared_experts = true, .latent = true};
  BGTQ_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(source, kDefaults));
  BGTQ_RETURN_IF_ERROR(CheckAllKeysRead(source));
  constexpr std::array kNeeded = {Operation::kLatentAttention, Operation::kNormHeads, Operation::kExperts,
                                  Operation::kUnnormedInput};
  BGTQ_RETURN_IF_ERROR(RequireOperations(backend, kNeeded, source.name()));
  BGTQ_ASSIGN_OR_RETURN(LatentWeights weights, TakeLatentWeights(source, backend, config));
  return std::unique_ptr<Model>(std::make_unique<DeepSeek2>(std::move(config), backend, std::move(weights)));
}

}  // namespace blockgtq
