// config.json of Hugging Face transformers as neutral keys (model_keys.h), in the styles of transformers 4
// (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "blockgtq/status.h"
#include "src/formats/huggingface_family.h"
#include "src/formats/model_keys.h"

namespace blockgtq {

struct HuggingFaceConfig {
  const HuggingFaceFamily* family = nullptr;
  ModelKeys keys;
  std::optional<bool> tied;  // tie_word_embeddings, where the file says
};

/// Keys without GGUF's counterpart keep their own name, so that one that no architecture reads is refused
/// (ModelKeys::CheckAllRead); what only training or other software uses is dropped. Beyond GGUF's keys:
///   feed_forward.activation          "silu", "gelu_pytorch_tanh", ...
///   attention.sliding_window_pattern [layers] 1: windowed, 0: sees all; absent: every layer is windowed
///   rope.freq_base_swa               RoPE base of windowed layers
///   rope.scaling.type                "none", "linear", "dynamic", "llama3", "yarn", "longrope" or what the
///                                    file says; with rope.scaling.{factor, original_context_length,
///                                    low_freq_factor, high_freq_factor, attn_factor, yarn_beta_fast,
///                                    yarn_beta_slow, mscale, mscale_all_dim, truncate, short_factor,
///                                    long_factor}
///   expert_selection, expert_layer_step   topk_method, how often a layer has experts
/// Errors: kCorruptFile; kUnsupported: a model_type that is not in `families`, a class other than
/// ...ForCausalLM, a layer type other than full and sliding attention.
Result<HuggingFaceConfig> ReadHuggingFaceConfig(std::string_view json, const std::string& name,
                                                std::span<const HuggingFaceFamily> families);

}  // namespace blockgtq
