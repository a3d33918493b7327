// See joint_allocation.h.
#include "src/eval/joint_allocation.h"

#include <algorithm>
#include <cmath>

#include "src/core/knapsack.h"

namespace blockgtq {

JointAllocation AllocateJointly(std::span<const HeadChoices> choices, std::span<const HeadProbe> probes,
                                const ErrorModel& model, int64_t capacity, uint64_t seed) {
  double mean = 0;
  for (const HeadProbe& probe : probes) mean += probe.key_kld + probe.value_kld;
  mean /= 2.0 * static_cast<double>(std::max<size_t>(probes.size(), 1));
  const double floor = mean > 0 ? kProbeFloor * mean : 1.0;

  std::vector<std::vector<KnapsackOption>> items;  // keys, values of each head in turn
  const auto add = [&](const std::vector<SideChoice>& side, double kld, double probed) {
    std::vector<KnapsackOption>& options = items.emplace_back();
    const double weight =
        std::pow(std::max(kld, floor), model.trust) * std::pow(mean > 0 ? mean : 1.0, 1 - model.trust);
    for (const SideChoice& choice : side) {
      const double ratio = probed > 0 ? choice.distortion / probed : 1.0;
      options.push_back({choice.bytes, weight * std::pow(ratio, model.exponent)});
    }
  };
  for (size_t h = 0; h < choices.size(); ++h) {
    add(choices[h].keys, probes[h].key_kld, probes[h].key_distortion);
    add(choices[h].values, probes[h].value_kld, probes[h].value_distortion);
  }
  JointAllocation allocation;
  const std::vector<int> chosen = ChooseOptions(items, capacity);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const size_t head = i / 2, option = static_cast<size_t>(chosen[i]);
    allocation.predicted_kld += items[i][option].cost;
    if (i % 2 == 0) {
      allocation.bits.push_back({choices[head].keys[option].bits, 0, seed});
    } else {
      allocation.bits.back().v_bits = choices[head].values[option].bits;
    }
  }
  return allocation;
}

}  // namespace blockgtq
