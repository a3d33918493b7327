// See mean_table.h.
#include "src/cuda/mean_table.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdlib>
#include <cstring>

#include "src/cuda/fragments.h"

namespace blockgtq::cuda {
namespace {

constexpr double kCentre = (kHalfTile - 1) / 2.0, kRadius = kHalfTile / 2.0;
constexpr double kTolerance = 5e-5;  // of the terms past the last degree, in sum

// Levels that a block needs which turns by `angle` over kRadius tokens; more than kSeriesLevels: too many.
int LevelsNeeded(double angle) {
  constexpr int kTerms = 30;  // past the degrees on offer; J_n falls faster than (angle / 2)^n / n!
  if (angle > 2 * kSeriesLevels) return kSeriesLevels + 1;
  double rest = 0;
  int levels = 1;
  for (int n = kTerms; n >= 2; --n) {
    rest += 2 * std::fabs(std::cyl_bessel_j(n, angle));
    if (rest > kTolerance) {
      levels = n / 2 + 1;
      break;
    }
  }
  return levels;
}

// Levels that a slot of the series has.
int LevelsOf(int head_dim, int slot) {
  int levels = 0;
  while (levels < kSeriesLevels && SeriesSlots(head_dim, levels) > slot) ++levels;
  return levels;
}

bool Contains(const std::vector<int>& list, int x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

// mu of a block, with the factor that rotation multiplies it by.
std::complex<double> BlockMean(const HeadPlan& plan, const RopeConfig& rope, int block) {
  const double factor = 2 * block < rope.rotary_dims ? rope.attention_factor : 1.0;
  return factor * std::complex<double>(plan.key_mean[2 * block], plan.key_mean[2 * block + 1]);
}

}  // namespace

MeanUnits SplitMeanUnits(const HeadPlan& plan, const RopeConfig& rope) {
  const std::vector<double> frequencies = RopeFrequencies(rope);
  const int dim_units = plan.head_dim / kUnitDims;
  std::vector<int> levels;
  for (int unit = 0; unit < dim_units; ++unit) {
    double fastest = 0;
    for (int b = 0; b < kMeanUnitBlocks; ++b) {
      fastest = std::max(fastest, std::fabs(frequencies[kMeanUnitBlocks * unit + b]));
    }
    levels.push_back(LevelsNeeded(kRadius * fastest));
  }
  // The slower units [i, ..) of the list make the series: as many as it takes.
  const std::vector<int>& list = plan.mean_units;
  for (size_t i = 0; i < list.size(); ++i) {
    // A batch may read more slots than have units: they must be units of this head dim.
    const int used = SeriesSlotsUsed(plan.head_dim, list.back() - list[i] + 1);
    const int first = std::min(list[i], dim_units - used), count = list.back() - first + 1;
    bool fits = count <= used;
    for (size_t k = i; k < list.size(); ++k) {
      fits = fits && levels[list[k]] <= LevelsOf(plan.head_dim, list[k] - first);
    }
    if (fits) return {first, count, std::vector<int>(list.begin(), list.begin() + static_cast<int64_t>(i))};
  }
  return {0, 0, list};
}

void FillMeanConstants(const HeadPlan& plan, const RopeConfig& rope, const MeanUnits& units, uint8_t* out) {
  const int dim = plan.head_dim;
  const std::vector<double> frequencies = RopeFrequencies(rope);
  const auto polynomial = [](int row, int col) {
    const int word = col < 8 ? col / 2 * 2 : (col - 8) / 2 * 2 + 1;  // of what a half tile and head has
    const int degree = word < 2 ? word : 2 * (word - 1) + col % 2;
    return std::cos(degree * std::acos((row - kCentre) / kRadius));
  };
  AppendFragments(2, 1, polynomial, reinterpret_cast<uint16_t*>(out));

  float* terms = reinterpret_cast<float*>(out + MeanConstants::Terms());
  for (int level = 0; level < kSeriesLevels; ++level) {
    for (int slot = 0; slot < SeriesSlots(dim, level); ++slot) {
      for (int e = 0; e < 2; ++e) {
        const int degree = 2 * level + e;
        std::complex<double> turn = 1;  // i^degree
        for (int i = 0; i < degree; ++i) turn *= std::complex<double>(0, 1);
        for (int t = 0; t < 4; ++t) {
          for (int half = 0; half < 2; ++half) {
            std::complex<double> term = 0;
            const int unit = units.series_first + slot;
            if (slot < units.series_units && !Contains(units.direct, unit)) {
              const int block = kMeanUnitBlocks * unit + t + 4 * half;  // mu is zero where no mean is removed
              term = BlockMean(plan, rope, block) * turn * (degree == 0 ? 1.0 : 2.0) *
                     std::cyl_bessel_j(degree, kRadius * frequencies[block]);
            }
            *terms++ = static_cast<float>(term.real());
            *terms++ = static_cast<float>(term.imag());
          }
        }
      }
    }
  }

  uint8_t* direct = out + MeanConstants::Direct(dim);
  for (int unit : units.direct) {
    const auto turned = [&](int row, int col) {
      const int block = kMeanUnitBlocks * unit + col / 2;
      const std::complex<double> k =
          BlockMean(plan, rope, block) * std::polar(1.0, frequencies[block] * (row - kCentre));
      return col % 2 == 0 ? k.real() : k.imag();
    };
    AppendFragments(2, 1, turned, reinterpret_cast<uint16_t*>(direct));
    direct += MeanConstants::kDirectBytes;
  }
}

}  // namespace blockgtq::cuda
