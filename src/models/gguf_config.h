// Reading a decoder's dimensions and tensors from GGUF, with every disagreement named. Shared by the
// architectures.
#pragma once

#include <memory>
#include <string>

#include "src/models/model.h"

namespace blockgtq {

/// The keys common to decoder families ({arch}.block_count and so on) and llama3 / linear RoPE scaling;
/// `pairing` is the family's. Errors: kCorruptFile (missing or contradicting keys), kUnsupported (RoPE
/// scaling types other than none, linear and llama3's factors; per-layer head counts; a sliding window).
Result<ModelConfig> ReadModelConfig(const GgufFile& file, RopePairing pairing);

/// Takes tensors out of a file and checks their shapes.
class WeightReader {
 public:
  WeightReader(const GgufFile& file, Backend& backend) : file_(file), backend_(backend) {}
  /// A [rows, cols] matrix. Errors: kCorruptFile when absent or of another shape.
  Result<std::unique_ptr<Weight>> Matrix(const std::string& name, int64_t rows, int64_t cols) const;
  /// A [size] vector.
  Result<std::unique_ptr<Weight>> Vector(const std::string& name, int64_t size) const;
  /// The same, or null when the file has no such tensor.
  Result<std::unique_ptr<Weight>> OptionalMatrix(const std::string& name, int64_t rows, int64_t cols) const;
  Result<std::unique_ptr<Weight>> OptionalVector(const std::string& name, int64_t size) const;

 private:
  Result<const GgufTensor*> Find(const std::string& name, int64_t rows, int64_t cols) const;
  const GgufFile& file_;
  Backend& backend_;
};

}  // namespace blockgtq
