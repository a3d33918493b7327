// The greedy allocator (optimal for sum s_i 4^-b_i) and the exact dynamic programme over contiguous groups.
#include "src/core/allocator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/core/lloyd_max.h"

namespace blockgtq {

std::vector<int> AllocateGreedy(std::span<const double> scores, int budget_bits, int min_width,
                                int max_width) {
  const int blocks = static_cast<int>(scores.size());
  std::vector<int> widths(blocks, min_width);
  const int budget = std::clamp(budget_bits, blocks * min_width, blocks * max_width);
  for (int given = blocks * min_width; given < budget; ++given) {
    int best = -1;
    double best_gain = -1;
    for (int i = 0; i < blocks; ++i) {
      if (widths[i] >= max_width) continue;
      const double gain = 0.75 * std::ldexp(scores[i], -2 * widths[i]);
      if (gain > best_gain) {
        best_gain = gain;
        best = i;
      }
    }
    if (best < 0) break;  // no block of a comparable score is left
    ++widths[best];
  }
  return widths;
}

namespace {

constexpr std::array<int, 6> kWidths = {8, 5, 4, 3, 2, 1};

double GroupCost(double amplitude_sum, int blocks, int width) {
  return amplitude_sum * amplitude_sum / blocks * Distortion(width);
}

// A partial allocation's last group; the chain of parents gives the rest. Kept apart from the table because a
// table entry may later be replaced by a narrower, better one that its old followers do not continue.
struct Node {
  int parent;
  AlignedGroup group;
};

struct Entry {
  double cost = std::numeric_limits<double>::infinity();
  int node = -1;
};

// Least cost of covering the first `unit` units with `groups` groups that spend `code` = sum of width *
// units.
class Table {
 public:
  Table(int units, int max_groups, int max_code)
      : groups_(max_groups + 1), codes_(max_code + 1), entries_(size_t(units + 1) * groups_ * codes_) {}
  Entry& At(int unit, int groups, int code) {
    return entries_[(static_cast<size_t>(unit) * groups_ + groups) * codes_ + code];
  }

 private:
  int groups_, codes_;
  std::vector<Entry> entries_;
};

std::vector<AlignedGroup> Chain(const std::vector<Node>& nodes, int node) {
  std::vector<AlignedGroup> groups;
  for (; node >= 0; node = nodes[node].parent) groups.push_back(nodes[node].group);
  std::reverse(groups.begin(), groups.end());
  return groups;
}

}  // namespace

std::vector<AlignedGroup> AllocateAligned(std::span<const double> sorted_amplitudes, double budget_bits,
                                          const AlignedOptions& options) {
  const int unit_blocks = options.unit_blocks;
  const int blocks = static_cast<int>(sorted_amplitudes.size());
  if (unit_blocks < 1 || blocks == 0 || blocks % unit_blocks != 0 || !(budget_bits > 0)) return {};
  const int units = blocks / unit_blocks;
  const int max_groups = std::min(options.max_groups, units);
  const int unit_bits = 2 * unit_blocks;  // of one bit a dim
  const int max_code =
      static_cast<int>(std::min(std::floor(budget_bits / unit_bits), double{kMaxWidth} * units));

  std::vector<double> prefix(blocks + 1, 0.0);
  for (int i = 0; i < blocks; ++i) prefix[i + 1] = prefix[i] + sorted_amplitudes[i];

  Table table(units, max_groups, max_code);
  std::vector<Node> nodes;
  table.At(0, 0, 0).cost = 0;
  // Widths from the widest, units ascending, in place: each group continues one of its own width or a wider.
  for (int width : kWidths) {
    for (int unit = 0; unit < units; ++unit) {
      for (int end = unit + 1; end <= units; ++end) {
        const int first = unit * unit_blocks, length = (end - unit) * unit_blocks;
        const int spent = width * (end - unit);
        const double group_cost = GroupCost(prefix[first + length] - prefix[first], length, width);
        for (int groups = 0; groups < max_groups; ++groups) {
          for (int code = 0; code + spent <= max_code; ++code) {
            const Entry& from = table.At(unit, groups, code);
            Entry& to = table.At(end, groups + 1, code + spent);
            if (from.cost + group_cost < to.cost) {
              nodes.push_back({from.node, {first, length, width}});
              to = {from.cost + group_cost, static_cast<int>(nodes.size()) - 1};
            }
          }
        }
      }
    }
  }
  Entry best;
  for (int groups = 1; groups <= max_groups; ++groups) {
    for (int code = 0; code <= max_code; ++code) {
      const double bits = double{1} * code * unit_bits + double{1} * groups * options.group_cost_bits;
      const Entry& entry = table.At(units, groups, code);
      if (bits <= budget_bits && entry.cost < best.cost) best = entry;
    }
  }
  return Chain(nodes, best.node);
}

double AlignedCost(std::span<const double> sorted_amplitudes, std::span<const AlignedGroup> groups) {
  double cost = 0;
  for (const AlignedGroup& group : groups) {
    double sum = 0;
    for (int i = 0; i < group.blocks; ++i) sum += sorted_amplitudes[group.first_block + i];
    cost += GroupCost(sum, group.blocks, group.width);
  }
  return cost;
}

}  // namespace blockgtq
