// See weight_reader.h.
#include "src/models/weight_reader.h"

#include <fmt/format.h>

#include <array>

namespace blockgtq {

Result<const ModelTensor*> WeightReader::Find(const std::string& name, int64_t rows, int64_t cols) const {
  const ModelTensor* tensor = source_.Take(name);
  if (tensor == nullptr) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: tensor {} is missing", source_.name(), source_.Spell(name)));
  }
  if (tensor->rows != rows || tensor->cols != cols) {
    const std::array<int64_t, 2> wanted = {rows, cols};
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: tensor {}: shape {} where the model's dimensions want {}", source_.name(),
                              tensor->stored_name, ShapeText(tensor->shape), ShapeText(wanted)));
  }
  return tensor;
}

Result<std::unique_ptr<Weight>> WeightReader::Matrix(const std::string& name, int64_t rows,
                                                     int64_t cols) const {
  return MatrixRows(name, rows, cols, 0, rows);
}

Result<std::unique_ptr<Weight>> WeightReader::MatrixRows(const std::string& name, int64_t rows, int64_t cols,
                                                         int64_t first, int64_t count) const {
  BGTQ_ASSIGN_OR_RETURN(const TensorView view, Rows(name, rows, cols, first, count));
  return backend_.LoadMatrix(view, source_.Find(name)->stored_name);
}

Result<TensorView> WeightReader::Rows(const std::string& name, int64_t rows, int64_t cols, int64_t first,
                                      int64_t count) const {
  BGTQ_ASSIGN_OR_RETURN(const ModelTensor* tensor, Find(name, rows, cols));
  Result<TensorView> view = tensor->Rows(first, count);
  if (!view.ok()) return view.status().WithContext(source_.name());
  return view;
}

Result<std::unique_ptr<Weight>> WeightReader::Vector(const std::string& name, int64_t size) const {
  BGTQ_ASSIGN_OR_RETURN(const ModelTensor* tensor, Find(name, 1, size));
  return backend_.LoadVector(tensor->parts.front(), tensor->stored_name);
}

Result<std::unique_ptr<Weight>> WeightReader::VectorPart(const std::string& name, int64_t size, int64_t first,
                                                         int64_t count) const {
  BGTQ_ASSIGN_OR_RETURN(const ModelTensor* tensor, Find(name, 1, size));
  const Result<TensorView> view = tensor->Elements(first, count);
  if (!view.ok()) return view.status().WithContext(source_.name());
  return backend_.LoadVector(*view, tensor->stored_name);
}

Result<std::unique_ptr<Weight>> WeightReader::OptionalMatrix(const std::string& name, int64_t rows,
                                                             int64_t cols) const {
  if (!Has(name)) return std::unique_ptr<Weight>();
  return Matrix(name, rows, cols);
}

Result<std::unique_ptr<Weight>> WeightReader::OptionalVector(const std::string& name, int64_t size) const {
  if (!Has(name)) return std::unique_ptr<Weight>();
  return Vector(name, size);
}

}  // namespace blockgtq
