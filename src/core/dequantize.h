// Decoders of GGUF's block formats, one a type: the functions behind TensorTypeInfo::dequantize.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blockgtq {

// Each widens `blocks` consecutive blocks at `src` (any alignment) to floats at `dst`.
void DequantizeF32(const std::byte* src, int64_t blocks, float* dst);
void DequantizeF16(const std::byte* src, int64_t blocks, float* dst);
void DequantizeBF16(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ4_0(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ4_1(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ5_0(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ5_1(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ8_0(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ4_K(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ5_K(const std::byte* src, int64_t blocks, float* dst);
void DequantizeQ6_K(const std::byte* src, int64_t blocks, float* dst);

}  // namespace blockgtq
