// Block energies and key means, accumulated in double.
#include "src/core/statistics.h"

#include <algorithm>
#include <cmath>

namespace blockgtq {
namespace {

void AddEnergy(const float* x, std::vector<double>& energy) {
  for (size_t i = 0; i < energy.size(); ++i) {
    const double a = x[2 * i], b = x[2 * i + 1];
    energy[i] += a * a + b * b;
  }
}

std::vector<double> Divided(std::vector<double> sums, double count) {
  if (count > 0) {
    for (double& s : sums) s /= count;
  }
  return sums;
}

}  // namespace

StatisticsAccumulator::StatisticsAccumulator(int head_dim)
    : head_dim_(head_dim),
      query_energy_(head_dim / 2, 0.0),
      centred_sum_(head_dim / 2, 0.0),
      key_mean_(head_dim, 0.0) {}

void StatisticsAccumulator::AddQuery(const float* query) {
  ++queries_;
  AddEnergy(query, query_energy_);
}

void StatisticsAccumulator::AddKey(const float* key) {
  // Welford: K - |mean|^2 would lose Kc where the mean holds nearly all of the energy (Qwen2's key bias).
  ++keys_;
  for (int d = 0; d < head_dim_; ++d) {
    const double before = key[d] - key_mean_[d];
    key_mean_[d] += before / keys_;
    centred_sum_[d / 2] += before * (key[d] - key_mean_[d]);
  }
}

void StatisticsAccumulator::Discount(double share) {
  queries_ *= share;
  keys_ *= share;
  for (double& s : query_energy_) s *= share;
  for (double& s : centred_sum_) s *= share;
}

void StatisticsAccumulator::Restore(const HeadStatistics& statistics, int group) {
  keys_ = static_cast<double>(statistics.tokens);
  queries_ = keys_ * group;
  query_energy_ = statistics.query_energy;
  centred_sum_ = statistics.centred_key_energy;
  key_mean_ = statistics.key_mean;
  for (double& s : query_energy_) s *= queries_;
  for (double& s : centred_sum_) s *= keys_;
}

HeadStatistics StatisticsAccumulator::Finish() const {
  HeadStatistics s;
  s.query_energy = Divided(query_energy_, queries_);
  s.centred_key_energy = Divided(centred_sum_, keys_);
  s.key_mean = key_mean_;
  s.key_energy.resize(head_dim_ / 2);
  for (int i = 0; i < head_dim_ / 2; ++i) {
    s.centred_key_energy[i] = std::max(s.centred_key_energy[i], 0.0);
    const double a = key_mean_[2 * i], b = key_mean_[2 * i + 1];
    s.key_energy[i] = s.centred_key_energy[i] + a * a + b * b;
  }
  s.tokens = std::llround(keys_);
  return s;
}

}  // namespace blockgtq
