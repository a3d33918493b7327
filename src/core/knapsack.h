// Multiple-choice knapsack: one option of each item, the least total cost within a capacity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace blockgtq {

struct KnapsackOption {
  int64_t size = 0;  // >= 0
  double cost = 0;   // finite
};

/// One option's index of each item, the least sum of costs of all choices whose sizes sum to at most
/// `capacity`; empty when no choice fits, an item has no option or more than 256, or there are no items.
/// Exact by a dynamic programme over sizes in units of their greatest common divisor, while its table (a byte
/// an item and unit) stays within 128 MiB; past that sizes are counted in larger units, rounded up, so that
/// the choice still fits but may miss the least cost by what items * unit of size is worth.
std::vector<int> ChooseOptions(std::span<const std::vector<KnapsackOption>> items, int64_t capacity);

}  // namespace blockgtq
