// Decoders of GGUF's block formats. Source: the GGUF block layouts (ggml's quantisation formats).
//
// Rounding: a half has 11 significant bits, scales and codes together at most 13, so every product below is
// exact in float; only the sums of the types with a minimum (Q4_1, Q5_1, Q4_K, Q5_K) round, once.
#include "src/core/dequantize.h"

#include <array>
#include <cstring>

#include "src/core/half.h"

namespace blockgtq {
namespace {

// Blocks as stored: bytes only, so that they have no padding and may lie at any address.
struct HalfBytes {
  uint8_t bytes[2];
  float ToFloat() const { return HalfToFloat(static_cast<uint16_t>(bytes[0] | bytes[1] << 8)); }
};

struct BlockQ4_0 {
  HalfBytes scale;
  uint8_t codes[16];  // element j: low nibble of byte j; element 16 + j: high nibble
};
struct BlockQ4_1 {
  HalfBytes scale, minimum;
  uint8_t codes[16];
};
struct BlockQ5_0 {
  HalfBytes scale;
  uint8_t high[4];  // bit j (little-endian): fifth bit of element j
  uint8_t codes[16];
};
struct BlockQ5_1 {
  HalfBytes scale, minimum;
  uint8_t high[4];
  uint8_t codes[16];
};
struct BlockQ8_0 {
  HalfBytes scale;
  int8_t codes[32];
};
struct BlockQ4_K {
  HalfBytes scale, minimum;
  uint8_t scales[12];  // 8 pairs of 6-bit (scale, minimum), one a 32 elements; UnpackScales
  uint8_t codes[128];  // 64 elements every 32 bytes: low nibbles, then high nibbles
};
struct BlockQ5_K {
  HalfBytes scale, minimum;
  uint8_t scales[12];
  uint8_t high[32];  // bit s of byte l: fifth bit of element 32 s + l
  uint8_t codes[128];
};
struct BlockQ6_K {
  uint8_t low[128];   // low nibbles, 128 elements every 64 bytes
  uint8_t high[64];   // upper two bits, 128 elements every 32 bytes
  int8_t scales[16];  // one a 16 elements
  HalfBytes scale;
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);

template <typename Block>
Block Load(const std::byte* src, int64_t block) {
  Block loaded;
  std::memcpy(&loaded, src + block * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return loaded;
}

// 32 five-bit codes from 16 bytes of nibbles and 32 high bits.
std::array<uint8_t, 32> UnpackFiveBits(const uint8_t (&codes)[16], const uint8_t (&high)[4]) {
  std::array<uint8_t, 32> out;
  for (int j = 0; j < 16; ++j) {
    const int low_bit = high[j / 8] >> (j % 8) & 1;
    const int high_bit = high[2 + j / 8] >> (j % 8) & 1;
    out[j] = static_cast<uint8_t>((codes[j] & 15) | low_bit << 4);
    out[16 + j] = static_cast<uint8_t>(codes[j] >> 4 | high_bit << 4);
  }
  return out;
}

// The 6-bit scales and minima of a Q4_K or Q5_K block. Bytes 0..3 and 4..7 hold the first four scales and
// minima in their low 6 bits, and in their top 2 bits the upper bits of the last four, whose low nibbles
// are in bytes 8..11 (scale low, minimum high).
struct ScalesAndMinima {
  uint8_t scale[8], minimum[8];
};
ScalesAndMinima UnpackScales(const uint8_t (&packed)[12]) {
  ScalesAndMinima out;
  for (int j = 0; j < 4; ++j) {
    out.scale[j] = packed[j] & 63;
    out.minimum[j] = packed[4 + j] & 63;
    out.scale[4 + j] = static_cast<uint8_t>((packed[8 + j] & 15) | packed[j] >> 6 << 4);
    out.minimum[4 + j] = static_cast<uint8_t>(packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4);
  }
  return out;
}

uint16_t LoadU16(const std::byte* src, int64_t index) {
  return static_cast<uint16_t>(static_cast<unsigned>(src[2 * index]) |
                               static_cast<unsigned>(src[2 * index + 1]) << 8);
}

}  // namespace

void DequantizeF32(const std::byte* src, int64_t blocks, float* dst) {
  std::memcpy(dst, src, static_cast<size_t>(blocks) * sizeof(float));
}

void DequantizeF16(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i) dst[i] = HalfToFloat(LoadU16(src, i));
}

void DequantizeBF16(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i) dst[i] = Bf16ToFloat(LoadU16(src, i));
}

