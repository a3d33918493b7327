// Element types of stored tensors (GGUF's numbering), their block sizes, and exact dequantisation of one row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockgtq/status.h"

namespace blockgtq {

/// GGUF tensor types this build reads. The values are GGUF's own.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct TensorTypeInfo {
  TensorType type;
  const char* name;
  int block_elements;  // elements a block; a row is a whole number of blocks
  int block_bytes;
  /// Widens `blocks` consecutive blocks at `src` to `dst` (blocks * block_elements floats). Exact to one
  /// rounding.
  void (*dequantize)(const std::byte* src, int64_t blocks, float* dst);
};

/// The table's row for `type`, or nullptr when this build does not read it.
const TensorTypeInfo* FindTensorType(uint32_t gguf_type);
const TensorTypeInfo& GetTensorType(TensorType type);
/// All rows, for tests and messages.
std::span<const TensorTypeInfo> TensorTypes();

/// A matrix in its stored type, not owned. Rows are contiguous: row r starts at data + r * row_bytes.
struct TensorView {
  TensorType type = TensorType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;  // a multiple of the type's block_elements
  int64_t row_bytes() const;
  bool empty() const { return data == nullptr; }
};

/// Widens row `row` of `tensor` to `dst` [cols].
void DequantizeRow(const TensorView& tensor, int64_t row, float* dst);

}  // namespace blockgtq
