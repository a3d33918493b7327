// The packed record: codebooks, the place of units and norms, and access to single codes.
#include "src/codec/record.h"

#include <algorithm>
#include <cmath>

#include "src/core/lloyd_max.h"

namespace blockgtq {
namespace {

constexpr int8_t kCentroids1[2] = {-127, 127};
constexpr int8_t kCentroids2[4] = {-110, -33, 33, 110};
constexpr int8_t kCentroids3[8] = {-88, -55, -31, -10, 10, 31, 55, 88};
// Widths 4 and 5: magnitudes less one half.
constexpr int8_t kMagnitudes4[8] = {5, 16, 27, 39, 52, 67, 86, 114};
constexpr int8_t kMagnitudes5[16] = {2, 7, 12, 17, 22, 27, 33, 39, 45, 51, 58, 66, 75, 86, 100, 121};

// Index of the nearest of ascending integers; the midpoints are compared as exact half integers.
int NearestIndex(std::span<const int8_t> values, float x) {
  int index = 0;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    index += x >= 0.5f * static_cast<float>(values[i] + values[i + 1]);
  }
  return index;
}

int NearestSigned(std::span<const int8_t> magnitudes, int sign_bit, float x) {
  const int index = NearestIndex(magnitudes, std::fabs(x) - 0.5f);
  return x < 0.0f ? index | sign_bit : index;
}

int Int8Code(float x) { return static_cast<int>(std::clamp(std::round(x), -127.0f, 127.0f)) & 0xff; }

int NearestLloydMax(int code_width, float x) {
  const LloydMaxCodebook& book = LloydMax(code_width);
  const auto above = std::upper_bound(book.thresholds.begin(), book.thresholds.end(), static_cast<double>(x));
  return Int8Code(static_cast<float>(book.centroids[above - book.thresholds.begin()]) * CodebookScale(8));
}

// The byte of a unit that holds `bit` of word `word` of lane `lane`, words being little-endian.
size_t ByteOf(int lane, int word, int bit) {
  return 4 * static_cast<size_t>(word * 32 + lane) + static_cast<size_t>(bit >> 3);
}

}  // namespace

int CodebookInt(int width, int code) {
  switch (width) {
    case 1:
      return kCentroids1[code & 1];
    case 2:
      return kCentroids2[code & 3];
    case 3:
      return kCentroids3[code & 7];
    case 4:
      return code & 8 ? ~kMagnitudes4[code & 7] : kMagnitudes4[code & 7];
    case 5:
      return code & 16 ? ~kMagnitudes5[code & 15] : kMagnitudes5[code & 15];
    default:
      return static_cast<int8_t>(code);
  }
}

float CodebookHalf(int width) { return width == 4 || width == 5 ? 0.5f : 0.0f; }

float CodebookScale(int width) {
  constexpr float kScales[6] = {0.0f, 159.17090f, 72.83102f, 40.90403f, 41.86100f, 37.31166f};
  return width >= 1 && width <= 5 ? kScales[width] : 32.4f;
}

int NearestCode(int width, int code_width, float x) {
  const float scaled = x * CodebookScale(width);
  switch (width) {
    case 1:
      return NearestIndex(kCentroids1, scaled);
    case 2:
      return NearestIndex(kCentroids2, scaled);
    case 3:
      return NearestIndex(kCentroids3, scaled);
    case 4:
      return NearestSigned(kMagnitudes4, 8, scaled);
    case 5:
      return NearestSigned(kMagnitudes5, 16, scaled);
    default:
      return code_width < 8 ? NearestLloydMax(code_width, x) : Int8Code(scaled);
  }
}

int GetCode(const std::byte* unit, int width, UnitPlace place) {
  int code = 0;
  ForEachCodeBit(width, place.quad, place.code, [&](int word, int bit, int code_bit) {
    const int byte = std::to_integer<int>(unit[ByteOf(place.lane, word, bit)]);
    code |= ((byte >> (bit & 7)) & 1) << code_bit;
  });
  return code;
}

void SetCode(std::byte* unit, int width, UnitPlace place, int code) {
  ForEachCodeBit(width, place.quad, place.code, [&](int word, int bit, int code_bit) {
    std::byte& byte = unit[ByteOf(place.lane, word, bit)];
    const std::byte mask = std::byte{1} << (bit & 7);
    byte = (code >> code_bit) & 1 ? byte | mask : byte & ~mask;
  });
}

RecordLayout RecordLayout::For(const HeadPlan& plan) {
  const int norm_bytes = kPageTokens * (plan.norm_type == NormType::kHalf ? 2 : 1);
  RecordLayout layout;
  int offset = 0;
  for (const GroupPlan& group : plan.groups) {
    for (int u = 0; u < group.units; ++u, offset += UnitBytes(group.width)) layout.key_unit.push_back(offset);
  }
  for (size_t g = 0; g < plan.groups.size(); ++g, offset += norm_bytes) layout.key_norm.push_back(offset);
  for (int u = 0; u < plan.value.units; ++u, offset += UnitBytes(plan.value.width)) {
    layout.value_unit.push_back(offset);
  }
  layout.value_norm = offset;
  if (plan.value.units > 0) offset += norm_bytes;
  layout.bytes = (offset + 15) / 16 * 16;
  return layout;
}

void EraseTokens(const RecordLayout& layout, const HeadPlan& plan, int first_slot,
                 std::span<std::byte> record) {
  const int norm_bytes = plan.norm_type == NormType::kHalf ? 2 : 1;
  const auto erase_norm = [&](int offset, int token) {
    std::fill_n(record.begin() + offset + NormSlot(token) * norm_bytes, norm_bytes, std::byte{0});
  };
  for (int token = std::max(first_slot, 0); token < kPageTokens; ++token) {
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      for (int dim = 0; dim < kUnitDims * group.units; ++dim) {
        SetCode(record.data() + layout.key_unit[group.first_unit + dim / kUnitDims], group.width,
                KeyPlace(token, dim % kUnitDims), 0);
      }
      erase_norm(layout.key_norm[g], token);
    }
    for (int dim = 0; dim < kUnitDims * plan.value.units; ++dim) {
      SetCode(record.data() + layout.value_unit[dim / kUnitDims], plan.value.width,
              ValuePlace(token, dim % kUnitDims), 0);
    }
    if (plan.value.units > 0) erase_norm(layout.value_norm, token);
  }
}

}  // namespace blockgtq
