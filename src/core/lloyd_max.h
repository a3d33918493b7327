// Lloyd-Max scalar quantisers of the unit normal, 1..8 bits, computed once to double precision.
#pragma once

#include <span>

namespace blockgtq {

inline constexpr int kMaxWidth = 8;

/// Centroids [2^bits] ascending, thresholds [2^bits - 1] (midpoints), and the mean squared error.
struct LloydMaxCodebook {
  std::span<const double> centroids;
  std::span<const double> thresholds;
  double distortion;
};

/// bits 1..8. Computed on first use (thread-safe). Source: Max 1960; distortions .36338 .11748 .03455 .00950
/// ...
const LloydMaxCodebook& LloydMax(int bits);

/// D(b) of the aligned recipe's error law: 1 at 0 bits, else LloydMax(b).distortion.
double Distortion(int bits);

}  // namespace blockgtq
