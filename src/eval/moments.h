// Mean and standard deviation of a few numbers, for tables of studies.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace blockgtq {

struct Moments {
  double mean = 0;
  double sd = 0;  // of a sample (n - 1); 0 of fewer than two
  size_t count = 0;
};

inline Moments MomentsOf(std::span<const double> values) {
  Moments m;
  m.count = values.size();
  if (values.empty()) return m;
  for (const double v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  if (values.size() < 2) return m;
  double sum = 0;
  for (const double v : values) sum += (v - m.mean) * (v - m.mean);
  m.sd = std::sqrt(sum / static_cast<double>(values.size() - 1));
  return m;
}

}  // namespace blockgtq
