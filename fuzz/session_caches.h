// The caches that session_fuzzer.cc loads into, shared with the maker of its seeds. An input's first byte,
// modulo kSessionCaches, chooses the cache; a session follows.
#pragma once

#include <memory>
#include <vector>

#include "src/cache/kv_cache.h"

namespace blockgtq {

inline constexpr int kSessionCaches = 4;

/// One layer, one KV head of 16 dims, 2-bit keys and values.
inline Plan SmallSessionPlan() {
  Plan plan;
  plan.recipe = "uniform";
  plan.model.layers = plan.model.heads = plan.model.kv_heads = 1;
  plan.model.head_dim = 16;
  HeadPlan head;
  head.head_dim = 16;
  head.groups = {{2, 2, 0, 1, 16, 1.0f}};
  head.value = {2, 2, 0, 1, 16, 1.0f};
  head.key_transform = head.query_transform = head.value_transform = std::vector<float>(256, 0.5f);
  plan.heads = {head};
  return plan;
}

/// Cache 0: packed with sinks and a window, 1: packed, every token coded at once, 2: fp16, 3: fp32.
/// plan must outlive the cache.
inline std::unique_ptr<KvCache> MakeSessionCache(int index, const Plan& plan) {
  static constexpr CacheKind kKinds[kSessionCaches] = {CacheKind::kPacked, CacheKind::kPacked,
                                                       CacheKind::kHalf, CacheKind::kFloat};
  const bool exact_tokens = index == 0;
  return KvCache::Create({1, 1, 16}, {kKinds[index], exact_tokens ? 4 : 0, exact_tokens ? 64 : 0, 512, ""},
                         &plan)
      .value();
}

}  // namespace blockgtq
