// How the key mean's part of the logits is laid out: which frequency units a head adds in which way
// (mean_bias.cuh), the constants of a KV head, and the pieces of shared memory. Host and device agree by
// computing it alike.
//
// Over half a tile (32 tokens around its centre c) a frequency block turns by e^{i theta (r - 15.5)}, which
// is a series of Chebyshev polynomials in x = (r - 15.5) / 16 with Bessel functions as coefficients (Jacobi
// and Anger): of low degree unless the block is fast. So units of 8 blocks are of two kinds. Those of the
// *series* share one polynomial a (half tile, query head) of degree up to 13; *direct* ones, the fastest, are
// a product of rotated queries with R_{r - 15.5} mu.
#pragma once

#include <cstdint>

namespace blockgtq::cuda {

inline constexpr int kMaxDirectUnits = 16;  // of a head: all that a head dim of 256 has
inline constexpr int kHalfTile = 32;        // tokens
inline constexpr int kBatchTiles = 8;  // whose coefficients one warp computes at a time: 16 rows of a product

/// Tiles of a warp whose part of the mean is in shared memory at a time: half a batch where there is no room
/// for more, with 12 warps and more than 4 query heads.
constexpr int MeanTiles(int warps, bool few) { return warps > 8 && !few ? kBatchTiles / 2 : kBatchTiles; }

/// Degrees come in pairs, level n: 2 n and 2 n + 1.
inline constexpr int kSeriesLevels = 7;

/// Slots of the series (neighbouring units, fastest first) that have level `level`: what RoPE bases from
/// 10,000 up need.
constexpr int SeriesSlots(int head_dim, int level) {
  // A digit a level, from the right: kernels shall fold it (an array would be one in local memory).
  const uint32_t digits = head_dim == 64 ? 0x1111133 : head_dim == 128 ? 0x1112367 : 0x11235be;
  return digits >> 4 * level & 15;
}
/// Slots that a batch works on where `units` have a mean.
constexpr int SeriesSlotsUsed(int head_dim, int units) {
  const int slots = SeriesSlots(head_dim, 0);
  return units == 0 ? 0 : units <= 4 && slots > 4 ? 4 : slots;
}
/// (slot, level) pairs of the levels below `level`. They are numbered level by level.
constexpr int SeriesTerms(int head_dim, int level = kSeriesLevels) {
  const uint64_t sums = head_dim == 64    ? 0x0b0a090807060300
                        : head_dim == 128 ? 0x15141312100d0700
                                          : 0x252423211e190e00;  // two digits a level
  return static_cast<int>(sums >> 8 * level & 255);
}
constexpr bool SeriesTermsAreSums(int head_dim) {
  int terms = 0;
  for (int n = 0; n < kSeriesLevels; ++n) {
    if (SeriesTerms(head_dim, n) != terms) return false;
    terms += SeriesSlots(head_dim, n);
  }
  return SeriesTerms(head_dim) == terms;
}
static_assert(SeriesTermsAreSums(64) && SeriesTermsAreSums(128) && SeriesTermsAreSums(256));

/// Constants of a KV head, in bytes:
///   polynomials  fp16 A fragments [2][32][8]: T_n(x) of tokens 16 m + .. of a half tile x 16 degrees: column
///                2 p + e is that of half e of coefficient word w (MeanTileWords), w = 2 p for p < 4, else 2
///                p - 7
///   terms        f32 [terms][2][4][4]: degree 2 level + e, blocks t and t + 4 of the slot's unit as complex
///                numbers mu i^n (2 - [n = 0]) J_n(16 theta)
///   direct       of each direct unit fp16 A fragments [2][32][8]: R_{r - 15.5} mu; then 512 bytes that are
///                for the kernel's queries, fp16 [32][8]: lane 4 column + t holds blocks t and t + 4 as (x,
///                y), then (y, -x)
/// Where some head has a mean there is at least one direct unit: kernels always add the first one, which is
/// zero where a head has none.
struct MeanConstants {
  static constexpr int kPolynomialBytes = 2 * 512, kTermBytes = 128;
  static constexpr int kDirectQuery = 2 * 512, kDirectBytes = 3 * 512;
  static constexpr int Terms() { return kPolynomialBytes; }
  static constexpr int Direct(int head_dim) { return Terms() + kTermBytes * SeriesTerms(head_dim); }
  static constexpr int Bytes(int head_dim, int direct_units) {
    return Direct(head_dim) + kDirectBytes * direct_units;
  }
};

/// The query's factors in shared memory, in bytes: fp16 B fragments a group of 4 query heads: level 0
/// [slots][32][hi 4, lo 4], then [terms - slots][32][4]. Column 2 h + e: head h, degree 2 level + e.
constexpr int FactorBytesOfGroup(int head_dim) {
  return 256 * (SeriesTerms(head_dim) + SeriesSlots(head_dim, 0));
}
constexpr int FactorBytes(int head_dim, bool few) { return (few ? 1 : 2) * FactorBytesOfGroup(head_dim); }

/// What a tile has in shared memory, in 32-bit words: the series' coefficients, two half tiles x query heads
/// x 8 words as a B operand wants them: degree 0 as (high, low), degree 1 as (high, low), then word w > 1 is
/// degrees 2 (w - 1) and 2 (w - 1) + 1; 4 words that spread tiles over the banks; of each direct unit the
/// phases, two half tiles x 4 x (blocks t, t + 4).
constexpr int CoefficientWords(bool few) { return 2 * (few ? 4 : 8) * 8; }
constexpr int MeanTileWords(bool few, int direct_units) {
  return CoefficientWords(few) + 4 + 16 * direct_units;
}

/// Bytes of the phases of one tile (phase_table.h).
constexpr int PhaseBytes(int head_dim) { return 2 * (head_dim / 16) * 64; }

}  // namespace blockgtq::cuda
