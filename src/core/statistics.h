// What calibration measures of one KV head: block energies of queries and keys, the key's mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace blockgtq {

/// Finished statistics of one KV head; L = head_dim / 2 blocks in frequency order. Energies are means over
/// tokens (and over the query heads of the group) of |x(i)|^2.
struct HeadStatistics {
  std::vector<double> query_energy;        // Q_i  [L]
  std::vector<double> key_energy;          // K_i  [L]
  std::vector<double> centred_key_energy;  // Kc_i [L], energy of k - mean, pre-RoPE (rotation keeps it)
  std::vector<double> key_mean;            // mu   [head_dim], pre-RoPE, block order
  int64_t tokens = 0;
};

/// Accumulates pre-RoPE vectors in block order, in double precision.
class StatisticsAccumulator {
 public:
  explicit StatisticsAccumulator(int head_dim);
  void AddQuery(const float* query);  // [head_dim]; one query head of the group
  void AddKey(const float* key);      // [head_dim]
  /// Counts what was seen so far `share` times as much as what comes, 0 < share <= 1: running statistics
  /// forget in steps.
  void Discount(double share);
  /// As if statistics.tokens keys, and so many queries of each of `group` heads, had been added.
  void Restore(const HeadStatistics& statistics, int group);
  HeadStatistics Finish() const;

 private:
  int head_dim_;
  double queries_ = 0, keys_ = 0;     // counts, discounted
  std::vector<double> query_energy_;  // sums of |q(i)|^2
  std::vector<double> centred_sum_;   // sums of |k(i) - mean(i)|^2 (Welford)
  std::vector<double> key_mean_;      // running mean
};

}  // namespace blockgtq
