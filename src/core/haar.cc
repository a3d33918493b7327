// Haar-distributed rotations: SplitMix64 -> xoshiro256** -> Box-Muller -> Householder QR, all in double.
#include "src/core/haar.h"

#include <cmath>
#include <numbers>

#include "src/core/random.h"

namespace blockgtq {
namespace {

// n x n independent normals, row by row; each Box-Muller pair gives the cosine first, then the sine.
std::vector<double> Normals(int n, uint64_t seed) {
  Xoshiro256 generator(seed);
  std::vector<double> a(static_cast<size_t>(n) * n);
  for (size_t i = 0; i < a.size(); i += 2) {
    const double radius = std::sqrt(-2.0 * std::log(generator.Uniform()));
    const double angle = 2.0 * std::numbers::pi * generator.Uniform();
    a[i] = radius * std::cos(angle);
    if (i + 1 < a.size()) a[i + 1] = radius * std::sin(angle);
  }
  return a;
}

}  // namespace

std::vector<float> HaarRotation(int n, uint64_t seed) {
  std::vector<double> a = Normals(n, seed);
  const auto at = [&](int row, int col) -> double& { return a[static_cast<size_t>(row) * n + col]; };

  // Column k's reflector I - v v' / h, v stored below and on the diagonal; r[k] is R's diagonal.
  std::vector<double> r(n), h(n);
  for (int k = 0; k < n; ++k) {
    double norm2 = 0;
    for (int i = k; i < n; ++i) norm2 += at(i, k) * at(i, k);
    const double alpha = at(k, k) > 0 ? -std::sqrt(norm2) : std::sqrt(norm2);
    r[k] = alpha;
    h[k] = norm2 - alpha * at(k, k);
    at(k, k) -= alpha;
    if (h[k] <= 0) continue;
    std::vector<double> dot(n, 0.0);
    for (int i = k; i < n; ++i) {
      for (int j = k + 1; j < n; ++j) dot[j] += at(i, k) * at(i, j);
    }
    for (int i = k; i < n; ++i) {
      const double factor = at(i, k) / h[k];
      for (int j = k + 1; j < n; ++j) at(i, j) -= factor * dot[j];
    }
  }

  // Q = H_0 H_1 ... H_{n-1} applied to the identity, then columns signed so that R's diagonal is positive.
  std::vector<double> q(static_cast<size_t>(n) * n, 0.0);
  for (int i = 0; i < n; ++i) q[static_cast<size_t>(i) * n + i] = 1.0;
  for (int k = n - 1; k >= 0; --k) {
    if (h[k] <= 0) continue;
    std::vector<double> dot(n, 0.0);
    for (int i = k; i < n; ++i) {
      for (int j = k; j < n; ++j) dot[j] += at(i, k) * q[static_cast<size_t>(i) * n + j];
    }
    for (int i = k; i < n; ++i) {
      const double factor = at(i, k) / h[k];
      for (int j = k; j < n; ++j) q[static_cast<size_t>(i) * n + j] -= factor * dot[j];
    }
  }
  std::vector<float> result(q.size());
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      const double value = q[static_cast<size_t>(i) * n + j];
      result[static_cast<size_t>(i) * n + j] = static_cast<float>(r[j] < 0 ? -value : value);
    }
  }
  return result;
}

}  // namespace blockgtq
