// See quantize.h.
#include "src/core/quantize.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "src/core/half.h"

namespace blockgtq {
namespace {

template <typename T>
void Store(std::byte* dst, int64_t index, T value) {
  std::memcpy(dst + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

int64_t FirstNotFinite(const float* src, int64_t count, float (*rounded)(float)) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(rounded(src[i]))) return i;
  }
  return -1;
}

float Same(float x) { return x; }
float AsHalf(float x) { return HalfToFloat(FloatToHalf(x)); }
float AsBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

constexpr int kQ8Elements = 32, kQ8Bytes = 34;

/// False when the scale is not finite in fp16.
bool QuantizeQ8Block(const float* src, std::byte* dst) {
  float largest = 0;
  for (int i = 0; i < kQ8Elements; ++i) {
    if (!std::isfinite(src[i])) return false;
    largest = std::max(largest, std::abs(src[i]));
  }
  const float scale = largest / 127.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  const uint16_t half = FloatToHalf(scale);
  Store(dst, 0, half);
  for (int i = 0; i < kQ8Elements; ++i) {
    // A scale too small for an inverse makes codes of any size; its fp16 is 0, so 0 they are.
    const float code = std::isfinite(inverse) ? std::round(src[i] * inverse) : 0.0f;
    dst[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f)));
  }
  return std::isfinite(HalfToFloat(half));
}

}  // namespace

bool HasQuantizer(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16 ||
         type == TensorType::kQ8_0;
}

int64_t QuantizeRow(const float* src, int64_t cols, TensorType type, std::byte* dst) {
  switch (type) {
    case TensorType::kF32:
      std::memcpy(dst, src, static_cast<size_t>(cols) * sizeof(float));
      return FirstNotFinite(src, cols, Same);
    case TensorType::kF16:
      for (int64_t i = 0; i < cols; ++i) Store(dst, i, FloatToHalf(src[i]));
      return FirstNotFinite(src, cols, AsHalf);
    case TensorType::kBF16:
      for (int64_t i = 0; i < cols; ++i) Store(dst, i, FloatToBf16(src[i]));
      return FirstNotFinite(src, cols, AsBf16);
    case TensorType::kQ8_0:
      for (int64_t i = 0; i < cols; i += kQ8Elements) {
        if (!QuantizeQ8Block(src + i, dst + i / kQ8Elements * kQ8Bytes)) return i;
      }
      return -1;
    default:
      assert(false && "HasQuantizer says which types there are");
      return 0;
  }
}

}  // namespace blockgtq
