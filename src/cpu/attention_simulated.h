// The codes of a simulated cache: fp32 tiles of what they would read as, beside the tokens as they were.
#pragma once

#include <cstdint>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/cpu/attention_exact.h"

namespace blockgtq::cpu {

/// One KV head of one layer of a sequence's simulated codes.
class SimulatedCodes {
 public:
  SimulatedCodes(KvCache& cache, SequenceId sequence, int layer, int kv_head)
      : cache_(cache), sequence_(sequence), layer_(layer), kv_head_(kv_head) {}

  static ExactLayout Layout(const KvCache& cache) {
    const CacheGeometry& geometry = cache.geometry();
    return {ExactType::kFloat, geometry.head_dim, kPageTokens, geometry.latent_dims > 0};
  }

  struct Scratch {
    std::vector<float> before, keys, values;
  };

  /// First step of encoding: keeps tokens [begin, end) of one page as they are. keys, values: rows of
  /// [head_dim], `stride` floats apart; latents have no values.
  void Place(int64_t begin, int64_t end, const float* keys, const float* values, int64_t stride);
  /// Second step, once every token up to `end` is in its place: tokens [begin, end) of one page become what
  /// their codes read as in a sequence of `coded` coded tokens.
  void Encode(int64_t begin, int64_t end, int64_t coded, Scratch& scratch);
  /// Whether codes are stored otherwise once there are `coded` of them, where there were `before`.
  bool Changes(int64_t before, int64_t coded) const {
    return cache_.options().simulated->head(layer_, kv_head_).ChangesAfter(before) <= coded;
  }

 private:
  // The tile of page `page` that holds the tokens as they were.
  std::byte* Original(int64_t page);

  KvCache& cache_;
  SequenceId sequence_;
  int layer_, kv_head_;
};

}  // namespace blockgtq::cpu
