// See huggingface_names.h. Source of the correspondence: gguf-py/gguf/tensor_mapping.py of llama.cpp, and the
// module names of transformers.
#include "src/formats/huggingface_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace blockgtq {
namespace {

constexpr HuggingFaceTensorName kWhole[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"lm_head.bias", "output.bias"},
};

/// Modules of a layer; ".weight" and ".bias" follow on both sides.
constexpr HuggingFaceTensorName kModules[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},  // fused: gate's rows, then up's, as GGUF files of these families have it
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    // After the sublayer, before the residual is added.
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
};

/// Modules of an expert, after "mlp.experts.N.".
constexpr HuggingFaceTensorName kExpertTensors[] = {
    {"gate_proj.weight", "ffn_gate_exps.weight"},
    {"up_proj.weight", "ffn_up_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"},
};

/// Takes "PREFIX<number>." from the front of text.
std::optional<int> TakeNumber(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return std::nullopt;
  const std::string_view rest = text->substr(prefix.size());
  int number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  const size_t digits = static_cast<size_t>(end - rest.data());
  const bool plain = error == std::errc() && number >= 0 && (rest[0] != '0' || digits == 1) && rest[0] != '-';
  if (!plain || digits >= rest.size() || rest[digits] != '.') return std::nullopt;
  *text = rest.substr(digits + 1);
  return number;
}

std::optional<std::string_view> Find(std::span<const HuggingFaceTensorName> names, std::string_view stored) {
  for (const HuggingFaceTensorName& name : names) {
    if (name.stored == stored) return name.gguf;
  }
  return std::nullopt;
}

}  // namespace

GgufTensorName ToGgufName(const HuggingFaceFamily& family, std::string_view stored) {
  if (const auto whole = Find(kWhole, stored)) return {std::string(*whole)};
  std::string_view rest = stored;
  const std::optional<int> layer = TakeNumber("model.layers.", &rest);
  if (!layer) return {std::string(stored)};
  const auto named = [&](std::string_view gguf) { return fmt::format("blk.{}.{}", *layer, gguf); };
  if (const auto own = Find(family.layer_tensors, rest)) return {named(*own)};
  std::string_view in_expert = rest;
  if (const std::optional<int> expert = TakeNumber("mlp.experts.", &in_expert)) {
    if (const auto part = Find(kExpertTensors, in_expert)) return {named(*part), *expert};
    return {std::string(stored)};
  }
  for (const std::string_view suffix : {".weight", ".bias"}) {
    if (!rest.ends_with(suffix)) continue;
    const auto module = Find(kModules, rest.substr(0, rest.size() - suffix.size()));
    if (module) return {named(std::string(*module) + std::string(suffix))};
  }
  if (rest == "mlp.gate.e_score_correction_bias") return {named("exp_probs_b.bias")};
  return {std::string(stored)};
}

std::string StoredNames(const HuggingFaceFamily& family, std::string_view gguf) {
  std::vector<std::string> candidates;
  std::string_view rest = gguf;
  if (const std::optional<int> layer = TakeNumber("blk.", &rest)) {
    const auto add = [&](std::string_view of_layer) {
      candidates.push_back(fmt::format("model.layers.{}.{}", *layer, of_layer));
    };
    for (const HuggingFaceTensorName& name : family.layer_tensors) add(name.stored);
    for (const HuggingFaceTensorName& name : kModules) {
      for (const char* suffix : {".weight", ".bias"}) add(std::string(name.stored) + suffix);
    }
    for (const HuggingFaceTensorName& name : kExpertTensors)
      add(fmt::format("mlp.experts.0.{}", name.stored));
  } else {
    for (const HuggingFaceTensorName& name : kWhole) candidates.emplace_back(name.stored);
  }
  std::vector<std::string> names;
  for (const std::string& candidate : candidates) {
    const bool known = std::find(names.begin(), names.end(), candidate) != names.end();
    if (!known && ToGgufName(family, candidate).name == gguf) names.push_back(candidate);
  }
  return names.empty() ? std::string(gguf) : fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace blockgtq
