// See gguf_metadata.h. Source of keys and types: llama.cpp (convert_hf_to_gguf.py,
// gguf-py/gguf/constants.py).
#include "src/engine/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/core/rope_scaling.h"

namespace blockgtq {
namespace {

/// An architecture whose GGUF files were compared with llama.cpp's reading of them.
struct Known {
  std::string_view architecture;
  GateFunction gate = GateFunction::kSilu;  // what readers of GGUF compute
  bool window = false;                      // llama.cpp reads the sliding window
};
constexpr std::array<Known, 10> kKnown = {{{"llama"},
                                           {"qwen2"},
                                           {"qwen3"},
                                           {"qwen3moe"},
                                           {"chatglm"},
                                           {"glm4"},
                                           {"gemma3", GateFunction::kGeluTanh, true},
                                           {"olmo2"},
                                           {"phi3"},
                                           {"deepseek2"}}};

constexpr std::string_view kRealKeys[] = {"rope.freq_base", "rope.freq_base_swa",
                                          "attention.layer_norm_rms_epsilon", "attention.scale",
                                          "expert_weights_scale"};
constexpr std::string_view kIntegerKeys[] = {
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "context_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
};
/// Written from `config`, or said by the architecture, or by AddScaling.
constexpr std::string_view kElsewhere[] = {"feed_forward.activation", "vocab_size", "expert_weights_norm",
                                           "attention.sliding_window_pattern", "leading_dense_block_count"};
/// Of latents: AddLatents.
constexpr std::string_view kOfHeads[] = {"attention.head_count_kv", "attention.key_length",
                                         "attention.value_length"};

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Writer {
 public:
  Writer(const ModelSource& source, const ModelConfig& config)
      : keys_(source.keys()), config_(config), name_(source.name()), arch_(source.architecture()) {}

  Result<GgufModelMetadata> Write() {
    const auto* known =
        std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return k.architecture == arch_; });
    if (known == kKnown.end()) {
      std::string names;
      for (const Known& k : kKnown) names += fmt::format("{}{}", names.empty() ? "" : ", ", k.architecture);
      return Status(ErrorCode::kUnsupported,
                    fmt::format("{}: architecture '{}' is not one that this build writes to GGUF ({})", name_,
                                arch_, names));
    }
    for (const std::string& key : keys_.Names()) {
      BGTQ_RETURN_IF_ERROR(AddKey(key));
    }
    Put("vocab_size", static_cast<uint32_t>(config_.vocabulary));
    BGTQ_RETURN_IF_ERROR(CheckImplied(*known));
    AddWindow(*known);
    if (config_.latent.rank > 0) AddLatents();
    BGTQ_ASSIGN_OR_RETURN(const std::string scaling, keys_.TextOr("rope.scaling.type", "none"));
    BGTQ_RETURN_IF_ERROR(AddScaling(scaling));
    return std::move(result_);
  }

 private:
  void Put(const std::string& key, GgufWriteValue value) {
    result_.metadata.emplace_back(fmt::format("{}.{}", arch_, key), std::move(value));
  }
  Status Unwritable(std::string_view key, const std::string& what) const {
    return keys_.Error(ErrorCode::kUnsupported, key, what);
  }

  Status AddKey(const std::string& key) {
    const bool elsewhere = Contains(kElsewhere, key) || key.starts_with("rope.scaling.") ||
                           (config_.latent.rank > 0 && Contains(kOfHeads, key));
    if (!keys_.Says(key) || elsewhere) return Status::Ok();
    if (Contains(kRealKeys, key)) {
      BGTQ_ASSIGN_OR_RETURN(const double value, keys_.Real(key));
      Put(key, static_cast<float>(value));
    } else if (Contains(kIntegerKeys, key)) {
      BGTQ_ASSIGN_OR_RETURN(const int64_t value, keys_.Dimension(key, std::numeric_limits<int32_t>::max()));
      Put(key, static_cast<uint32_t>(value));
    } else {
      return Unwritable(key, "has no form in GGUF that this build knows");
    }
    return Status::Ok();
  }

  /// What the architecture's name says in GGUF, and no key.
  Status CheckImplied(const Known& known) {
    if (config_.gate != known.gate) {
      return Unwritable("feed_forward.activation",
                        fmt::format("is not that of every '{}', which is all that GGUF can say", arch_));
    }
    if (config_.experts.count > 0 && !config_.experts.renormalise && config_.latent.rank == 0) {
      return Unwritable("expert_weights_norm",
                        fmt::format("is false, which GGUF cannot say of a '{}'", arch_));
    }
    const double usual = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    if (keys_.Says("attention.scale") && std::abs(config_.attention_scale / usual - 1) > 1e-6) {
      Differ(fmt::format("takes 1 / sqrt({}) for the scale of attention, not {}", config_.head_dim,
                         config_.attention_scale));
    }
    return Status::Ok();
  }

  /// As llama.cpp has it: one KV head of the cached key's dims, and a head's under names of their own.
  void AddLatents() {
    const LatentConfig& latent = config_.latent;
    Put("attention.head_count_kv", uint32_t{1});
    Put("attention.key_length", static_cast<uint32_t>(latent.rank + latent.rope_dims));
    Put("attention.value_length", static_cast<uint32_t>(latent.rank));
    Put("attention.key_length_mla", static_cast<uint32_t>(latent.nope_dims + latent.rope_dims));
    Put("attention.value_length_mla", static_cast<uint32_t>(latent.value_dims));
    Put("leading_dense_block_count", static_cast<uint32_t>(config_.experts.dense_layers));
    Put("expert_weights_norm", config_.experts.renormalise);
    Put("expert_gating_func", uint32_t{1});  // softmax
  }

