// Comparison of two encodings of the same tokens of a head.
#pragma once

#include <vector>

#include "tests/cuda/code_compare.h"
#include "tests/cuda/encode_case.h"

namespace blockgtq::cuda {

/// Compares a head's record with the reference's encoding of the same tokens, by width.
inline void CompareRecord(const EncodeModel& model, size_t h, int64_t position, int begin, int end,
                          const HeadTokens& tokens, const std::byte* record, const std::byte* expected,
                          ByWidth& by) {
  const HeadPlan& plan = model.plans[h];
  const RecordLayout& layout = model.layouts[h];
  const int dim = model.dim();
  std::vector<float> mean(dim);
  for (int slot = begin; slot < end; ++slot) {
    if (!plan.key_mean.empty()) model.rope(h).Rotate(plan.key_mean.data(), position + slot, mean.data());
    std::vector<double> key(dim), value(dim);
    for (int d = 0; d < dim; ++d) {
      key[d] = double{HalfToFloat(tokens.keys[(slot - begin) * dim + d])} - mean[d];
      value[d] = HalfToFloat(tokens.values[(slot - begin) * dim + d]);
    }
    const std::vector<double> y = Product(plan.key_transform, key), w = Product(plan.value_transform, value);
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      Compare(group, &layout.key_unit[group.first_unit], layout.key_norm[g], KeyPlace, slot,
              &y[kUnitDims * group.first_unit], record, expected, by[{false, group.width}]);
    }
    Compare(plan.value, layout.value_unit.data(), layout.value_norm, ValuePlace, slot, w.data(), record,
            expected, by[{true, plan.value.width}]);
  }
}

}  // namespace blockgtq::cuda
