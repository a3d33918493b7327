// Encoders of GGUF's formats: the reverse of dequantize.h for the types that models are converted to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/tensor_type.h"

namespace blockgtq {

/// Rounds a row of cols floats to F32, F16, BF16 or Q8_0 at dst (cols / block_elements * block_bytes bytes;
/// cols is a multiple of block_elements). Q8_0: scale = largest magnitude / 127, rounded to fp16 after the
/// codes were made with it. Source: ggml-quants.c, quantize_row_q8_0_ref. Returns the first column whose
/// value, or whose block's scale, is not finite in the type, or -1.
int64_t QuantizeRow(const float* src, int64_t cols, TensorType type, std::byte* dst);
/// Whether QuantizeRow has the type.
bool HasQuantizer(TensorType type);

}  // namespace blockgtq