void DequantizeQ4_0(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 32) {
    const auto block = Load<BlockQ4_0>(src, i);
    const float scale = block.scale.ToFloat();
    for (int j = 0; j < 16; ++j) {
      dst[j] = scale * static_cast<float>((block.codes[j] & 15) - 8);
      dst[16 + j] = scale * static_cast<float>((block.codes[j] >> 4) - 8);
    }
  }
}

void DequantizeQ4_1(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 32) {
    const auto block = Load<BlockQ4_1>(src, i);
    const float scale = block.scale.ToFloat(), minimum = block.minimum.ToFloat();
    for (int j = 0; j < 16; ++j) {
      dst[j] = scale * static_cast<float>(block.codes[j] & 15) + minimum;
      dst[16 + j] = scale * static_cast<float>(block.codes[j] >> 4) + minimum;
    }
  }
}

void DequantizeQ5_0(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 32) {
    const auto block = Load<BlockQ5_0>(src, i);
    const float scale = block.scale.ToFloat();
    const auto codes = UnpackFiveBits(block.codes, block.high);
    for (int j = 0; j < 32; ++j) dst[j] = scale * static_cast<float>(codes[j] - 16);
  }
}

void DequantizeQ5_1(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 32) {
    const auto block = Load<BlockQ5_1>(src, i);
    const float scale = block.scale.ToFloat(), minimum = block.minimum.ToFloat();
    const auto codes = UnpackFiveBits(block.codes, block.high);
    for (int j = 0; j < 32; ++j) dst[j] = scale * static_cast<float>(codes[j]) + minimum;
  }
}

void DequantizeQ8_0(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 32) {
    const auto block = Load<BlockQ8_0>(src, i);
    const float scale = block.scale.ToFloat();
    for (int j = 0; j < 32; ++j) dst[j] = scale * static_cast<float>(block.codes[j]);
  }
}

void DequantizeQ4_K(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 256) {
    const auto block = Load<BlockQ4_K>(src, i);
    const float scale = block.scale.ToFloat(), minimum = block.minimum.ToFloat();
    const ScalesAndMinima sub = UnpackScales(block.scales);
    for (int s = 0; s < 8; ++s) {  // sub-block of 32 elements
      const float sub_scale = scale * sub.scale[s], sub_minimum = minimum * sub.minimum[s];
      const uint8_t* codes = block.codes + s / 2 * 32;
      const int shift = s % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        dst[32 * s + l] = sub_scale * static_cast<float>(codes[l] >> shift & 15) - sub_minimum;
      }
    }
  }
}

void DequantizeQ5_K(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 256) {
    const auto block = Load<BlockQ5_K>(src, i);
    const float scale = block.scale.ToFloat(), minimum = block.minimum.ToFloat();
    const ScalesAndMinima sub = UnpackScales(block.scales);
    for (int s = 0; s < 8; ++s) {
      const float sub_scale = scale * sub.scale[s], sub_minimum = minimum * sub.minimum[s];
      const uint8_t* codes = block.codes + s / 2 * 32;
      const int shift = s % 2 * 4;
      for (int l = 0; l < 32; ++l) {
        const int code = (codes[l] >> shift & 15) | (block.high[l] >> s & 1) << 4;
        dst[32 * s + l] = sub_scale * static_cast<float>(code) - sub_minimum;
      }
    }
  }
}

void DequantizeQ6_K(const std::byte* src, int64_t blocks, float* dst) {
  for (int64_t i = 0; i < blocks; ++i, dst += 256) {
    const auto block = Load<BlockQ6_K>(src, i);
    const float scale = block.scale.ToFloat();
    for (int s = 0; s < 8; ++s) {  // runs of 32: halves of 128 elements, four runs each
      const int half = s / 4, run = s % 4;
      const uint8_t* low = block.low + 64 * half + 32 * (run % 2);
      const uint8_t* high = block.high + 32 * half;
      const int low_shift = run / 2 * 4, high_shift = run * 2;
      const float first = scale * block.scales[2 * s], second = scale * block.scales[2 * s + 1];
      for (int l = 0; l < 32; ++l) {
        const int code = (low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4;
        dst[32 * s + l] = (l < 16 ? first : second) * static_cast<float>(code - 32);
      }
    }
  }
}

}  // namespace blockgtq
