// A small valid plan that uses every field: two layers of two KV heads, D = 32, aligned and paper-like heads.
#pragma once

#include "src/codec/plan.h"
#include "src/core/haar.h"

namespace blockgtq {

// [rows, 32]: the rows of a rotation at the groups' true dims, zero at padding, columns scaled.
inline std::vector<float> SampleMatrix(const std::vector<GroupPlan>& groups, uint64_t seed, bool inverse,
                                       bool equalise) {
  const int dim = 32;
  const std::vector<float> rotation = HaarRotation(dim, seed);
  int rows = 0, source = 0;
  for (const GroupPlan& group : groups) rows += kUnitDims * group.units;
  std::vector<float> out(static_cast<size_t>(rows) * dim, 0.0f);
  for (const GroupPlan& group : groups) {
    for (int r = 0; r < group.dims; ++r, ++source) {
      for (int d = 0; d < dim; ++d) {
        const float scale = equalise ? 0.5f + 0.125f * static_cast<float>(d / 2 % 8) : 1.0f;
        out[static_cast<size_t>(kUnitDims * group.first_unit + r) * dim + d] =
            rotation[static_cast<size_t>(source) * dim + d] * (inverse ? 1.0f / scale : scale);
      }
    }
  }
  return out;
}

inline HeadPlan SampleHead(int index) {
  HeadPlan head;
  head.head_dim = 32;
  const float reference = 1.0f / 3.0f + static_cast<float>(index);
  if (index % 2 == 0) {
    head.norm_type = NormType::kLog8;
    head.groups = {{4, 4, 0, 1, 16, reference}, {2, 2, 1, 1, 16, 0.1f}};
    head.value = {3, 3, 0, 2, 32, 7.7f};
    head.mean_units = {1};
    head.key_mean.assign(32, 0.0f);
    for (int d = 16; d < 32; ++d) head.key_mean[d] = 0.1f * static_cast<float>(d - 20);
  } else {
    head.norm_type = NormType::kHalf;
    head.groups = {{8, 6, 0, 1, 10, 1.0f}, {3, 3, 1, 2, 22, 1.0f}};
    head.value = {3, 3, 0, 2, 32, 1.0f};
    for (int i = 0; i < 16; ++i) head.score.push_back(1.0f / static_cast<float>(1 + i));
  }
  const uint64_t seed = 100 + static_cast<uint64_t>(index);
  head.key_transform = SampleMatrix(head.groups, seed, false, index % 2 == 0);
  head.query_transform = SampleMatrix(head.groups, seed, true, index % 2 == 0);
  head.value_transform = SampleMatrix({head.value}, seed + 50, false, false);
  return head;
}

inline Plan SamplePlan() {
  Plan plan;
  plan.recipe = "aligned";
  plan.k_bits = 3.1;
  plan.v_bits = 3;
  plan.seed = 0xfedcba9876543210;
  plan.model = {"llama", 2, 4, 2, 32, 10000.5, 32, "neox", "00ff00ff00ff00ff", "0123456789abcdef"};
  plan.calibration = {"89abcdef01234567", 2048, 1.25};
  for (int h = 0; h < 4; ++h) plan.heads.push_back(SampleHead(h));
  return plan;
}

}  // namespace blockgtq
