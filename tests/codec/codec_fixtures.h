// Heads, calibrations and samples that several codec tests share.
#pragma once

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "src/codec/head_builder.h"
#include "src/codec/plan.h"
#include "src/codec/recipe.h"
#include "src/core/statistics.h"

namespace blockgtq::test {

inline std::vector<float> Normals(int n, uint64_t seed, double scale = 1.0) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = static_cast<float>(normal(rng));
  return v;
}

/// A head whose blocks are dealt to groups in order: (code width, blocks) each.
inline HeadPlan MakeHead(int head_dim, const std::vector<std::pair<int, int>>& groups, int value_width,
                         NormType norm_type, uint64_t seed = 1, std::vector<double> scale = {}) {
  HeadSpec spec;
  spec.head_dim = head_dim;
  spec.scale = std::move(scale);
  spec.value_code_width = value_width;
  spec.norm_type = norm_type;
  int block = 0;
  for (const auto& [width, blocks] : groups) {
    BlockGroup group{std::vector<int>(blocks), width};
    std::iota(group.blocks.begin(), group.blocks.end(), block);
    block += blocks;
    spec.groups.push_back(group);
  }
  HeadPlan head = BuildHead(spec, seed, 0, 0);
  for (GroupPlan& group : head.groups) group.norm_reference = std::sqrt(static_cast<float>(group.dims));
  head.value.norm_reference = std::sqrt(static_cast<float>(head_dim));
  return head;
}

inline void SetMean(HeadPlan& head, const std::vector<int>& units, double size, uint64_t seed) {
  head.mean_units = units;
  head.key_mean.assign(head.head_dim, 0.0f);
  const std::vector<float> mean = Normals(head.head_dim, seed, size);
  for (int unit : units) {
    for (int d = 16 * unit; d < std::min(16 * unit + 16, head.head_dim); ++d) head.key_mean[d] = mean[d];
  }
}

/// Statistics and vectors of a head whose block energies fall off geometrically (in a scrambled order), with
/// a key mean of `bias` times the deviation on the first eight blocks.
struct SyntheticHead {
  int head_dim;
  std::vector<double> query_size, key_size;  // standard deviation a channel of each block
  std::vector<double> mean;

  SyntheticHead(int dim, double octaves, double bias, uint64_t seed) : head_dim(dim), mean(dim, 0.0) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> normal;
    for (int i = 0; i < dim / 2; ++i) {
      query_size.push_back(std::exp2(octaves * normal(rng)));
      key_size.push_back(std::exp2(octaves * normal(rng)));
    }
    for (int d = 0; d < std::min(16, dim); ++d) mean[d] = bias * key_size[d / 2];
  }
  std::vector<float> Queries(int tokens, uint64_t seed) const {
    return Draw(tokens, seed, query_size, false);
  }
  std::vector<float> Keys(int tokens, uint64_t seed) const { return Draw(tokens, seed, key_size, true); }

  HeadCalibration Calibrate(int tokens, uint64_t seed) const {
    HeadCalibration calibration;
    StatisticsAccumulator accumulator(head_dim);
    calibration.keys = Keys(tokens, seed);
    calibration.values = Normals(tokens * head_dim, seed + 1);
    const std::vector<float> queries = Queries(tokens, seed + 2);
    for (int t = 0; t < tokens; ++t) {
      accumulator.AddKey(&calibration.keys[t * head_dim]);
      accumulator.AddQuery(&queries[t * head_dim]);
    }
    calibration.statistics = accumulator.Finish();
    return calibration;
  }

 private:
  std::vector<float> Draw(int tokens, uint64_t seed, const std::vector<double>& size, bool with_mean) const {
    std::vector<float> v = Normals(tokens * head_dim, seed);
    for (size_t i = 0; i < v.size(); ++i) {
      const int d = static_cast<int>(i) % head_dim;
      v[i] = static_cast<float>(v[i] * size[d / 2] + (with_mean ? mean[d] : 0.0));
    }
    return v;
  }
};

}  // namespace blockgtq::test
