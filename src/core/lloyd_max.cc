// Lloyd-Max quantisers of the unit normal, by Newton's method on the stationarity conditions.
//
// The quantiser is symmetric, so the unknowns are the n = 2^(bits-1) positive centroids c_i, whose cells are
// [lo_i, hi_i], lo_0 = 0, hi_i = lo_{i+1} = (c_i + c_{i+1}) / 2, hi_{n-1} = infinity. Stationarity is F_i =
// c_i p_i - m_i = 0 with p_i the mass and m_i the first moment of the cell; dF/dc is tridiagonal.
#include "src/core/lloyd_max.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace blockgtq {
namespace {

double Density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi); }
double UpperTail(double x) { return 0.5 * std::erfc(x / std::numbers::sqrt2); }

struct Cell {
  double lo, hi, mass, moment;
};

Cell CellOf(const std::vector<double>& c, size_t i) {
  Cell cell;
  const bool last = i + 1 == c.size();
  cell.lo = i == 0 ? 0.0 : 0.5 * (c[i - 1] + c[i]);
  cell.hi = last ? std::numeric_limits<double>::infinity() : 0.5 * (c[i] + c[i + 1]);
  cell.mass = UpperTail(cell.lo) - (last ? 0.0 : UpperTail(cell.hi));
  // density(lo) - density(hi), without the cancellation of narrow cells.
  cell.moment = last ? Density(cell.lo)
                     : -Density(cell.lo) * std::expm1(-0.5 * (cell.hi - cell.lo) * (cell.hi + cell.lo));
  return cell;
}

double UpperQuantile(double tail) {
  double lo = 0.0, hi = 10.0;
  for (int i = 0; i < 60; ++i) {
    const double mid = 0.5 * (lo + hi);
    (UpperTail(mid) > tail ? lo : hi) = mid;
  }
  return lo;
}

// Start: the companding law (centroid density ~ density^(1/3), a normal of variance 3), then a few of Lloyd's
// iterations, which bring the outermost cells into Newton's basin.
std::vector<double> StartCentroids(size_t n) {
  std::vector<double> c(n);
  for (size_t i = 0; i < n; ++i) {
    c[i] = std::sqrt(3.0) * UpperQuantile(0.5 * (1.0 - (static_cast<double>(i) + 0.5) / n));
  }
  for (int iteration = 0; iteration < 20; ++iteration) {
    std::vector<double> next(n);
    for (size_t i = 0; i < n; ++i) {
      const Cell cell = CellOf(c, i);
      next[i] = cell.moment / cell.mass;
    }
    c = next;
  }
  return c;
}

// One Newton step; returns the largest relative move.
double NewtonStep(std::vector<double>& c) {
  const size_t n = c.size();
  std::vector<double> lower(n), diagonal(n), upper(n), rhs(n);
  for (size_t i = 0; i < n; ++i) {
    const Cell cell = CellOf(c, i);
    // Half the integrand at each moving border: borders move by half of either centroid's move.
    const double at_lo = i == 0 ? 0.0 : 0.5 * (cell.lo - c[i]) * Density(cell.lo);
    const double at_hi = i + 1 == n ? 0.0 : 0.5 * (c[i] - cell.hi) * Density(cell.hi);
    lower[i] = at_lo;
    upper[i] = at_hi;
    diagonal[i] = cell.mass + at_lo + at_hi;
    rhs[i] = cell.moment - c[i] * cell.mass;
  }
  for (size_t i = 1; i < n; ++i) {
    const double factor = lower[i] / diagonal[i - 1];
    diagonal[i] -= factor * upper[i - 1];
    rhs[i] -= factor * rhs[i - 1];
  }
  double largest = 0;
  double step = 0;
  for (size_t i = n; i-- > 0;) {
    step = (rhs[i] - upper[i] * step) / diagonal[i];
    c[i] += step;
    largest = std::max(largest, std::fabs(step) / c[i]);
  }
  return largest;
}

struct Quantiser {
  std::vector<double> centroids, thresholds;
  LloydMaxCodebook book;
};

Quantiser Solve(int bits) {
  const size_t n = size_t{1} << (bits - 1);
  std::vector<double> c = StartCentroids(n);
  for (int iteration = 0; iteration < 50 && NewtonStep(c) > 1e-15; ++iteration) {
  }
  Quantiser q;
  for (size_t i = n; i-- > 0;) q.centroids.push_back(-c[i]);
  q.centroids.insert(q.centroids.end(), c.begin(), c.end());
  for (size_t i = 0; i + 1 < 2 * n; ++i) {
    q.thresholds.push_back(0.5 * (q.centroids[i] + q.centroids[i + 1]));
  }
  double explained = 0;  // E|quantised|^2 = 1 - distortion at stationarity
  for (size_t i = 0; i < n; ++i) explained += 2.0 * c[i] * c[i] * CellOf(c, i).mass;
  q.book.distortion = 1.0 - explained;
  return q;
}

}  // namespace

const LloydMaxCodebook& LloydMax(int bits) {
  static const std::array<Quantiser, kMaxWidth> quantisers = [] {
    std::array<Quantiser, kMaxWidth> all;
    for (int b = 1; b <= kMaxWidth; ++b) all[b - 1] = Solve(b);
    for (Quantiser& q : all) {
      q.book.centroids = q.centroids;
      q.book.thresholds = q.thresholds;
    }
    return all;
  }();
  return quantisers[std::clamp(bits, 1, kMaxWidth) - 1].book;
}

double Distortion(int bits) { return bits <= 0 ? 1.0 : LloydMax(bits).distortion; }

}  // namespace blockgtq
