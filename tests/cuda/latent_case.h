// Plans, keys and constants of a layer of latents for the tests of tests/cuda.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/codec/reference_codec.h"
#include "src/core/half.h"
#include "src/cuda/elementwise_rope.h"
#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_encode.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {

/// A rope key and a latent, each with groups (width, dims) of its own, as recipes plan them; or groups over
/// both.
struct LatentSpec {
  int rope_dims = 16, latent_dims = 32;
  std::vector<std::pair<int, int>> rope, latent;      // an empty `rope`: `latent` is over all dims
  std::vector<int> rope_mean = {}, latent_mean = {};  // mean units of each
  float mean_size = 1.0f;
};

inline HeadPlan MakeLatentPlan(const LatentSpec& spec, uint64_t seed) {
  const int dim = spec.rope_dims + spec.latent_dims;
  if (spec.rope.empty()) {
    return cpu::WithLatents(
        cpu::MakeHeadPlan({dim, spec.latent, 3, spec.rope_mean, NormType::kLog8, spec.mean_size}, seed),
        spec.latent_dims);
  }
  HeadPlan whole;
  whole.head_dim = dim;
  whole.latent_dims = spec.latent_dims;
  whole.rounding = Rounding::kSearched;
  const HeadPlan parts[2] = {
      cpu::MakeHeadPlan({spec.rope_dims, spec.rope, 3, spec.rope_mean, NormType::kLog8, spec.mean_size},
                        seed),
      cpu::MakeHeadPlan({spec.latent_dims, spec.latent, 3, spec.latent_mean, NormType::kLog8, spec.mean_size},
                        seed + 7)};
  for (int width : {8, 5, 4, 3, 2, 1}) {
    for (int part = 0; part < 2; ++part) {
      const int first_dim = part == 0 ? 0 : spec.rope_dims, dims = parts[part].head_dim;
      for (GroupPlan group : parts[part].groups) {
        if (group.width != width) continue;
        for (int r = 0; r < kUnitDims * group.units; ++r) {
          const size_t at = static_cast<size_t>(kUnitDims * group.first_unit + r) * dims;
          for (auto [from, to] : {std::pair{&parts[part].key_transform, &whole.key_transform},
                                  std::pair{&parts[part].query_transform, &whole.query_transform}}) {
            to->resize(to->size() + static_cast<size_t>(dim), 0.0f);
            std::copy_n(from->begin() + static_cast<std::ptrdiff_t>(at), dims, to->end() - dim + first_dim);
          }
        }
        group.first_unit = whole.key_units();
        whole.groups.push_back(group);
      }
    }
  }
  if (!spec.rope_mean.empty() || !spec.latent_mean.empty()) {
    whole.key_mean.assign(static_cast<size_t>(dim), 0.0f);
    for (int part = 0; part < 2; ++part) {
      std::copy(parts[part].key_mean.begin(), parts[part].key_mean.end(),
                whole.key_mean.begin() + (part == 0 ? 0 : spec.rope_dims));
      for (int unit : parts[part].mean_units)
        whole.mean_units.push_back(unit + (part == 0 ? 0 : spec.rope_dims / kUnitDims));
    }
  }
  return whole;
}

inline RopeConfig LatentRope(const LatentSpec& spec, float attention_factor = 1.0f) {
  RopeConfig rope;
  rope.head_dim = spec.rope_dims + spec.latent_dims;
  rope.rotary_dims = spec.rope_dims;
  rope.attention_factor = attention_factor;
  return rope;
}

/// fp16 keys at positions [first, first + count), of different sizes, with the plan's mean.
inline std::vector<uint16_t> LatentKeys(const HeadPlan& plan, const RopeTable& rope, int64_t first,
                                        int64_t count, uint64_t seed) {
  const int dim = plan.head_dim;
  const std::vector<float> normal = cpu::Normals(static_cast<size_t>(count * dim), 1.0f, seed);
  std::vector<float> mean(static_cast<size_t>(dim), 0.0f);
  std::vector<uint16_t> keys;
  for (int64_t t = 0; t < count; ++t) {
    const float size = std::exp2(0.5f * std::sin(0.7f * static_cast<float>(t)));
    if (!plan.key_mean.empty()) rope.Rotate(plan.key_mean.data(), first + t, mean.data());
    for (int d = 0; d < dim; ++d) keys.push_back(FloatToHalf(normal[t * dim + d] * size + mean[d]));
  }
  return keys;
}

