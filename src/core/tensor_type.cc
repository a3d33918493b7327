// The table of readable tensor types, and row access on top of it. The block decoders are in dequantize.cc.
#include "src/core/tensor_type.h"

#include <cassert>

#include "src/core/dequantize.h"

namespace blockgtq {
namespace {

constexpr TensorTypeInfo kTypes[] = {
    {TensorType::kF32, "F32", 1, 4, DequantizeF32},
    {TensorType::kF16, "F16", 1, 2, DequantizeF16},
    {TensorType::kQ4_0, "Q4_0", 32, 18, DequantizeQ4_0},
    {TensorType::kQ4_1, "Q4_1", 32, 20, DequantizeQ4_1},
    {TensorType::kQ5_0, "Q5_0", 32, 22, DequantizeQ5_0},
    {TensorType::kQ5_1, "Q5_1", 32, 24, DequantizeQ5_1},
    {TensorType::kQ8_0, "Q8_0", 32, 34, DequantizeQ8_0},
    {TensorType::kQ4_K, "Q4_K", 256, 144, DequantizeQ4_K},
    {TensorType::kQ5_K, "Q5_K", 256, 176, DequantizeQ5_K},
    {TensorType::kQ6_K, "Q6_K", 256, 210, DequantizeQ6_K},
    {TensorType::kBF16, "BF16", 1, 2, DequantizeBF16},
};

}  // namespace

const TensorTypeInfo* FindTensorType(uint32_t gguf_type) {
  for (const TensorTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == gguf_type) return &info;
  }
  return nullptr;
}

const TensorTypeInfo& GetTensorType(TensorType type) {
  const TensorTypeInfo* info = FindTensorType(static_cast<uint32_t>(type));
  assert(info != nullptr && "every enumerator has a row in kTypes");
  return *info;
}

std::span<const TensorTypeInfo> TensorTypes() { return kTypes; }

int64_t TensorView::row_bytes() const {
  const TensorTypeInfo& info = GetTensorType(type);
  return cols / info.block_elements * info.block_bytes;
}

void DequantizeRow(const TensorView& tensor, int64_t row, float* dst) {
  const TensorTypeInfo& info = GetTensorType(tensor.type);
  info.dequantize(tensor.data + row * tensor.row_bytes(), tensor.cols / info.block_elements, dst);
}

}  // namespace blockgtq
