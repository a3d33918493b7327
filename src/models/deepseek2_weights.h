// The weights of a model with multi-head latent attention (deepseek2.h), taken from a model source.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "src/models/dense_decoder_weights.h"

namespace blockgtq {

/// C = the latent's rank, R = rope_dims, N = nope_dims.
struct LatentLayer {
  DecoderLayer decoder;                // norms, attention_output, feed-forward or router and experts
  WeightPtr q_a, q_a_norm;             // [query_rank, embedding]; null where queries have no latent
  WeightPtr q;                         // [heads (N + R), embedding or query_rank]
  WeightPtr latent, latent_norm;       // [C, embedding]
  WeightPtr rope_key;                  // [R, embedding]
  std::vector<WeightPtr> to_latent;    // by head: W_UK' [C, N], from a query's nope part
  std::vector<WeightPtr> from_latent;  // by head: W_UV [value_dims, C]
  GatedWeightPtrs shared;              // of a layer with experts, where some are shared
};

struct LatentWeights {
  std::vector<std::vector<std::byte>> made;  // bytes of to_latent, where the file has W_UK
  WeightPtr embedding, output_norm, output;  // output: null when it is the embedding
  std::vector<LatentLayer> layers;
};

/// Checks every shape, and that the source has no tensor beside those that are taken.
Result<LatentWeights> TakeLatentWeights(const ModelSource& source, Backend& backend,
                                        const ModelConfig& config);

}  // namespace blockgtq
