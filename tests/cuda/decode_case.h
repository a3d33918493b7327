// Cases of the tests of decode attention: what a batch is, and the configuration that it runs in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "src/cuda/decode_attention.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

using cpu::HeadSpec;
using Groups = std::vector<std::pair<int, int>>;  // (code width, dims)

struct Case {
  std::string name;
  int head_dim = 128, query_heads = 4;
  std::vector<HeadSpec> heads = {};
  std::vector<int64_t> coded = {};  // a sequence
  int sinks = 0;
  std::vector<int64_t> recent = {};  // fp16 tokens after the coded ones; empty: no exact part
  float query_size = 2.0f;
  int processors = 0;            // 0: the device's
  int64_t expected_tokens = -1;  // -1: the longest
  // Rotation: records of any position, as if their first token had this one (a multiple of 64).
  RopeConfig rope = {};  // head_dim 0: MakeRope's
  int64_t first_position = 0;
  // A configuration by force, where warps > 0.
  int warps = 0;
  bool split_tiles = false;
  int stages = 3, cluster_blocks = 1, workers = 1;
  int shared_bytes = 0;  // that a block may have; 0: the device's
  int64_t window = 0;    // tokens that the newest one sees, itself included; 0: all
  bool fused =
      false;  // the kernel rotates and stores the newest token itself; every sequence has a recent one
  int head_parts = 0;  // of the query heads, that it must run in; 0: any
};

inline RopeConfig RopeOf(const Case& c) { return c.rope.head_dim > 0 ? c.rope : cpu::MakeRope(c.head_dim); }

inline std::vector<HeadPlan> PlansOf(const Case& c) {
  std::vector<HeadPlan> plans;
  for (size_t h = 0; h < c.heads.size(); ++h) plans.push_back(cpu::MakeHeadPlan(c.heads[h], 100 + 10 * h));
  return plans;
}

inline Result<DecodeConfig> Configure(const Case& c, const HeadTraits& traits, const DeviceLimits& device) {
  DecodeShape shape;
  shape.batch = static_cast<int>(c.coded.size());
  shape.kv_heads = static_cast<int>(c.heads.size());
  shape.head_dim = c.head_dim;
  shape.query_heads = c.query_heads;
  shape.has_exact = !c.recent.empty();
  int64_t longest = 1;
  for (size_t b = 0; b < c.coded.size(); ++b) {
    const int64_t length = c.coded[b] + (shape.has_exact ? c.recent[b] : 0);
    longest = std::max(longest, length);
    if (!shape.has_exact) continue;
    shape.window_tiles =
        std::max(shape.window_tiles, static_cast<int>((length + 63) / 64 - c.coded[b] / 64 + 1));
  }
  shape.expected_tokens = c.expected_tokens >= 0 ? c.expected_tokens : longest;
  DeviceLimits limits = device;
  if (c.processors > 0) {
    limits = {};
    limits.processors = c.processors;
  }
  limits.shared_bytes = c.shared_bytes > 0 ? c.shared_bytes : device.shared_bytes;
  if (c.warps == 0) return ConfigureDecode(shape, traits, limits);
  return ConfigureDecodeAs(shape, traits, limits, {c.warps, false, false, c.split_tiles, false}, c.stages,
                           c.cluster_blocks, c.workers);
}

// What a Hopper GPU can do and this one cannot: clusters, and the largest configurations.
inline bool Runs(const Case& c, const DeviceLimits& limits) {
  constexpr int kHopperSharedBytes = 227 << 10;
  if (limits.clusters[1] > 0 && limits.shared_bytes >= kHopperSharedBytes) return true;
  const std::vector<HeadPlan> plans = PlansOf(c);
  const bool runs = Configure(c, Require(TraitsOf(plans, RopeOf(c)), "traits"), limits).ok();
  if (!runs) std::printf("%-46s not on this GPU\n", c.name.c_str());
  return runs;
}

inline HeadSpec Head(int head_dim, Groups groups, int value_width = 3, std::vector<int> mean = {}) {
  HeadSpec spec;
  spec.head_dim = head_dim;
  spec.groups = std::move(groups);
  spec.value_width = value_width;
  spec.mean_units = std::move(mean);
  return spec;
}
inline const Groups k432 = {{4, 32}, {3, 64}, {2, 32}};
inline const Groups k8432 = {{8, 16}, {4, 48}, {3, 32}, {2, 32}};
inline const Groups k5432 = {{5, 16}, {4, 16}, {3, 48}, {2, 48}};
inline const Groups k256 = {{4, 64}, {3, 128}, {2, 64}};
inline const std::vector<int> kWholeMean = {0, 1, 2, 3, 4, 5, 6, 7};
inline const std::vector<int> kWholeMean256 = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

}  // namespace blockgtq::cuda
