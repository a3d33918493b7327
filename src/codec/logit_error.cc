// See logit_error.h.
#include "src/codec/logit_error.h"

#include <cmath>

#include "src/core/lloyd_max.h"

namespace blockgtq {
namespace {

/// Energy of block i of k - mu, with the mu of the plan.
double CodedEnergy(const HeadPlan& plan, const HeadStatistics& s, size_t i) {
  double energy = s.centred_key_energy[i];
  for (const size_t d : {2 * i, 2 * i + 1}) {
    const double left = s.key_mean[d] - (plan.key_mean.empty() ? 0.0 : plan.key_mean[d]);
    energy += left * left;
  }
  return energy;
}

}  // namespace

double PredictedLogitError(const HeadPlan& plan, const HeadStatistics& statistics) {
  const size_t dim = static_cast<size_t>(plan.head_dim), blocks = dim / 2;
  double total = 0;
  for (const GroupPlan& group : plan.groups) {
    double queries = 0, keys = 0;
    int members = 0;
    for (size_t i = 0; i < blocks; ++i) {
      double scale = 0;  // c_i^2: the rows are an orthogonal matrix times diag(c)
      for (int r = 0; r < group.dims; ++r) {
        const size_t row = static_cast<size_t>(kUnitDims * group.first_unit + r) * dim;
        const double t = plan.key_transform[row + 2 * i];
        scale += t * t;
      }
      if (scale <= 0) continue;
      ++members;
      queries += statistics.query_energy[i] / scale;
      keys += scale * CodedEnergy(plan, statistics, i);
    }
    const double error = 2 - 2 * std::sqrt(1 - Distortion(group.code_width));
    if (members > 0) total += error / (2.0 * members) * queries * keys;
  }
  return total;
}

}  // namespace blockgtq
