// The architecture registry, and what is common to loading any of them.
#include <fmt/format.h>
#include <xxhash.h>

#include <array>

#include "src/formats/message.h"
#include "src/models/llama.h"
#include "src/models/model.h"
#include "src/models/qwen2.h"

namespace blockgtq {
namespace {

constexpr std::array<Architecture, 2> kArchitectures = {{
    {"llama", LoadLlama},
    {"qwen2", LoadQwen2},
}};

std::string Hex(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

Result<std::unique_ptr<Model>> LoadModel(const GgufFile& file, Backend& backend) {
  BGTQ_ASSIGN_OR_RETURN(const std::string_view name, file.GetString("general.architecture"));
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture.load(file, backend);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  return Status(ErrorCode::kUnsupported,
                fmt::format("{}: architecture '{}' is not supported by this build (known: {})", file.name(),
                            name, known));
}

Result<ModelFingerprint> FingerprintOf(const ModelConfig& config, const GgufFile& file) {
  ModelFingerprint f;
  f.architecture = config.architecture;
  f.layers = config.layers;
  f.heads = config.heads;
  f.kv_heads = config.kv_heads;
  f.head_dim = config.head_dim;
  f.rope_freq_base = config.rope.freq_base;
  f.rotary_dims = config.rope.rotary_dims;
  f.rope_pairing = config.rope.pairing == RopePairing::kNorm ? "norm" : "neox";
  XXH64_hash_t scaling =
      XXH3_64bits(config.rope.freq_divisors.data(), config.rope.freq_divisors.size() * sizeof(float));
  const std::array<double, 2> factors = {config.rope.linear_scale, config.rope.attention_factor};
  scaling = XXH3_64bits_withSeed(factors.data(), sizeof(factors), scaling);
  f.rope_scaling_hash = Hex(scaling);
  XXH64_hash_t keys = 0;
  for (int l = 0; l < config.layers; ++l) {
    for (const char* part : {"weight", "bias"}) {
      const GgufTensor* tensor = file.FindTensor(fmt::format("blk.{}.attn_k.{}", l, part));
      if (tensor == nullptr) continue;
      keys = XXH3_64bits_withSeed(tensor->view.data, static_cast<size_t>(tensor->bytes), keys);
    }
  }
  f.key_weights_hash = Hex(keys);
  return f;
}

}  // namespace blockgtq
