// FingerprintOf: what a plan must agree with. Made of what the model computes, not of how a file spells it:
// key projections in F32, F16 and BF16 count by their values, rows in GGUF's order, so the same model
// has one fingerprint in GGUF and in safetensors.
#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <cmath>
#include <vector>

#include "src/models/model.h"

namespace blockgtq {
namespace {

std::string Hex(uint64_t value) { return fmt::format("{:016x}", value); }

/// Where row `row` that the key projection has in GGUF files is stored.
int64_t StoredRow(const ModelConfig& config, int64_t row) {
  const RopeConfig& rope = config.rope;
  const int64_t channel = row % rope.head_dim;
  if (rope.pairing == config.gguf_pairing || channel >= rope.rotary_dims) return row;
  return row - channel + channel / 2 + channel % 2 * (rope.rotary_dims / 2);
}

XXH64_hash_t HashValues(const ModelTensor& tensor, const ModelConfig& config, bool of_heads,
                        XXH64_hash_t seed) {
  const int64_t cols = tensor.cols, rows = tensor.rows;
  std::vector<float> row(static_cast<size_t>(cols));
  const auto widen = [&](int64_t r, float* out) {
    for (const TensorView& part : tensor.parts) {
      if (r < part.rows) return DequantizeRow(part, r, out);
      r -= part.rows;
    }
  };
  if (rows == 1) {  // a bias: its elements are the rows
    std::vector<float> stored(static_cast<size_t>(cols));
    widen(0, stored.data());
    for (int64_t i = 0; i < cols; ++i) {
      row[static_cast<size_t>(i)] = stored[static_cast<size_t>(of_heads ? StoredRow(config, i) : i)];
    }
    return XXH3_64bits_withSeed(row.data(), row.size() * sizeof(float), seed);
  }
  for (int64_t r = 0; r < rows; ++r) {
    widen(of_heads ? StoredRow(config, r) : r, row.data());
    seed = XXH3_64bits_withSeed(row.data(), row.size() * sizeof(float), seed);
  }
  return seed;
}

XXH64_hash_t HashTensor(const ModelTensor& tensor, const ModelConfig& config, XXH64_hash_t seed) {
  if (GetTensorType(tensor.type()).block_elements == 1) {
    const int64_t channels = int64_t{config.kv_heads} * config.head_dim;
    const bool of_heads = (tensor.rows == 1 ? tensor.cols : tensor.rows) == channels;
    return HashValues(tensor, config, of_heads, seed);
  }
  for (const TensorView& part : tensor.parts) {
    seed = XXH3_64bits_withSeed(part.data, static_cast<size_t>(part.rows * part.row_bytes()), seed);
  }
  return seed;
}

/// Divisors as hundredths of a percent of their logarithm: files hold or imply them to float32 rounding.
XXH64_hash_t HashDivisors(const RopeConfig& rope) {
  std::vector<int64_t> steps;
  for (const float d : rope.freq_divisors)
    steps.push_back(std::llround(1e4 * std::log(static_cast<double>(d))));
  return XXH3_64bits(steps.data(), steps.size() * sizeof(int64_t));
}

}  // namespace

ModelFingerprint FingerprintOf(const ModelConfig& config, const ModelSource& source) {
  ModelFingerprint f;
  f.architecture = config.architecture;
  f.layers = config.layers;
  f.heads = config.heads;
  f.kv_heads = config.kv_heads;
  f.head_dim = config.head_dim;
  f.rope_freq_base = config.rope.freq_base;
  f.rotary_dims = config.rope.rotary_dims;
  f.rope_pairing = config.gguf_pairing == RopePairing::kNorm ? "norm" : "neox";
  const std::array<double, 2> factors = {config.rope.linear_scale, config.rope.attention_factor};
  XXH64_hash_t scaling = XXH3_64bits_withSeed(factors.data(), sizeof(factors), HashDivisors(config.rope));
  if (config.window_rope.has_value())
    scaling = XXH3_64bits_withSeed(&config.window_rope->freq_base, sizeof(double), scaling);
  if (config.window > 0) {  // what a layer's keys were computed from
    std::vector<int64_t> windows(static_cast<size_t>(config.layers));
    for (int l = 0; l < config.layers; ++l) windows[static_cast<size_t>(l)] = config.window_of(l);
    scaling = XXH3_64bits_withSeed(windows.data(), windows.size() * sizeof(int64_t), scaling);
  }
  f.rope_scaling_hash = Hex(scaling);
  // The tensors that make keys, whichever of them the family has.
  static constexpr const char* kKeyTensors[] = {
      "attn_k.weight",      "attn_k.bias",          "attn_qkv.weight",      "attn_qkv.bias",
      "attn_k_norm.weight", "attn_kv_a_mqa.weight", "attn_kv_a_norm.weight"};
  XXH64_hash_t keys = 0;
  for (int l = 0; l < config.layers; ++l) {
    for (const char* name : kKeyTensors) {
      const ModelTensor* tensor = source.Find(fmt::format("blk.{}.{}", l, name));
      if (tensor != nullptr) keys = HashTensor(*tensor, config, keys);
    }
  }
  f.key_weights_hash = Hex(keys);
  return f;
}

}  // namespace blockgtq
