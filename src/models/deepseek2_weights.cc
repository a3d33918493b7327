// See deepseek2_weights.h.
#include "src/models/deepseek2_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "src/core/half.h"

namespace blockgtq {
namespace {

/// W [rows, cols] as W' [cols, rows]: in its own type, or in fp16 where the type has blocks along its rows.
TensorView Transposed(const TensorView& w, std::vector<std::byte>& bytes) {
  const TensorTypeInfo& info = GetTensorType(w.type);
  const bool plain = info.block_elements == 1;
  const auto size = static_cast<size_t>(plain ? info.block_bytes : 2);
  bytes.resize(size * static_cast<size_t>(w.rows * w.cols));
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int64_t r = 0; r < w.rows; ++r) {
    if (!plain) DequantizeRow(w, r, row.data());
    for (int64_t c = 0; c < w.cols; ++c) {
      std::byte* to = bytes.data() + size * static_cast<size_t>(c * w.rows + r);
      if (plain) {
        std::memcpy(to, w.data + r * w.row_bytes() + static_cast<int64_t>(size) * c, size);
      } else {
        const uint16_t half = FloatToHalf(row[static_cast<size_t>(c)]);
        std::memcpy(to, &half, size);
      }
    }
  }
  return {plain ? w.type : TensorType::kF16, bytes.data(), w.cols, w.rows};
}

class LayerReader {
 public:
  LayerReader(const WeightReader& reader, const ModelConfig& config, int layer, LatentWeights& weights)
      : reader_(reader),
        c_(config),
        prefix_(fmt::format("blk.{}.", layer)),
        mixes_(layer >= config.experts.dense_layers),
        weights_(weights) {}

  Status Take(LatentLayer& layer) {
    const int64_t e = c_.embedding, values = int64_t{c_.heads} * c_.latent.value_dims;
    DecoderLayer& d = layer.decoder;
    BGTQ_ASSIGN_OR_RETURN(d.attention_norm, reader_.Vector(Name("attn_norm.weight"), e));
    BGTQ_RETURN_IF_ERROR(TakeQueries(layer));
    BGTQ_RETURN_IF_ERROR(TakeLatent(layer));
    BGTQ_RETURN_IF_ERROR(TakeHeads(layer));
    BGTQ_ASSIGN_OR_RETURN(d.attention_output, reader_.Matrix(Name("attn_output.weight"), e, values));
    BGTQ_ASSIGN_OR_RETURN(d.ffn_norm, reader_.Vector(Name("ffn_norm.weight"), e));
    if (!mixes_) {
      BGTQ_ASSIGN_OR_RETURN(d.ffn, TakeGated(reader_, prefix_, ".weight", e, c_.feed_forward));
      return Status::Ok();
    }
    BGTQ_RETURN_IF_ERROR(TakeExperts(reader_, prefix_, c_, d));
    if (c_.experts.shared == 0) return Status::Ok();
    BGTQ_ASSIGN_OR_RETURN(layer.shared, TakeGated(reader_, prefix_, "_shexp.weight", e,
                                                  c_.experts.shared * c_.experts.feed_forward));
    return Status::Ok();
  }

 private:
  std::string Name(const char* tensor) const { return prefix_ + tensor; }

  Status TakeQueries(LatentLayer& layer) {
    const int64_t rows = int64_t{c_.heads} * (c_.latent.nope_dims + c_.latent.rope_dims);
    const int64_t rank = c_.latent.query_rank;
    if (rank == 0) {
      BGTQ_ASSIGN_OR_RETURN(layer.q, reader_.Matrix(Name("attn_q.weight"), rows, c_.embedding));
      return Status::Ok();
    }
    BGTQ_ASSIGN_OR_RETURN(layer.q_a, reader_.Matrix(Name("attn_q_a.weight"), rank, c_.embedding));
    BGTQ_ASSIGN_OR_RETURN(layer.q_a_norm, reader_.Vector(Name("attn_q_a_norm.weight"), rank));
    BGTQ_ASSIGN_OR_RETURN(layer.q, reader_.Matrix(Name("attn_q_b.weight"), rows, rank));
    return Status::Ok();
  }

  Status TakeLatent(LatentLayer& layer) {
    const std::string both = Name("attn_kv_a_mqa.weight");
    const int64_t e = c_.embedding, rank = c_.latent.rank, rope = c_.latent.rope_dims;
    BGTQ_ASSIGN_OR_RETURN(layer.latent, reader_.MatrixRows(both, rank + rope, e, 0, rank));
    BGTQ_ASSIGN_OR_RETURN(layer.rope_key, reader_.MatrixRows(both, rank + rope, e, rank, rope));
    BGTQ_ASSIGN_OR_RETURN(layer.latent_norm, reader_.Vector(Name("attn_kv_a_norm.weight"), rank));
    return Status::Ok();
  }

  /// W_UK and W_UV of every head: rows of one matrix, or two (newer GGUF files), the first transposed
  /// already.
  Status TakeHeads(LatentLayer& layer) {
    const int64_t heads = c_.heads, rank = c_.latent.rank;
    const int64_t nope = c_.latent.nope_dims, value = c_.latent.value_dims;
    const std::string both = Name("attn_kv_b.weight"), k = Name("attn_k_b.weight"),
                      v = Name("attn_v_b.weight");
    for (int64_t h = 0; h < heads; ++h) {
      WeightPtr& to_latent = layer.to_latent.emplace_back();
      WeightPtr& from_latent = layer.from_latent.emplace_back();
      if (reader_.Has(k)) {
        BGTQ_ASSIGN_OR_RETURN(to_latent, reader_.MatrixRows(k, heads * rank, nope, h * rank, rank));
        BGTQ_ASSIGN_OR_RETURN(from_latent, reader_.MatrixRows(v, heads * value, rank, h * value, value));
        continue;
      }
      const int64_t rows = heads * (nope + value), first = h * (nope + value);
      BGTQ_ASSIGN_OR_RETURN(const TensorView up, reader_.Rows(both, rows, rank, first, nope));
      BGTQ_ASSIGN_OR_RETURN(to_latent, reader_.Made(Transposed(up, weights_.made.emplace_back()), both));
      BGTQ_ASSIGN_OR_RETURN(from_latent, reader_.MatrixRows(both, rows, rank, first + nope, value));
    }
    return Status::Ok();
  }

  const WeightReader& reader_;
  const ModelConfig& c_;
  std::string prefix_;
  bool mixes_;
  LatentWeights& weights_;
};

}  // namespace

Result<LatentWeights> TakeLatentWeights(const ModelSource& source, Backend& backend,
                                        const ModelConfig& config) {
  const WeightReader reader(source, backend);
  LatentWeights weights;
  BGTQ_ASSIGN_OR_RETURN(weights.embedding,
                        reader.Matrix("token_embd.weight", config.vocabulary, config.embedding));
  BGTQ_ASSIGN_OR_RETURN(weights.output_norm, reader.Vector("output_norm.weight", config.embedding));
  BGTQ_ASSIGN_OR_RETURN(weights.output,
                        reader.OptionalMatrix("output.weight", config.vocabulary, config.embedding));
  for (int l = 0; l < config.layers; ++l) {
    BGTQ_RETURN_IF_ERROR(LayerReader(reader, config, l, weights).Take(weights.layers.emplace_back()));
  }
  BGTQ_RETURN_IF_ERROR(source.CheckAllTaken());
  return weights;
}

}  // namespace blockgtq
