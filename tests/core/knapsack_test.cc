// The multiple-choice knapsack against exhaustive search.
#include "src/core/knapsack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace blockgtq {
namespace {

using Items = std::vector<std::vector<KnapsackOption>>;

double ExhaustiveCost(const Items& items, int64_t capacity) {
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(size_t, int64_t, double)> visit = [&](size_t i, int64_t left, double cost) {
    if (left < 0) return;
    if (i == items.size()) {
      best = std::fmin(best, cost);
      return;
    }
    for (const KnapsackOption& option : items[i]) visit(i + 1, left - option.size, cost + option.cost);
  };
  visit(0, capacity, 0);
  return best;
}

TEST(Knapsack, CostsWhatExhaustiveSearchFindsAndFits) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 200; ++trial) {
    // Costs that fall with size or not: nothing about an option's shape may matter.
    Items items(static_cast<size_t>(1 + trial % 6));
    int64_t smallest = 0, largest = 0;
    for (auto& options : items) {
      options.resize(1 + rng() % 4);
      int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
      for (KnapsackOption& option : options) {
        option = {static_cast<int64_t>(rng() % 20) * 16, std::exp(static_cast<double>(rng() % 1000) / 200)};
        low = std::min(low, option.size);
        high = std::max(high, option.size);
      }
      smallest += low;
      largest += high;
    }
    const int64_t capacity =
        smallest + static_cast<int64_t>(rng() % static_cast<uint64_t>(largest - smallest + 40));
    const std::vector<int> chosen = ChooseOptions(items, capacity);
    ASSERT_EQ(chosen.size(), items.size());
    int64_t size = 0;
    double cost = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      const KnapsackOption& option = items[i][static_cast<size_t>(chosen[i])];
      size += option.size;
      cost += option.cost;
    }
    EXPECT_LE(size, capacity);
    EXPECT_NEAR(cost, ExhaustiveCost(items, capacity), 1e-9 * cost);
  }
}

TEST(Knapsack, WhatCannotBeChosenGivesNothing) {
  const Items two = {{{3, 1}, {5, 0}}, {{4, 1}}};
  EXPECT_TRUE(ChooseOptions(two, 6).empty());
  EXPECT_EQ(ChooseOptions(two, 7), (std::vector<int>{0, 0}));
  EXPECT_EQ(ChooseOptions(two, 1000000), (std::vector<int>{1, 0}));
  EXPECT_TRUE(ChooseOptions(two, -1).empty());
  EXPECT_TRUE(ChooseOptions(Items{}, 10).empty());
  EXPECT_TRUE(ChooseOptions(Items{{}}, 10).empty());
  EXPECT_EQ(ChooseOptions(Items{{{0, 2}, {0, 1}}}, 0), (std::vector<int>{1}));
}

// Sizes without a common divisor and a capacity past the table's limit: counted in larger units, and what is
// chosen still fits.
TEST(Knapsack, HugeCapacitiesAreCountedInLargerUnits) {
  const int64_t large = (int64_t{1} << 30) + 1;
  const Items items = {{{1, 8}, {large, 1}}, {{1, 6}, {large, 1}}};
  EXPECT_EQ(ChooseOptions(items, large + 4096), (std::vector<int>{1, 0}));
  EXPECT_EQ(ChooseOptions(items, large - 4096), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace blockgtq
