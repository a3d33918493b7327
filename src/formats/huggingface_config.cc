// See huggingface_config.h.
#include "src/formats/huggingface_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/formats/huggingface_keys.h"
#include "src/formats/json_fields.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr int kMaxDepth = 16;

struct Rename {
  std::string_view json;
  std::string_view key;
};
// In order of preference where several names mean one key: messages about a missing one name the first.
constexpr Rename kRenames[] = {
    {"num_hidden_layers", "block_count"},
    {"hidden_size", "embedding_length"},
    {"intermediate_size", "feed_forward_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"max_position_embeddings", "context_length"},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {"vocab_size", "vocab_size"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"original_max_position_embeddings", "rope.scaling.original_context_length"},
    {"num_experts", "expert_count"},
    {"num_local_experts", "expert_count"},
    {"n_routed_experts", "expert_count"},
    {"num_experts_per_tok", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
    {"n_shared_experts", "expert_shared_count"},
    {"norm_topk_prob", "expert_weights_norm"},
    {"routed_scaling_factor", "expert_weights_scale"},
    {"first_k_dense_replace", "leading_dense_block_count"},
    {"kv_lora_rank", "attention.kv_lora_rank"},
    {"q_lora_rank", "attention.q_lora_rank"},
    {"v_head_dim", "attention.value_length"},
    {"qk_rope_head_dim", "rope.dimension_count"},
};

/// Where 1 is what a model without the setting does.
constexpr Rename kNothingWhenOne[] = {
    {"decoder_sparse_step", "expert_layer_step"},
    {"moe_layer_freq", "expert_layer_step"},
    {"n_group", "expert_group_count"},
    {"topk_group", "expert_group_used_count"},
};

/// Read elsewhere (here, in huggingface_keys.cc, by the tokenizer).
constexpr std::string_view kReadElsewhere[] = {
    "architectures",
    "model_type",
    "tie_word_embeddings",
    "hidden_act",
    "hidden_activation",
    "head_dim",
    "qk_nope_head_dim",
    "query_pre_attn_scalar",
    "scoring_func",
    "topk_method",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_local_base_freq",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "eos_token_id",
};

/// What only training or other software uses, what the tokenizer's own files say, and flags that the presence
/// of tensors says again.
constexpr std::string_view kNoInfluence[] = {
    "bos_token_id",
    "pad_token_id",
    "_name_or_path",
    "name_or_path",
    "_attn_implementation",
    "attn_implementation",
    "attention_bias",
    "mlp_bias",
    "attention_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "hidden_dropout",
    "aux_loss_alpha",
    "seq_aux",
    "router_aux_loss_coef",
    "output_router_logits",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "auto_map",
    "cache_implementation",
    "dtype",
    "torch_dtype",
    "ep_size",
    "initializer_range",
    "pretraining_tp",
    "transformers_version",
    "unsloth_version",
    "use_cache",
};

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Spell(std::string_view key) {
  if (key == "attention.key_length") return "'head_dim'";
  if (const std::string rope = RopeJsonName(key); !rope.empty()) return fmt::format("'{}'", rope);
  for (const Rename& rename : kRenames) {
    if (rename.key == key) return fmt::format("'{}'", rename.json);
  }
  return fmt::format("'{}'", Printable(key));
}

class Translator {
 public:
  Translator(const Json& json, const std::string& name) : json_(json), name_(name) {}

  Result<HuggingFaceConfig> Run(std::span<const HuggingFaceFamily> families) {
    HuggingFaceConfig config;
    BGTQ_ASSIGN_OR_RETURN(config.family, Family(families));
    BGTQ_RETURN_IF_ERROR(CheckClass());
    config.keys = ModelKeys(name_, Spell);
    KeyFiller filler(config.keys, name_);
    for (const auto& [name, value] : json_.items()) {
      if (Contains(kReadElsewhere, name) || Contains(kNoInfluence, name)) continue;
      BGTQ_RETURN_IF_ERROR(FillPlain(name, value, filler));
    }
    BGTQ_RETURN_IF_ERROR(FillHeads(filler));
    BGTQ_RETURN_IF_ERROR(FillWords(filler));
    BGTQ_RETURN_IF_ERROR(FillRope(json_, *config.family, filler));
    BGTQ_RETURN_IF_ERROR(FillWindow(json_, config.family->window_needs_flag, filler));
    if (const Json* tied = Member("tie_word_embeddings")) {
      if (!tied->is_boolean()) return Corrupt("'tie_word_embeddings' is not a bool");
      config.tied = tied->get<bool>();
    }
    return config;
  }

 private:
  Status Corrupt(const std::string& what) const {
    return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", name_, what));
  }
  Status Unsupported(const std::string& what) const {
    return Status(ErrorCode::kUnsupported, fmt::format("{}: {}", name_, what));
  }
  const Json* Member(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  Result<const HuggingFaceFamily*> Family(std::span<const HuggingFaceFamily> families) const {
    const Json* type = Member("model_type");
    if (type == nullptr || !type->is_string()) return Corrupt("'model_type' is missing or not a string");
    const auto name = type->get<std::string>();
    std::string known;
    for (const HuggingFaceFamily& family : families) {
      if (family.model_type == name) return &family;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", family.model_type);
    }
    return Unsupported(
        fmt::format("model_type '{}' is not supported by this build (known: {})", Printable(name), known));
  }

  /// A classifier or an encoder of the same family has other heads and masks.
  Status CheckClass() const {
    const Json* classes = Member("architectures");
    if (classes == nullptr) return Status::Ok();
    if (!classes->is_array()) return Corrupt("'architectures' is not a list");
    for (const Json& name : *classes) {
      if (!name.is_string()) return Corrupt("'architectures' is not a list of strings");
      if (name.get<std::string>().ends_with("ForCausalLM")) continue;
      return Unsupported(fmt::format("class '{}' is not supported by this build (...ForCausalLM is)",
                                     Printable(name.get<std::string>())));
    }
    return Status::Ok();
  }

  static Status FillPlain(const std::string& name, const Json& value, KeyFiller& filler) {
    for (const Rename& rename : kNothingWhenOne) {
      if (rename.json != name) continue;
      return value == 1 ? Status::Ok() : filler.Put(rename.key, value, name);
    }
    for (const Rename& rename : kRenames) {
      if (rename.json == name) return filler.Put(rename.key, value, name);
    }
    return filler.Put(name, value, name);  // unknown: refused by this name unless an architecture reads it
  }

  Status FillHeads(KeyFiller& filler) const {
    if (const Json* nope = Member("qk_nope_head_dim")) {  // MLA: a key is [nope | rope]
      const Json* rope = Member("qk_rope_head_dim");
      constexpr int64_t kLimit = 1 << 20;
      const auto size = [&](const Json* v) {
        return v != nullptr && v->is_number_unsigned() && v->get<uint64_t>() <= uint64_t{kLimit};
      };
      if (!size(nope) || !size(rope)) {
        return Corrupt("'qk_nope_head_dim' and 'qk_rope_head_dim' are not both sizes");
      }
      return filler.PutValue("attention.key_length", nope->get<int64_t>() + rope->get<int64_t>(),
                             "qk_nope_head_dim");
    }
    const Json* head_dim = Member("head_dim");
    if (head_dim == nullptr) return Status::Ok();
    BGTQ_RETURN_IF_ERROR(filler.Put("attention.key_length", *head_dim, "head_dim"));
    return filler.Put("attention.value_length", *head_dim, "head_dim");
  }

  /// Settings whose values are words or formulas.
  Status FillWords(KeyFiller& filler) const {
    for (const char* name : {"hidden_act", "hidden_activation"}) {
      const Json* act = Member(name);
      if (act == nullptr) continue;
      BGTQ_RETURN_IF_ERROR(
          filler.Put("feed_forward.activation", *act == "swish" ? Json("silu") : *act, name));
    }
    if (const Json* scalar = Member("query_pre_attn_scalar")) {
      if (!scalar->is_number() || !(scalar->get<double>() > 0)) {
        return Corrupt("'query_pre_attn_scalar' is not a number above 0");
      }
      BGTQ_RETURN_IF_ERROR(filler.PutValue("attention.scale", 1.0 / std::sqrt(scalar->get<double>()),
                                           "query_pre_attn_scalar"));
    }
    if (const Json* method = Member("topk_method"); method != nullptr && *method != "greedy") {
      BGTQ_RETURN_IF_ERROR(filler.Put("expert_selection", *method, "topk_method"));
    }
    const Json* scoring = Member("scoring_func");
    if (scoring == nullptr) return Status::Ok();
    if (*scoring == "softmax") return filler.PutValue("expert_gating_func", int64_t{1}, "scoring_func");
    if (*scoring == "sigmoid") return filler.PutValue("expert_gating_func", int64_t{2}, "scoring_func");
    return Unsupported("'scoring_func' is neither softmax nor sigmoid");
  }

  const Json& json_;
  const std::string& name_;
};

}  // namespace

Result<HuggingFaceConfig> ReadHuggingFaceConfig(std::string_view json, const std::string& name,
                                                std::span<const HuggingFaceFamily> families) {
  const Result<Json> parsed = ParseBoundedJson(json, kMaxBytes, kMaxDepth);
  if (!parsed.ok()) return parsed.status().WithContext(name);
  if (!parsed->is_object()) return Status(ErrorCode::kCorruptFile, name + ": is not a JSON object");
  return Translator(*parsed, name).Run(families);
}

}  // namespace blockgtq
