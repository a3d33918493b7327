// See knapsack.h.
#include "src/core/knapsack.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

namespace blockgtq {
namespace {

constexpr int64_t kMaxTableBytes = int64_t{1} << 27;
constexpr double kImpossible = std::numeric_limits<double>::infinity();

}  // namespace

std::vector<int> ChooseOptions(std::span<const std::vector<KnapsackOption>> items, int64_t capacity) {
  if (items.empty() || capacity < 0) return {};
  int64_t unit = 0, smallest = 0, largest = 0;  // sizes of all items' smallest and largest options
  for (const std::vector<KnapsackOption>& options : items) {
    if (options.empty() || options.size() > 256) return {};
    const auto [low, high] =
        std::minmax_element(options.begin(), options.end(),
                            [](const KnapsackOption& a, const KnapsackOption& b) { return a.size < b.size; });
    smallest += low->size;
    largest += high->size;
    for (const KnapsackOption& option : options) unit = std::gcd(unit, option.size);
  }
  if (smallest > capacity) return {};
  capacity = std::min(capacity, largest);  // more buys nothing
  const int64_t count = static_cast<int64_t>(items.size());
  unit = std::max<int64_t>(unit, 1);
  const int64_t bytes_of_unit = count + 2 * static_cast<int64_t>(sizeof(double));
  while (capacity / unit + 1 > kMaxTableBytes / bytes_of_unit) unit *= 2;
  const auto units_of = [unit](int64_t size) { return (size + unit - 1) / unit; };

  // least[u]: the least cost of the items so far with sizes of at most u units; choice[i][u]: item i's option
  // there.
  const size_t cells = static_cast<size_t>(capacity / unit) + 1;
  std::vector<double> least(cells, 0), next(cells);
  std::vector<uint8_t> choice(cells * items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    std::fill(next.begin(), next.end(), kImpossible);
    uint8_t* chosen = &choice[i * cells];
    for (size_t o = 0; o < items[i].size(); ++o) {
      const size_t size = static_cast<size_t>(units_of(items[i][o].size));
      for (size_t u = size; u < cells; ++u) {
        const double cost = least[u - size] + items[i][o].cost;
        if (cost < next[u]) {
          next[u] = cost;
          chosen[u] = static_cast<uint8_t>(o);
        }
      }
    }
    least.swap(next);
  }
  if (least.back() == kImpossible) return {};
  std::vector<int> result(items.size());
  size_t u = cells - 1;
  for (size_t i = items.size(); i-- > 0;) {
    result[i] = choice[i * cells + u];
    u -= static_cast<size_t>(units_of(items[i][static_cast<size_t>(result[i])].size));
  }
  return result;
}

}  // namespace blockgtq
