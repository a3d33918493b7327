// The packed record (contract): 64 consecutive tokens of one KV head of one layer.
//
//   K units | K norms | V^T units | V norms, size a multiple of 16; of latents: K units | K norms
//
// unit   16 dims x 64 tokens at width b = b planes of 32 words (little-endian): word p of lane l is 32-bit
//        word p * 32 + l. Lane l = 4 g + tq (g 0..7, tq 0..3) holds 8 quads of 4 codes; a quad is one int8
//        MMA operand register.
//
//        K unit, quad 2 mt + half, code j: token 16 mt + 8 half + g, dim 16 u + 4 tq + j
//
//        V unit, quad 4 ks + a, code j: token 16 (2 ks + (a >> 1)) + 2 tq + (j >> 1) + 8 (j & 1),
//        dim 16 u + g + 8 (a & 1)
//
// bits   nib = (q & 1) * 4 + j is the code's nibble in a word; see ForEachCodeBit.
//
// norms  kLog8: 64 bytes a group, token t at byte NormSlot(t); kHalf: 64 little-endian uint16, same slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/codec/plan.h"

namespace blockgtq {

/// Bytes of one unit at stored width b.
constexpr int UnitBytes(int width) { return 128 * width; }

/// Byte (or uint16) index of token t's norm in its group.
constexpr int NormSlot(int token) { return (token & 7) * 8 + (token >> 3); }

struct UnitPlace {
  int lane, quad, code;  // 0..31, 0..7, 0..3
};
constexpr UnitPlace KeyPlace(int token, int dim_in_unit) {
  return {(token & 7) * 4 + (dim_in_unit >> 2), 2 * (token >> 4) + ((token >> 3) & 1), dim_in_unit & 3};
}
constexpr UnitPlace ValuePlace(int token, int dim_in_unit) {
  const int m = token >> 4, r = token & 15;
  const int a = ((m & 1) << 1) | (dim_in_unit >> 3);
  return {(dim_in_unit & 7) * 4 + ((r & 7) >> 1), 4 * (m >> 1) + a, ((r & 1) << 1) | (r >> 3)};
}

/// Calls f(word, bit, code_bit) for every bit of the code at (quad, code) of a lane: code bit `code_bit` is
/// bit `bit` of the lane's word `word`. Width 3: three words of eight 3-bit nibbles; their fourth bits hold
/// quads 6 and 7. Width 4 adds a sign plane, width 5 a high-magnitude plane and a sign plane. Width 8: raw
/// bytes.
template <typename F>
constexpr void ForEachCodeBit(int width, int quad, int code, F f) {
  const int nibble = (quad & 1) * 4 + code;
  switch (width) {
    case 1:
      f(0, nibble * 4 + (quad >> 1), 0);
      break;
    case 2:
      for (int b = 0; b < 2; ++b) f(quad >> 2, nibble * 4 + ((quad >> 1) & 1) * 2 + b, b);
      break;
    case 8:
      for (int b = 0; b < 8; ++b) f(quad, 8 * code + b, b);
      break;
    default:  // 3, 4, 5
      for (int b = 0; b < 3; ++b) {
        if (quad < 6) {
          f(quad >> 1, nibble * 4 + b, b);
        } else {
          f(b, nibble * 4 + 3, b);
        }
      }
      if (width >= 4) f(3, 8 * code + 7 - quad, 3);
      if (width == 5) f(4, 8 * code + 7 - quad, 4);
  }
}

/// int8 codebooks: the decoded normalised value of `code` is (CodebookInt(w, code) + CodebookHalf(w)) /
/// CodebookScale(w). Widths 1..3: codes ascend with the value. 4, 5: magnitude index in the low bits, the top
/// bit is the sign; value n + 1/2 is stored n, or ~n when negative. 8: the code is the int8 itself (6 and 7
/// bits share it); -128 is not used. Source: Lloyd-Max centroids of the unit normal times the scale, rounded;
/// the scale is the one of least mean squared error. Excess over Lloyd-Max: 3b +0.01%, 4b +0.05%, 5b +0.4%.
int CodebookInt(int width, int code);
float CodebookHalf(int width);
float CodebookScale(int width);
/// The code of width `width` whose decoded value is nearest to `x`, a coordinate of unit variance. code_width
/// 6 or 7 (width 8): the nearest Lloyd-Max centroid of that many bits, rounded to the int8 grid. A tie goes
/// to the larger value, at widths 4, 5 to the larger magnitude (zero to the positive sign).
int NearestCode(int width, int code_width, float x);

/// Reads (writes) the code at `place` of the unit that starts at `unit`; SetCode leaves every other code as
/// it is.
int GetCode(const std::byte* unit, int width, UnitPlace place);
void SetCode(std::byte* unit, int width, UnitPlace place, int code);

/// Byte offsets inside a record of one head.
struct RecordLayout {
  std::vector<int> key_unit;    // [key_units]
  std::vector<int> key_norm;    // [groups]
  std::vector<int> value_unit;  // [value_units]
  int value_norm = 0;
  int bytes = 0;  // of the record, a multiple of 16
  static RecordLayout For(const HeadPlan& plan);
};

/// Zeroes codes and norms of the tokens at slots >= first_slot; other tokens' bits stay (cache rollback).
/// record: layout.bytes bytes.
void EraseTokens(const RecordLayout& layout, const HeadPlan& plan, int first_slot,
                 std::span<std::byte> record);

}  // namespace blockgtq
