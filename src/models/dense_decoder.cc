// See dense_decoder.h.
#include "src/models/dense_decoder.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "src/models/model_config.h"
#include "src/models/weight_reader.h"

namespace blockgtq {
namespace {

using WeightPtr = std::unique_ptr<Weight>;

struct Layer {
  WeightPtr attention_norm, q, k, v, q_bias, k_bias, v_bias, attention_output;
  WeightPtr ffn_norm, gate, up, down;
};

/// Activations of a batch, kept between calls and grown to the largest.
struct Workspace {
  std::unique_ptr<Activations> x, q, k, v, attention, inner;
  int64_t rows = 0;
};

class DenseDecoder : public Model {
 public:
  DenseDecoder(ModelConfig config, Backend& backend) : Model(std::move(config)), backend_(backend) {}

  Status Load(const ModelSource& source, const DenseDecoderTraits& traits) {
    const ModelConfig& c = config_;
    const WeightReader reader(source, backend_);
    const int64_t e = c.embedding, q_rows = int64_t{c.heads} * c.head_dim,
                  kv_rows = int64_t{c.kv_heads} * c.head_dim;
    BGTQ_ASSIGN_OR_RETURN(embedding_, reader.Matrix("token_embd.weight", c.vocabulary, e));
    BGTQ_ASSIGN_OR_RETURN(output_norm_, reader.Vector("output_norm.weight", e));
    BGTQ_ASSIGN_OR_RETURN(output_, reader.OptionalMatrix("output.weight", c.vocabulary, e));
    layers_.resize(static_cast<size_t>(c.layers));
    for (int l = 0; l < c.layers; ++l) {
      Layer& layer = layers_[static_cast<size_t>(l)];
      const auto name = [l](const char* tensor) { return fmt::format("blk.{}.{}", l, tensor); };
      BGTQ_ASSIGN_OR_RETURN(layer.attention_norm, reader.Vector(name("attn_norm.weight"), e));
      BGTQ_ASSIGN_OR_RETURN(layer.q, reader.Matrix(name("attn_q.weight"), q_rows, e));
      BGTQ_ASSIGN_OR_RETURN(layer.k, reader.Matrix(name("attn_k.weight"), kv_rows, e));
      BGTQ_ASSIGN_OR_RETURN(layer.v, reader.Matrix(name("attn_v.weight"), kv_rows, e));
      if (traits.qkv_bias) {
        BGTQ_ASSIGN_OR_RETURN(layer.q_bias, reader.Vector(name("attn_q.bias"), q_rows));
        BGTQ_ASSIGN_OR_RETURN(layer.k_bias, reader.Vector(name("attn_k.bias"), kv_rows));
        BGTQ_ASSIGN_OR_RETURN(layer.v_bias, reader.Vector(name("attn_v.bias"), kv_rows));
      }
      BGTQ_ASSIGN_OR_RETURN(layer.attention_output, reader.Matrix(name("attn_output.weight"), e, q_rows));
      BGTQ_ASSIGN_OR_RETURN(layer.ffn_norm, reader.Vector(name("ffn_norm.weight"), e));
      BGTQ_ASSIGN_OR_RETURN(layer.gate, reader.Matrix(name("ffn_gate.weight"), c.feed_forward, e));
      BGTQ_ASSIGN_OR_RETURN(layer.up, reader.Matrix(name("ffn_up.weight"), c.feed_forward, e));
      BGTQ_ASSIGN_OR_RETURN(layer.down, reader.Matrix(name("ffn_down.weight"), e, c.feed_forward));
    }
    return source.CheckAllTaken();
  }

  Status Forward(const Batch& batch, Activations& hidden) override {
    const ModelConfig& c = config_;
    const int64_t rows = static_cast<int64_t>(batch.tokens.size());
    Reserve(rows);
    Workspace& w = work_;
    backend_.Embed(*embedding_, batch.tokens, *w.x);
    for (int l = 0; l < c.layers; ++l) {
      const Layer& layer = layers_[static_cast<size_t>(l)];
      const Norm attention_norm{layer.attention_norm.get(), c.norm_epsilon};
      const std::array<Product, 3> qkv = {Product{layer.q.get(), layer.q_bias.get(), w.q.get()},
                                          Product{layer.k.get(), layer.k_bias.get(), w.k.get()},
                                          Product{layer.v.get(), layer.v_bias.get(), w.v.get()}};
      backend_.MatMul(qkv, *w.x, &attention_norm, rows);
      AttentionCall call;
      call.cache = batch.cache;
      call.layer = l;
      call.heads = c.heads;
      call.scale = c.attention_scale;
      call.queries = w.q.get();
      call.keys = w.k.get();
      call.values = w.v.get();
      call.out = w.attention.get();
      call.slices = batch.slices;
      call.observer = batch.observer;
      BGTQ_RETURN_IF_ERROR(backend_.Attention(call));
      if (batch.probe != nullptr) BGTQ_RETURN_IF_ERROR(Probe(call, *batch.probe));
      MatMulAdd(*layer.attention_output, *w.attention, rows);
      backend_.GatedMatMul(*layer.gate, *layer.up, *w.x, {layer.ffn_norm.get(), c.norm_epsilon}, rows,
                           *w.inner);
      MatMulAdd(*layer.down, *w.inner, rows);
    }
    backend_.RmsNorm(*w.x, {output_norm_.get(), c.norm_epsilon}, rows, hidden);
    return Status::Ok();
  }

  void Logits(const Activations& hidden, int64_t rows, Activations& logits) override {
    const Product product{output_ != nullptr ? output_.get() : embedding_.get(), nullptr, &logits};
    backend_.MatMul({&product, 1}, hidden, nullptr, rows);
  }

 private:
  /// The layer's attention over the probe's caches, for its report.
  Status Probe(AttentionCall call, const AttentionProbe& probe) {
    std::vector<const Activations*> outputs = {call.out};
    call.observer = nullptr;
    if (probed_.size() < probe.caches.size()) probed_.resize(probe.caches.size());
    for (size_t i = 0; i < probe.caches.size(); ++i) {
      if (probed_[i] == nullptr || probed_[i]->rows() < work_.rows)
        probed_[i] = backend_.MakeActivations(work_.rows, call.out->cols());
      call.cache = probe.caches[i];
      call.out = probed_[i].get();
      outputs.push_back(call.out);
      BGTQ_RETURN_IF_ERROR(backend_.Attention(call));
    }
    return probe.report(call.layer, outputs);
  }

  /// x += W y.
  void MatMulAdd(const Weight& weight, const Activations& y, int64_t rows) {
    const Product product{&weight, nullptr, work_.x.get(), true};
    backend_.MatMul({&product, 1}, y, nullptr, rows);
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
    work_.inner = backend_.MakeActivations(rows, c.feed_forward);
    work_.rows = rows;
  }

  Backend& backend_;
  WeightPtr embedding_, output_norm_, output_;
  std::vector<Layer> layers_;
  Workspace work_;
  std::vector<std::unique_ptr<Activations>> probed_;  // attention outputs of a probe's caches
};

}  // namespace

Result<std::unique_ptr<Model>> LoadDenseDecoder(const ModelSource& source, Backend& backend,
                                                const DenseDecoderTraits& traits) {
  BGTQ_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(source, traits.pairing));
  BGTQ_RETURN_IF_ERROR(CheckAllKeysRead(source));
  auto model = std::make_unique<DenseDecoder>(std::move(config), backend);
  BGTQ_RETURN_IF_ERROR(model->Load(source, traits));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace blockgtq
