// Both allocators against exhaustive search.
#include "src/core/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "src/core/lloyd_max.h"

namespace blockgtq {
namespace {

double GreedyCost(const std::vector<double>& scores, const std::vector<int>& widths) {
  double cost = 0;
  for (size_t i = 0; i < scores.size(); ++i) cost += scores[i] * std::pow(4.0, -widths[i]);
  return cost;
}

double ExhaustiveGreedyCost(const std::vector<double>& scores, int budget, int max_width) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> widths(scores.size());
  const std::function<void(size_t, int)> visit = [&](size_t i, int left) {
    if (i == scores.size()) {
      if (left == 0) best = std::fmin(best, GreedyCost(scores, widths));
      return;
    }
    for (int w = 1; w <= std::min(max_width, left); ++w) {
      widths[i] = w;
      visit(i + 1, left - w);
    }
  };
  visit(0, budget);
  return best;
}

TEST(Allocator, GreedyMatchesExhaustiveSearchUpToSixBlocks) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 60; ++trial) {
    const int blocks = 1 + trial % 6;
    const int max_width = trial % 2 ? 8 : 4;
    std::lognormal_distribution<double> score(0.0, 2.0);
    std::vector<double> scores(blocks);
    for (double& s : scores) s = score(rng);
    const int budget = std::uniform_int_distribution<int>(blocks, blocks * max_width)(rng);
    const std::vector<int> widths = AllocateGreedy(scores, budget, 1, max_width);
    EXPECT_EQ(std::accumulate(widths.begin(), widths.end(), 0), budget);
    const double best = ExhaustiveGreedyCost(scores, budget, max_width);
    EXPECT_NEAR(GreedyCost(scores, widths) / best, 1.0, 1e-12);
  }
}

TEST(Allocator, GreedyGivesTiesToTheLowerIndexAndClampsTheBudget) {
  EXPECT_EQ(AllocateGreedy(std::vector<double>{1, 1, 1}, 4), (std::vector<int>{2, 1, 1}));
  EXPECT_EQ(AllocateGreedy(std::vector<double>{1, 2}, 0), (std::vector<int>{1, 1}));
  EXPECT_EQ(AllocateGreedy(std::vector<double>{1, 2}, 99), (std::vector<int>{8, 8}));
  EXPECT_EQ(AllocateGreedy(std::vector<double>{1e9, 1e-9}, 9), (std::vector<int>{8, 1}));
  EXPECT_TRUE(AllocateGreedy({}, 5).empty());
}

// Every composition of the units into at most max_groups runs, every non-increasing choice of widths.
double ExhaustiveAlignedCost(const std::vector<double>& w, double budget, const AlignedOptions& options) {
  const int units = static_cast<int>(w.size()) / options.unit_blocks;
  double best = std::numeric_limits<double>::infinity();
  std::vector<AlignedGroup> groups;
  const std::function<void(int, int)> visit = [&](int unit, int widest) {
    if (unit == units) {
      double bits = 0, cost = 0;
      for (const AlignedGroup& g : groups) {
        double sum = 0;
        for (int i = 0; i < g.blocks; ++i) sum += w[g.first_block + i];
        bits += 2.0 * g.blocks * g.width + options.group_cost_bits;
        cost += sum * sum / g.blocks * Distortion(g.width);
      }
      if (bits <= budget) best = std::fmin(best, cost);
      return;
    }
    if (static_cast<int>(groups.size()) == options.max_groups) return;
    for (int end = unit + 1; end <= units; ++end) {
      for (int width : {1, 2, 3, 4, 5, 8}) {
        if (width > widest) continue;
        groups.push_back({unit * options.unit_blocks, (end - unit) * options.unit_blocks, width});
        visit(end, width);
        groups.pop_back();
      }
    }
  };
  visit(0, 8);
  return best;
}

TEST(Allocator, AlignedMatchesExhaustiveSearchUpToSixUnits) {
  std::mt19937 rng(2);
  for (int trial = 0; trial < 48; ++trial) {
    const int units = 1 + trial % 6;
    AlignedOptions options;
    options.unit_blocks = trial % 3 == 0 ? 8 : 2;
    options.max_groups = trial % 4 == 0 ? 2 : 8;
    options.group_cost_bits = trial % 5 == 0 ? 0 : 8;
    std::lognormal_distribution<double> amplitude(0.0, 0.3 + 0.5 * (trial % 4));
    std::vector<double> w(units * options.unit_blocks);
    for (double& v : w) v = amplitude(rng);
    std::sort(w.begin(), w.end(), std::greater<>());
    for (double bits : {1.0, 2.0, 2.5, 3.0, 4.3, 8.0}) {
      const double budget = bits * 2 * static_cast<double>(w.size()) + 2 * options.group_cost_bits;
      const std::vector<AlignedGroup> groups = AllocateAligned(w, budget, options);
      ASSERT_FALSE(groups.empty());
      double spent = 0;
      int next = 0;
      for (size_t g = 0; g < groups.size(); ++g) {
        EXPECT_EQ(groups[g].first_block, next);
        EXPECT_EQ(groups[g].blocks % options.unit_blocks, 0);
        EXPECT_LE(groups[g].width, g == 0 ? 8 : groups[g - 1].width);
        next += groups[g].blocks;
        spent += 2.0 * groups[g].blocks * groups[g].width + options.group_cost_bits;
      }
      EXPECT_EQ(next, static_cast<int>(w.size()));
      EXPECT_LE(static_cast<int>(groups.size()), options.max_groups);
      EXPECT_LE(spent, budget);
      EXPECT_NEAR(AlignedCost(w, groups) / ExhaustiveAlignedCost(w, budget, options), 1.0, 1e-12)
          << "trial " << trial << ", " << bits << " bits";
    }
  }
}

TEST(Allocator, AlignedIsEmptyWhenTheBudgetCannotHoldOneBitAndANorm) {
  const std::vector<double> w(32, 1.0);
  EXPECT_TRUE(AllocateAligned(w, 64 + 7.9).empty());
  EXPECT_EQ(AllocateAligned(w, 64 + 8), (std::vector<AlignedGroup>{{0, 32, 1}}));
  EXPECT_TRUE(AllocateAligned(std::vector<double>(12, 1.0), 1000).empty());
  EXPECT_TRUE(AllocateAligned(w, std::nan("")).empty());
}

TEST(Allocator, AlignedSpendsTheNormByteOnlyWhereItPays) {
  const std::vector<double> flat(64, 1.0);
  EXPECT_EQ(AllocateAligned(flat, 3 * 128 + 8).size(), 1u);
  std::vector<double> steep(64);
  for (int i = 0; i < 64; ++i) steep[i] = std::exp2(-i / 6.0);
  EXPECT_GT(AllocateAligned(steep, 3 * 128 + 32).size(), 1u);
}

}  // namespace
}  // namespace blockgtq
