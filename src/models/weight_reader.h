// Takes tensors out of a model source and checks their shapes.
#pragma once

#include <memory>
#include <string>

#include "src/models/model.h"

namespace blockgtq {

/// Names are GGUF's, whatever the file (formats/model_source.h). Every tensor asked for counts as used:
/// ModelSource::CheckAllTaken refuses the rest.
class WeightReader {
 public:
  WeightReader(const ModelSource& source, Backend& backend) : source_(source), backend_(backend) {}
  bool Has(const std::string& name) const { return source_.Find(name) != nullptr; }
  /// A [rows, cols] matrix. Errors: kCorruptFile when absent or of another shape.
  Result<std::unique_ptr<Weight>> Matrix(const std::string& name, int64_t rows, int64_t cols) const;
  /// Rows [first, first + count) of a [rows, cols] matrix: one of several that are stored as one (q, k and v;
  /// gate and up), or one expert's.
  Result<std::unique_ptr<Weight>> MatrixRows(const std::string& name, int64_t rows, int64_t cols,
                                             int64_t first, int64_t count) const;
  /// The same rows as they are stored.
  Result<TensorView> Rows(const std::string& name, int64_t rows, int64_t cols, int64_t first,
                          int64_t count) const;
  /// A matrix that was made of stored rows; its bytes must outlive the weight. name: for messages.
  Result<std::unique_ptr<Weight>> Made(const TensorView& matrix, const std::string& name) const {
    return backend_.LoadMatrix(matrix, name);
  }
  /// A [size] vector.
  Result<std::unique_ptr<Weight>> Vector(const std::string& name, int64_t size) const;
  /// Elements [first, first + count) of a [size] vector.
  Result<std::unique_ptr<Weight>> VectorPart(const std::string& name, int64_t size, int64_t first,
                                             int64_t count) const;
  /// The same, or null when the file has no such tensor.
  Result<std::unique_ptr<Weight>> OptionalMatrix(const std::string& name, int64_t rows, int64_t cols) const;
  Result<std::unique_ptr<Weight>> OptionalVector(const std::string& name, int64_t size) const;

 private:
  Result<const ModelTensor*> Find(const std::string& name, int64_t rows, int64_t cols) const;
  const ModelSource& source_;
  Backend& backend_;
};

}  // namespace blockgtq
