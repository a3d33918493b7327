// What the kernels over codes share: a head's derived constants, prepared queries, scratch, and the order of
// tokens inside a tile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/cpu/aligned_buffer.h"
#include "src/cpu/attention_codes.h"

namespace blockgtq::cpu {

inline constexpr int kQueryBlock = 4;  // queries that share one load of a code vector
inline constexpr int kHalfTile = kPageTokens / 2;
inline constexpr float kLog2E = 1.4426950408889634f;

/// The order in which the dot products deliver the 64 tokens of a tile: lane c of the i-th block of four of
/// quad pair mt. It is its own mirror image: TileToken(63 - p) == 63 - TileToken(p).
constexpr int TileToken(int position) {
  const int mt = position >> 4, i = (position >> 2) & 3, c = position & 3;
  return 16 * mt + i + 4 * (c >> 1) + 8 * (c & 1);
}

/// One unit's place and width.
struct UnitSpec {
  int offset;  // bytes from the record's start
  int width;
};

/// One walk over a group's units with one int8 query: groups of width >= 5 take two, for the query's high
/// and low byte.
struct KeyPass {
  int group;
  bool low;
  int first_unit, units;
  int first_operand;  // index of the pass's first unit among all passes' units
};

/// cos and sin of every frequency block at distances 0.5 .. 31.5 from a tile's centre, for the tile's second
/// half in tile order: [blocks rounded up to 8][2][32]. One a model: it stays in the first-level cache.
struct PhaseTable {
  std::vector<double> frequencies;
  AlignedBuffer<float> values;
};

/// How the codes of one group are found from coordinates of unit variance (encoder).
struct GroupCodes {
  // Widths 1..5: codes by ascending value, the least coordinate that takes code i + 1, and the decoded
  // integers (half included).
  std::vector<float> thresholds;
  std::vector<float> values;
  std::vector<uint8_t> codes;
};

struct PackedHead::Derived {
  AlignedBuffer<float> key_columns;    // T'    [D, P]
  AlignedBuffer<float> query_columns;  // T^-1  [D, P]
  AlignedBuffer<float> value_columns;  // T_v'  [D, P_v]
  AlignedBuffer<float> value_rows;     // T_v   [P_v, D]
  std::vector<UnitSpec> key_units, value_units;
  std::vector<KeyPass> passes;
  int pass_units = 0;  // of all passes
  // A decoded coordinate is norm unit * constant * (integer + half); for kLog8 the norm unit is the byte's
  // power of two and the constant holds the reference.
  std::vector<float> key_constant, key_half;  // [groups]
  float value_constant = 0, value_half = 0;

  // The mean: blocks of all mean units, `mean_stride` (a multiple of 16) apart, zero padded.
  int mean_units = 0, mean_stride = 0;
  AlignedBuffer<float> mean_re, mean_im;  // mu, times the RoPE attention factor, at the tile's centre
  std::shared_ptr<const PhaseTable> phases;

  std::vector<GroupCodes> key_codes;  // [groups]
  GroupCodes value_codes;
};

struct CodesScratch::Impl {
  AlignedBuffer<uint8_t> codes;  // decoded units of a tile: keys, then values
  AlignedBuffer<float> norms;    // [groups][64] key norms, [64] log2 of value norms, [64] their inverses
  AlignedBuffer<float> phase;    // cos, sin of the tile's start for the mean's blocks
  AlignedBuffer<float> state;    // a query: running sums and unreduced outputs
  AlignedBuffer<float> latent_tiles, latent_exact, latent_sums;  // attention_latent.cc
  AlignedBuffer<float> encode;
  AlignedBuffer<uint8_t> encode_codes;
};

struct PreparedQueries::Impl {
  int count = 0;
  AlignedBuffer<uint8_t> operands;   // [count][pass_units][64]: a unit's query bytes as the dot products want
  AlignedBuffer<int32_t> start;      // [count][passes][4]: accumulator start (undoes the +128 of codes)
  AlignedBuffer<float> scale;        // [count][passes][2]: logit = norm * (scale * dot + offset)
  AlignedBuffer<float> mean;         // [count][2][mean_stride]: q* mu, real and imaginary
  AlignedBuffer<float> rotated;      // [count][P] scratch
  AlignedBuffer<int8_t> high, low;   // [P] scratch: a query's bytes
  AlignedBuffer<float> group_scale;  // [groups] scratch
  // Of latents (attention_latent.cc), instead of all above but count.
  AlignedBuffer<float> latent;      // [count][coordinates]
  std::vector<float> latent_logit;  // [count] what the latent's mean adds to every logit
  float latent_scale = 1;
};

}  // namespace blockgtq::cpu