  void AddWindow(const Known& known) {
    if (config_.window == 0) return;
    if (!known.window) Differ("does not read its sliding window: longer texts see more there");
    const auto layers = static_cast<size_t>(config_.layers);
    std::vector<bool> windowed(layers, true);
    for (size_t l = 0; l < layers; ++l) windowed[l] = config_.window_of(static_cast<int>(l)) > 0;
    const auto is_every = [&](size_t n) {  // each n-th layer sees all
      for (size_t l = 0; l < layers; ++l) {
        if (windowed[l] != ((l + 1) % n != 0)) return false;
      }
      return true;
    };
    constexpr const char* kPattern = "attention.sliding_window_pattern";
    for (size_t n = 2; n <= layers; ++n) {
      if (is_every(n)) return Put(kPattern, static_cast<uint32_t>(n));
    }
    // All of them: what readers assume, except where the family has layers that see all.
    const bool all = std::find(windowed.begin(), windowed.end(), false) == windowed.end();
    if (!all || known.window) Put(kPattern, std::move(windowed));
  }

  Status AddScaling(std::string_view type) {
    const RopeConfig& rope = config_.rope;
    if (type == "none") return Status::Ok();
    if (type == "llama3") {
      result_.tensors.push_back({"rope_freqs.weight", rope.freq_divisors});
      return Status::Ok();
    }
    if (type != "linear" && type != "yarn" && type != "longrope") {
      return Unwritable("rope.scaling.type",
                        fmt::format("is '{}', which this build does not write to GGUF", type));
    }
    if (keys_.Has("rope.scaling.factor")) {
      BGTQ_ASSIGN_OR_RETURN(const double factor, keys_.Real("rope.scaling.factor"));
      Put("rope.scaling.factor", static_cast<float>(factor));
    }
    if (type == "linear") {
      Put("rope.scaling.type", std::string(type));
      return Status::Ok();
    }
    BGTQ_ASSIGN_OR_RETURN(const int64_t original,
                          keys_.IntOr("rope.scaling.original_context_length", config_.context_length));
    Put("rope.scaling.original_context_length", static_cast<uint32_t>(original));
    return type == "yarn" ? AddYarn() : AddLongRope();
  }

  Status AddYarn() {
    Put("rope.scaling.type", std::string("yarn"));
    BGTQ_RETURN_IF_ERROR(AddMscale());
    BGTQ_ASSIGN_OR_RETURN(const bool truncate, keys_.FlagOr("rope.scaling.truncate", true));
    if (!truncate) return Unwritable("rope.scaling.truncate", "is false, which GGUF cannot say");
    for (const char* key : {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"}) {
      if (!keys_.Has(key)) continue;
      BGTQ_ASSIGN_OR_RETURN(const double value, keys_.Real(key));
      Put(key, static_cast<float>(value));
    }
    if (!keys_.Has("rope.scaling.attn_factor")) return Status::Ok();
    // In GGUF a factor on YaRN's own, in config.json in its place.
    BGTQ_ASSIGN_OR_RETURN(const double attention, keys_.Real("rope.scaling.attn_factor"));
    BGTQ_ASSIGN_OR_RETURN(const double factor, keys_.Real("rope.scaling.factor"));
    Put("rope.scaling.attn_factor", static_cast<float>(attention / YarnMscale(factor, 1.0)));
    return Status::Ok();
  }

  Status AddMscale() {
    constexpr const char* kMscale = "rope.scaling.mscale";
    constexpr const char* kOfAll = "rope.scaling.mscale_all_dim";
    for (const char* key : {kMscale, kOfAll}) {
      if (config_.latent.rank > 0 || !keys_.Says(key)) continue;
      return Unwritable(key, fmt::format("has no form in the GGUF of a '{}'", arch_));
    }
    BGTQ_ASSIGN_OR_RETURN(const double mscale, keys_.RealOr(kMscale, 0.0));
    BGTQ_ASSIGN_OR_RETURN(const double of_all, keys_.RealOr(kOfAll, 0.0));
    if (mscale != of_all) return Unwritable(kMscale, fmt::format("is not mscale_all_dim ({})", of_all));
    if (of_all != 0) Put("rope.scaling.yarn_log_multiplier", static_cast<float>(0.1 * of_all));
    return Status::Ok();
  }

  Status AddLongRope() {  // no type: readers know it by the tensors
    if (arch_ != "phi3")
      return Unwritable("rope.scaling.type", fmt::format("is 'longrope' in a '{}'", arch_));
    Put("rope.scaling.attn_factor", config_.rope.attention_factor);
    for (const auto& [key, tensor] : {std::pair{"rope.scaling.short_factor", "rope_factors_short.weight"},
                                      std::pair{"rope.scaling.long_factor", "rope_factors_long.weight"}}) {
      BGTQ_ASSIGN_OR_RETURN(const std::vector<double> factors, keys_.Reals(key));
      result_.tensors.push_back({tensor, {factors.begin(), factors.end()}});
    }
    return Status::Ok();
  }

  void Differ(const std::string& what) {
    result_.differences.push_back(fmt::format("llama.cpp, of a '{}', {}", arch_, what));
  }

  const ModelKeys& keys_;
  const ModelConfig& config_;
  const std::string& name_;
  const std::string& arch_;
  GgufModelMetadata result_;
};

}  // namespace

Result<GgufModelMetadata> ModelToGguf(const ModelSource& source, const ModelConfig& config) {
  return Writer(source, config).Write();
}

}  // namespace blockgtq
