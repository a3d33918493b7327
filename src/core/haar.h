// Haar-distributed random rotations from a documented seeded generator, the same on every platform.
#pragma once

#include <cstdint>
#include <vector>

namespace blockgtq {

/// An n x n orthogonal matrix, row-major, Haar distributed: Q of the QR (Householder, R's diagonal made
/// positive) of a matrix of independent normals. The normals come from SplitMix64(seed) -> xoshiro256** ->
/// Box-Muller in double precision, row by row; everything is double until the final rounding to float.
/// Uniforms are ((x >> 11) + 1) 2^-53; a pair (u1, u2) gives sqrt(-2 ln u1) cos(2 pi u2), then its sine.
std::vector<float> HaarRotation(int n, uint64_t seed);

}  // namespace blockgtq
