// Comparison of two encodings of the same tokens by width: codes, norms, squared error, angle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "src/codec/plan.h"
#include "src/codec/record.h"

namespace blockgtq::cuda {

/// How far two encodings of the same tokens are apart, of groups of one width.
struct Comparison {
  int64_t codes = 0, same_codes = 0;
  int64_t norm_steps = 0;  // the largest distance where all codes agree: another scale means another norm
  double error = 0, reference_error = 0;  // sums of squares over squared norms
  double sine = 0, reference_sine = 0;    // of the angles between coordinates and codes, squares
};

/// Adds one group's token: y are its exact coordinates.
inline void Compare(const GroupPlan& group, const int* units, int norms, UnitPlace (*place)(int, int),
                    int slot, const double* y, const std::byte* record, const std::byte* expected,
                    Comparison& c) {
  double size = 0;
  for (int i = 0; i < group.dims; ++i) size += y[i] * y[i];
  const auto add = [&](const std::byte* r, double& error, double& sine) {
    const int byte = std::to_integer<int>(r[norms + NormSlot(slot)]);
    const double scale =
        group.norm_reference * std::exp2((byte - 128) / 32.0) / std::sqrt(double(group.dims));
    double sum = 0, energy = 0, product = 0;
    for (int i = 0; i < group.dims; ++i) {
      const int code = GetCode(r + units[i / kUnitDims], group.width, place(slot, i % kUnitDims));
      const double value =
          (CodebookInt(group.width, code) + double{CodebookHalf(group.width)}) / CodebookScale(group.width);
      sum += (scale * value - y[i]) * (scale * value - y[i]);
      energy += value * value;
      product += value * y[i];
    }
    error += sum / size;
    sine += 1 - product * product / (energy * size);
  };
  add(record, c.error, c.sine);
  add(expected, c.reference_error, c.reference_sine);
  int same = 0;
  for (int i = 0; i < kUnitDims * group.units; ++i) {
    const UnitPlace at = place(slot, i % kUnitDims);
    same += GetCode(record + units[i / kUnitDims], group.width, at) ==
            GetCode(expected + units[i / kUnitDims], group.width, at);
  }
  c.codes += kUnitDims * group.units;
  c.same_codes += same;
  if (same < kUnitDims * group.units) return;
  c.norm_steps =
      std::max<int64_t>(c.norm_steps, std::abs(std::to_integer<int>(record[norms + NormSlot(slot)]) -
                                               std::to_integer<int>(expected[norms + NormSlot(slot)])));
}

inline std::vector<double> Product(const std::vector<float>& matrix, const std::vector<double>& x) {
  std::vector<double> y(matrix.size() / x.size(), 0.0);
  for (size_t i = 0; i < matrix.size(); ++i) y[i / x.size()] += matrix[i] * x[i % x.size()];
  return y;
}

using ByWidth = std::map<std::pair<bool, int>, Comparison>;  // (is value, width)

}  // namespace blockgtq::cuda
