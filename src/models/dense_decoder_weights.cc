// See dense_decoder_weights.h.
#include "src/models/dense_decoder_weights.h"

#include <fmt/format.h>

#include <string>

#include "src/models/weight_reader.h"

namespace blockgtq {
namespace {

class LayerReader {
 public:
  LayerReader(const WeightReader& reader, const ModelConfig& config, const DenseDecoderTraits& traits,
              int layer)
      : reader_(reader),
        c_(config),
        traits_(traits),
        prefix_(fmt::format("blk.{}.", layer)),
        q_rows_(int64_t{config.heads} * config.head_dim),
        kv_rows_(int64_t{config.kv_heads} * config.head_dim) {}

  Result<DecoderLayer> Take() {
    DecoderLayer layer;
    BGTQ_RETURN_IF_ERROR(TakeProjections(layer));
    BGTQ_RETURN_IF_ERROR(TakeBiases(layer));
    BGTQ_RETURN_IF_ERROR(TakeNorms(layer));
    BGTQ_ASSIGN_OR_RETURN(layer.attention_output,
                          reader_.Matrix(Name("attn_output.weight"), c_.embedding, q_rows_));
    if (c_.experts.count > 0) {
      BGTQ_RETURN_IF_ERROR(TakeExperts(reader_, prefix_, c_, layer));
    } else {
      BGTQ_RETURN_IF_ERROR(TakeFeedForward(layer));
    }
    return layer;
  }

 private:
  std::string Name(const char* tensor) const { return prefix_ + tensor; }

  Status TakeProjections(DecoderLayer& layer) {
    const int64_t e = c_.embedding;
    const std::string fused = Name("attn_qkv.weight");
    if (traits_.fused && reader_.Has(fused)) {
      const int64_t rows = q_rows_ + 2 * kv_rows_;
      BGTQ_ASSIGN_OR_RETURN(layer.q, reader_.MatrixRows(fused, rows, e, 0, q_rows_));
      BGTQ_ASSIGN_OR_RETURN(layer.k, reader_.MatrixRows(fused, rows, e, q_rows_, kv_rows_));
      BGTQ_ASSIGN_OR_RETURN(layer.v, reader_.MatrixRows(fused, rows, e, q_rows_ + kv_rows_, kv_rows_));
      return Status::Ok();
    }
    BGTQ_ASSIGN_OR_RETURN(layer.q, reader_.Matrix(Name("attn_q.weight"), q_rows_, e));
    BGTQ_ASSIGN_OR_RETURN(layer.k, reader_.Matrix(Name("attn_k.weight"), kv_rows_, e));
    BGTQ_ASSIGN_OR_RETURN(layer.v, reader_.Matrix(Name("attn_v.weight"), kv_rows_, e));
    return Status::Ok();
  }

  Status TakeBiases(DecoderLayer& layer) {
    if (traits_.qkv_bias == Presence::kAbsent) return Status::Ok();
    const std::string fused = Name("attn_qkv.bias");
    if (traits_.fused && reader_.Has(fused)) {
      const int64_t size = q_rows_ + 2 * kv_rows_;
      BGTQ_ASSIGN_OR_RETURN(layer.q_bias, reader_.VectorPart(fused, size, 0, q_rows_));
      BGTQ_ASSIGN_OR_RETURN(layer.k_bias, reader_.VectorPart(fused, size, q_rows_, kv_rows_));
      BGTQ_ASSIGN_OR_RETURN(layer.v_bias, reader_.VectorPart(fused, size, q_rows_ + kv_rows_, kv_rows_));
      return Status::Ok();
    }
    if (traits_.qkv_bias == Presence::kOptional && !reader_.Has(Name("attn_k.bias"))) return Status::Ok();
    BGTQ_ASSIGN_OR_RETURN(layer.q_bias, reader_.Vector(Name("attn_q.bias"), q_rows_));
    BGTQ_ASSIGN_OR_RETURN(layer.k_bias, reader_.Vector(Name("attn_k.bias"), kv_rows_));
    BGTQ_ASSIGN_OR_RETURN(layer.v_bias, reader_.Vector(Name("attn_v.bias"), kv_rows_));
    return Status::Ok();
  }

