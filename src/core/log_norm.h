// 8-bit logarithmic norms: byte b stands for reference * 2^((b - 128) / 32).
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace blockgtq {

/// Nearest byte (in log) of a norm >= 0; norms outside the 8-octave window clamp to its ends.
inline uint8_t EncodeLogNorm(float norm, float reference) {
  if (!(norm > 0.0f)) return 0;
  const float b = std::round(std::log2(norm / reference) * 32.0f) + 128.0f;
  return b <= 0.0f ? 0 : b >= 255.0f ? 255 : static_cast<uint8_t>(b);
}

inline float DecodeLogNorm(uint8_t code, float reference) {
  return reference * std::exp2(static_cast<float>(static_cast<int>(code) - 128) / 32.0f);
}

/// The reference whose window loses least of these observed norms (sum of squared clamping errors), with up
/// to half an octave of headroom above the largest where the window has room. 1 when no norm is positive.
float ChooseNormReference(std::span<const float> norms);

}  // namespace blockgtq
