// The weights of a dense decoder (dense_decoder.h), taken from a model source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/models/dense_decoder.h"
#include "src/models/weight_reader.h"

namespace blockgtq {

using WeightPtr = std::unique_ptr<Weight>;

struct GatedWeightPtrs {
  WeightPtr gate, up, down;
  GatedWeights view() const { return {gate.get(), up.get(), down.get()}; }
};

/// Members that the family or the layer does not have are null or empty.
struct DecoderLayer {
  WeightPtr attention_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, attention_output;
  WeightPtr post_attention_norm;
  WeightPtr ffn_norm, post_ffn_norm;
  GatedWeightPtrs ffn;                   // of a layer without experts
  WeightPtr router;                      // of a layer with experts
  std::vector<GatedWeightPtrs> experts;  // [config.experts.count]
};

/// A gated feed-forward: the matrices prefix + "ffn_gate" + suffix, and so on.
/// Errors: those of WeightReader.
Result<GatedWeightPtrs> TakeGated(const WeightReader& reader, const std::string& prefix,
                                  const std::string& suffix, int64_t embedding, int64_t inner);
/// A layer's router and experts.
Status TakeExperts(const WeightReader& reader, const std::string& prefix, const ModelConfig& config,
                   DecoderLayer& layer);

struct DecoderWeights {
  WeightPtr embedding, output_norm, output;  // output: null when it is the embedding
  std::vector<DecoderLayer> layers;
};

/// Checks every shape, and that the source has no tensor beside those that are taken.
Result<DecoderWeights> TakeDecoderWeights(const ModelSource& source, Backend& backend,
                                          const ModelConfig& config, const DenseDecoderTraits& traits);

}  // namespace blockgtq