inline std::vector<float> Widened(std::span<const uint16_t> halves) {
  std::vector<float> out;
  for (uint16_t h : halves) out.push_back(HalfToFloat(h));
  return out;
}

/// A layer's constants on the device.
struct DeviceLatents {
  DeviceLatents(const HeadPlan& plan, const RopeConfig& config)
      : rope(config), table(Require(BuildLatentTable(plan, "a test's plan"), "latent table")) {
    units = DeviceArray<LatentUnit>(table.units);
    groups = DeviceArray<LatentGroup>(table.groups);
    key_fragments = DeviceArray<uint16_t>(table.key_fragments);
    key_low_fragments = DeviceArray<uint16_t>(table.key_low_fragments);
    mean = DeviceArray<float>(table.key_mean);
    mean_units = DeviceArray<int32_t>(table.mean_units);
    query_fragments = DeviceArray<uint16_t>(table.query_fragments);
    unrotate_fragments = DeviceArray<uint16_t>(table.unrotate_fragments);
    steps = DeviceArray<uint64_t>(RopeSteps(config));
    for (const LatentGroup& group : table.groups) group_units = std::max(group_units, group.units);
  }
  void Bind(LatentParams& p) const {
    p.head_dim = table.head_dim;
    p.latent_dims = table.latent_dims;
    p.units = units.data();
    p.unit_count = static_cast<int32_t>(table.units.size());
    p.record_bytes = table.record_bytes;
    p.norm_begin = table.norm_begin;
    p.norm_count = static_cast<int32_t>(64 * table.groups.size());
    p.columns = table.columns;
    p.key_columns = table.key_columns;
    p.code_scale = table.code_scale;
    p.query_fragments = query_fragments.data();
    p.unrotate_fragments = unrotate_fragments.data();
    p.unrotate_scale = table.unrotate_scale;
    p.key_mean = mean.data();
    p.has_latent_mean = table.has_latent_mean;
    p.mean_units = mean_units.data();
    p.mean_unit_count = static_cast<int32_t>(table.mean_units.size());
    p.mean_query = table.mean_query;
    p.mean_key = table.mean_key;
    p.steps = steps.data();
    p.rotary_dims = rope.rotary_dims;
    p.attention_factor = rope.attention_factor;
  }
  LatentCodec Codec(int64_t record_offset, int64_t window_offset) const {
    LatentCodec codec;
    codec.record_offset = record_offset;
    codec.window_offset = window_offset;
    codec.groups = groups.data();
    codec.fragments = key_fragments.data();
    codec.low_fragments = key_low_fragments.data();
    codec.mean = table.has_mean ? mean.data() : nullptr;
    codec.group_count = static_cast<int32_t>(table.groups.size());
    codec.unit_count = static_cast<int32_t>(table.units.size());
    codec.searched = table.searched ? 1 : 0;
    return codec;
  }

  RopeConfig rope;
  LatentTable table;
  int group_units = 0;
  DeviceArray<LatentUnit> units;
  DeviceArray<LatentGroup> groups;
  DeviceArray<float> mean;
  DeviceArray<int32_t> mean_units;
  DeviceArray<uint16_t> key_fragments, key_low_fragments, query_fragments, unrotate_fragments;
  DeviceArray<uint64_t> steps;
};

/// Specs of every mix of widths at a model's dims.
inline std::vector<LatentSpec> LatentSpecs(int rope_dims, int latent_dims) {
  const int r = rope_dims, c = latent_dims, q = latent_dims / 4;
  std::vector<LatentSpec> specs = {{r, c, {{4, r}}, {{3, 2 * q}, {2, 2 * q}}, {0}, {}},
                                   {r, c, {{3, r}}, {{8, q}, {5, q}, {4, q}, {1, q}}, {}, {0, c / 16 - 1}},
                                   {r, c, {{5, r}}, {{3, c}}, {0}, {1}},
                                   {r, c, {}, {{4, r + q}, {3, c - q}}, {}, {}}};
  if (r >= 32) specs.push_back({r, c, {{8, r / 2}, {2, r / 2}}, {{3, c - 40}, {2, 40}}, {0, 1}, {}, 8.0f});
  return specs;
}

}  // namespace blockgtq::cuda
