// Recipe aligned (design: mean removal, equalisation, exact allocation in whole units): the default.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "src/codec/head_builder.h"
#include "src/core/allocator.h"

namespace blockgtq {
namespace {

constexpr std::array<int, 6> kWidths = {1, 2, 3, 4, 5, 8};
// A mean unit costs decode time, so it must lower the head's amplitude sum by more than this share.
constexpr double kMeanGain = 0.0025;
// Energies below this share of the head's mean are raised to it: a block that calibration never excited keeps
// finite scales.
constexpr double kEnergyFloor = 1e-6;

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> Floored(std::vector<double> values, double floor) {
  for (double& v : values) v = std::max(v, floor);
  return values;
}

struct Energies {
  std::vector<double> query, key, centred;  // Q, K, Kc [L], all positive
};

Energies PositiveEnergies(const HeadStatistics& s) {
  const double query = Mean(s.query_energy), key = Mean(s.key_energy), centred = Mean(s.centred_key_energy);
  // Constant keys have no centred energy: any floor serves, since every block gets the same.
  const double key_floor = centred > 0 ? kEnergyFloor * centred : key > 0 ? kEnergyFloor * key : 1.0;
  return {Floored(s.query_energy, query > 0 ? kEnergyFloor * query : 1.0), Floored(s.key_energy, key_floor),
          Floored(s.centred_key_energy, key_floor)};
}

// Units of 8 blocks whose mean is worth removing.
std::vector<int> ChooseMeanUnits(const Energies& e) {
  const int blocks = static_cast<int>(e.query.size());
  double total = 0;
  for (int i = 0; i < blocks; ++i) total += std::sqrt(e.query[i] * e.centred[i]);
  std::vector<int> units;
  for (int first = 0; first < blocks; first += kMeanUnitBlocks) {
    double gain = 0;
    for (int i = first; i < std::min(first + kMeanUnitBlocks, blocks); ++i) {
      gain += std::sqrt(e.query[i] * e.key[i]) - std::sqrt(e.query[i] * e.centred[i]);
    }
    if (gain > kMeanGain * total) units.push_back(first / kMeanUnitBlocks);
  }
  return units;
}

// Contiguous groups of the sorted blocks. An idle head (no energy at all) has nothing to choose by: one group
// of the widest width that the bits hold.
std::vector<AlignedGroup> ChooseGroups(std::vector<double> sorted_amplitudes, double k_bits, int head_dim,
                                       bool idle) {
  const AlignedOptions options;
  const int blocks = static_cast<int>(sorted_amplitudes.size());
  const int padded = (blocks + options.unit_blocks - 1) / options.unit_blocks * options.unit_blocks;
  if (idle) {
    const int width = *std::find_if(kWidths.rbegin(), kWidths.rend(), [&](int w) { return w <= k_bits; });
    return {{0, padded, width}};
  }
  sorted_amplitudes.resize(padded, 0.0);
  // Two norms a head and one more every 64 dims come on top of the code bits.
  const double budget = k_bits * 2 * padded + options.group_cost_bits * (2.0 + head_dim / 64.0);
  return AllocateAligned(sorted_amplitudes, budget, options);
}

}  // namespace

Result<HeadPlan> PlanAligned(const HeadCalibration& calibration, const RecipeOptions& options, int layer,
                             int kv_head) {
  BGTQ_RETURN_IF_ERROR(CheckCalibration(calibration));
  if (!(options.k_bits >= 1 && options.k_bits <= 8)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("recipe aligned: K bits {} must lie within 1..8", options.k_bits));
  }
  HeadSpec spec;
  BGTQ_ASSIGN_OR_RETURN(spec.value_code_width, WholeWidth("aligned", "V", options.v_bits, kWidths));
  const HeadStatistics& s = calibration.statistics;
  spec.head_dim = static_cast<int>(s.key_mean.size());
  spec.norm_type = NormType::kLog8;
  spec.rounding = Rounding::kSearched;

  Energies e = PositiveEnergies(s);
  const std::vector<int> mean_units = ChooseMeanUnits(e);
  std::vector<float> mean(mean_units.empty() ? 0 : spec.head_dim, 0.0f);
  std::vector<double> key = e.key;  // energy of what is coded: centred where the mean is removed
  const int blocks = spec.head_dim / 2;
  for (int unit : mean_units) {
    for (int i = unit * kMeanUnitBlocks; i < std::min((unit + 1) * kMeanUnitBlocks, blocks); ++i) {
      key[i] = e.centred[i];
      mean[2 * i] = static_cast<float>(s.key_mean[2 * i]);
      mean[2 * i + 1] = static_cast<float>(s.key_mean[2 * i + 1]);
    }
  }

  std::vector<double> amplitude(blocks);
  spec.scale.resize(blocks);
  for (int i = 0; i < blocks; ++i) {
    amplitude[i] = std::sqrt(e.query[i] * key[i]);
    spec.scale[i] = std::pow(e.query[i] / key[i], 0.25);
  }
  std::vector<int> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return amplitude[a] > amplitude[b]; });
  std::vector<double> sorted(blocks);
  for (int i = 0; i < blocks; ++i) sorted[i] = amplitude[order[i]];

  const bool idle = Mean(s.query_energy) == 0 && Mean(s.key_energy) == 0;
  for (const AlignedGroup& group : ChooseGroups(sorted, options.k_bits, spec.head_dim, idle)) {
    const int end = std::min(group.first_block + group.blocks, blocks);
    spec.groups.push_back({{order.begin() + group.first_block, order.begin() + end}, group.width});
  }
  HeadPlan head = BuildHead(spec, options.seed, layer, kv_head);
  head.mean_units = mean_units;
  head.key_mean = std::move(mean);
  head.score.assign(amplitude.begin(), amplitude.end());
  ChooseNormReferences(calibration, head);
  return head;
}

}  // namespace blockgtq