  Status TakeNorms(DecoderLayer& layer) {
    const int64_t e = c_.embedding;
    if (traits_.norms_before) {
      BGTQ_ASSIGN_OR_RETURN(layer.attention_norm, reader_.Vector(Name("attn_norm.weight"), e));
      BGTQ_ASSIGN_OR_RETURN(layer.ffn_norm, reader_.Vector(Name("ffn_norm.weight"), e));
    }
    if (traits_.norms_after) {
      BGTQ_ASSIGN_OR_RETURN(layer.post_attention_norm, reader_.Vector(Name("post_attention_norm.weight"), e));
      BGTQ_ASSIGN_OR_RETURN(layer.post_ffn_norm, reader_.Vector(Name("post_ffw_norm.weight"), e));
    }
    if (traits_.qk_norm == QkNorm::kNone) return Status::Ok();
    const bool head = traits_.qk_norm == QkNorm::kHead;
    BGTQ_ASSIGN_OR_RETURN(layer.q_norm,
                          reader_.Vector(Name("attn_q_norm.weight"), head ? c_.head_dim : q_rows_));
    BGTQ_ASSIGN_OR_RETURN(layer.k_norm,
                          reader_.Vector(Name("attn_k_norm.weight"), head ? c_.head_dim : kv_rows_));
    return Status::Ok();
  }

  Status TakeFeedForward(DecoderLayer& layer) {
    const int64_t e = c_.embedding, inner = c_.feed_forward;
    const std::string up = Name("ffn_up.weight");
    if (!traits_.fused || reader_.Has(Name("ffn_gate.weight"))) {
      BGTQ_ASSIGN_OR_RETURN(layer.ffn, TakeGated(reader_, prefix_, ".weight", e, inner));
      return Status::Ok();
    }
    BGTQ_ASSIGN_OR_RETURN(layer.ffn.gate, reader_.MatrixRows(up, 2 * inner, e, 0, inner));
    BGTQ_ASSIGN_OR_RETURN(layer.ffn.up, reader_.MatrixRows(up, 2 * inner, e, inner, inner));
    BGTQ_ASSIGN_OR_RETURN(layer.ffn.down, reader_.Matrix(Name("ffn_down.weight"), e, inner));
    return Status::Ok();
  }

  const WeightReader& reader_;
  const ModelConfig& c_;
  const DenseDecoderTraits& traits_;
  std::string prefix_;
  int64_t q_rows_, kv_rows_;
};

}  // namespace

Result<GatedWeightPtrs> TakeGated(const WeightReader& reader, const std::string& prefix,
                                  const std::string& suffix, int64_t embedding, int64_t inner) {
  GatedWeightPtrs gated;
  BGTQ_ASSIGN_OR_RETURN(gated.gate, reader.Matrix(prefix + "ffn_gate" + suffix, inner, embedding));
  BGTQ_ASSIGN_OR_RETURN(gated.up, reader.Matrix(prefix + "ffn_up" + suffix, inner, embedding));
  BGTQ_ASSIGN_OR_RETURN(gated.down, reader.Matrix(prefix + "ffn_down" + suffix, embedding, inner));
  return gated;
}

Status TakeExperts(const WeightReader& reader, const std::string& prefix, const ModelConfig& config,
                   DecoderLayer& layer) {
  const int64_t e = config.embedding, inner = config.experts.feed_forward, count = config.experts.count;
  BGTQ_ASSIGN_OR_RETURN(layer.router, reader.Matrix(prefix + "ffn_gate_inp.weight", count, e));
  const auto take = [&](const char* name, int64_t rows, int64_t cols, int64_t expert) {
    return reader.MatrixRows(prefix + name, count * rows, cols, expert * rows, rows);
  };
  for (int64_t i = 0; i < count; ++i) {
    GatedWeightPtrs& expert = layer.experts.emplace_back();
    BGTQ_ASSIGN_OR_RETURN(expert.gate, take("ffn_gate_exps.weight", inner, e, i));
    BGTQ_ASSIGN_OR_RETURN(expert.up, take("ffn_up_exps.weight", inner, e, i));
    BGTQ_ASSIGN_OR_RETURN(expert.down, take("ffn_down_exps.weight", e, inner, i));
  }
  return Status::Ok();
}

Result<DecoderWeights> TakeDecoderWeights(const ModelSource& source, Backend& backend,
                                          const ModelConfig& config, const DenseDecoderTraits& traits) {
  const WeightReader reader(source, backend);
  DecoderWeights weights;
  BGTQ_ASSIGN_OR_RETURN(weights.embedding,
                        reader.Matrix("token_embd.weight", config.vocabulary, config.embedding));
  BGTQ_ASSIGN_OR_RETURN(weights.output_norm, reader.Vector("output_norm.weight", config.embedding));
  BGTQ_ASSIGN_OR_RETURN(weights.output,
                        reader.OptionalMatrix("output.weight", config.vocabulary, config.embedding));
  for (int l = 0; l < config.layers; ++l) {
    BGTQ_ASSIGN_OR_RETURN(DecoderLayer layer, LayerReader(reader, config, traits, l).Take());
    weights.layers.push_back(std::move(layer));
  }
  BGTQ_RETURN_IF_ERROR(source.CheckAllTaken());
  return weights;
}

}  // namespace blockgtq
