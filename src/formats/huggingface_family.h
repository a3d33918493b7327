// How one family of models is written by Hugging Face transformers, where that departs from what most
// families do (huggingface_names.cc, huggingface_config.cc). An architecture's file states its own.
#pragma once

#include <span>
#include <string_view>

#include "src/core/rope.h"

namespace blockgtq {

/// A tensor of a layer: "post_attention_layernorm.weight" is GGUF's "ffn_norm.weight".
struct HuggingFaceTensorName {
  std::string_view stored;  // after "model.layers.N."
  std::string_view gguf;    // after "blk.N."
};

struct HuggingFaceFamily {
  std::string_view model_type;               // config.json
  std::string_view architecture;             // GGUF's name of it
  RopePairing pairing = RopePairing::kNeox;  // of the rows of Q and K as transformers keeps them
  bool norms_add_one = false;                // norms multiply by 1 + weight (gemma); GGUF files hold the sum
  bool window_needs_flag = false;            // sliding_window counts only with use_sliding_window (qwen)
  // What transformers takes where config.json has no rope_theta and no partial_rotary_factor.
  double rope_theta = 10000;
  double rotary_share = 1;
  std::span<const HuggingFaceTensorName> layer_tensors{};  // looked up before the common names
};

}  // namespace blockgtq
