// Random heads, sequences and their records for tests of the kernels over codes.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/codec/plan.h"
#include "src/codec/record.h"
#include "src/codec/reference_codec.h"
#include "src/core/haar.h"
#include "src/core/rope.h"

namespace blockgtq::cpu {

struct HeadSpec {
  int head_dim = 64;
  std::vector<std::pair<int, int>> groups;  // (code width, dims); dims need not fill whole units
  int value_width = 3;
  std::vector<int> mean_units;
  NormType norm_type = NormType::kLog8;
  float mean_size = 3.0f;  // standard deviation of the mean's entries
};

inline GroupPlan MakeGroup(int code_width, int first_unit, int dims) {
  GroupPlan group;
  group.code_width = code_width;
  group.width = code_width == 6 || code_width == 7 ? 8 : code_width;
  group.first_unit = first_unit;
  group.dims = dims;
  group.units = (dims + kUnitDims - 1) / kUnitDims;
  group.norm_reference = std::sqrt(static_cast<float>(dims)) * 1.3f;
  return group;
}

// A plan with Haar transforms, equalised by random factors, and a mean of a few units' size.
inline HeadPlan MakeHeadPlan(const HeadSpec& spec, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const int dim = spec.head_dim;
  HeadPlan plan;
  plan.head_dim = dim;
  plan.norm_type = spec.norm_type;
  int unit = 0;
  for (const auto& [width, dims] : spec.groups) {
    plan.groups.push_back(MakeGroup(width, unit, dims));
    unit += plan.groups.back().units;
  }
  plan.value = MakeGroup(spec.value_width, 0, dim);
  const std::vector<float> rotation = HaarRotation(dim, seed + 1);
  std::vector<float> scale(dim);
  for (float& s : scale) s = std::exp2(0.5f * normal(random));
  plan.key_transform.assign(static_cast<size_t>(16) * unit * dim, 0.0f);
  plan.query_transform = plan.key_transform;
  int source = 0;
  for (const GroupPlan& group : plan.groups) {
    for (int r = 0; r < group.dims; ++r, ++source) {
      for (int d = 0; d < dim; ++d) {
        const size_t at = static_cast<size_t>(kUnitDims * group.first_unit + r) * dim + d;
        plan.key_transform[at] = rotation[source * dim + d] * scale[d];
        plan.query_transform[at] = rotation[source * dim + d] / scale[d];
      }
    }
  }
  const std::vector<float> value_rotation = HaarRotation(dim, seed + 2);
  plan.value_transform.assign(static_cast<size_t>(16) * plan.value.units * dim, 0.0f);
  std::copy(value_rotation.begin(), value_rotation.end(), plan.value_transform.begin());
  plan.mean_units = spec.mean_units;
  if (!spec.mean_units.empty()) {
    plan.key_mean.assign(dim, 0.0f);
    for (int u : spec.mean_units) {
      for (int d = 16 * u; d < std::min(16 * u + 16, dim); ++d)
        plan.key_mean[d] = spec.mean_size * normal(random);
    }
  }
  return plan;
}

// The same head as one of latents: its last dims are its value.
inline HeadPlan WithLatents(HeadPlan plan, int latent_dims) {
  plan.latent_dims = latent_dims;
  plan.value = {};
  plan.value_transform.clear();
  return plan;
}

inline RopeConfig MakeRope(int head_dim, float attention_factor = 1.0f) {
  RopeConfig config;
  config.head_dim = head_dim;
  config.rotary_dims = head_dim;
  config.attention_factor = attention_factor;
  return config;
}

// Keys and values of `tokens` tokens from position 0 and their records, encoded by the reference.
struct Sequence {
  std::vector<float> keys, values;  // [tokens, head_dim]
  std::vector<std::vector<std::byte>> storage;
  std::vector<const std::byte*> records;
};

inline std::vector<float> Normals(size_t n, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

inline Sequence MakeSequence(const HeadPlan& plan, const RopeTable& rope, int64_t tokens, uint64_t seed) {
  const RecordLayout layout = RecordLayout::For(plan);
  const int dim = plan.head_dim;
  Sequence s;
  s.keys = Normals(tokens * dim, 1.0f, seed);
  s.values = Normals(tokens * dim, 1.0f, seed + 1);
  std::vector<float> mean(dim);
  for (int64_t t = 0; t < tokens; ++t) {
    // Token sizes differ, so norms matter; the mean comes on top.
    const float size = std::exp2(0.5f * std::sin(0.7f * static_cast<float>(t)));
    for (int d = 0; d < dim; ++d) {
      s.keys[t * dim + d] *= size;
      s.values[t * dim + d] *= size;
    }
    if (!plan.key_mean.empty()) {
      rope.Rotate(plan.key_mean.data(), t, mean.data());
      for (int d = 0; d < dim; ++d) s.keys[t * dim + d] += mean[d];
    }
  }
  for (int64_t t = 0; t < tokens; t += kPageTokens) {
    const size_t count = std::min<int64_t>(kPageTokens, tokens - t);
    auto& record = s.storage.emplace_back(layout.bytes);
    const std::span<const float> keys(s.keys.data() + t * dim, count * dim);
    const std::span<const float> values(s.values.data() + t * dim, count * dim);
    if (!reference::EncodeKeys(plan, layout, rope, keys, t, record).ok()) std::abort();
    if (plan.latent_dims == 0 && !reference::EncodeValues(plan, layout, values, t, record).ok()) std::abort();
  }
  for (const auto& record : s.storage) s.records.push_back(record.data());
  return s;
}

inline double RelativeL2(std::span<const float> a, std::span<const float> b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(error / std::max(size, 1e-30));
}

}  // namespace blockgtq::cpu
