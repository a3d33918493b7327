// The CPU backend: float32 activations in host memory, weights read from the mapped file, kernels in Highway.
#pragma once

#include <memory>

#include "src/backend/backend.h"

namespace blockgtq::cpu {

/// options.threads 0: one a core.
Result<std::unique_ptr<Backend>> CreateCpuBackend(const BackendOptions& options);

/// Float activations, row-major, 64-byte aligned.
class CpuActivations : public Activations {
 public:
  CpuActivations(int64_t rows, int64_t cols);
  /// A view of memory that outlives it and need not be aligned.
  CpuActivations(float* data, int64_t rows, int64_t cols)
      : Activations(rows, cols), data_(data, Free(false)) {}
  float* row(int64_t r) { return data_.get() + r * cols_; }
  const float* row(int64_t r) const { return data_.get() + r * cols_; }

 private:
  struct Free {
    explicit Free(bool owned) : owned(owned) {}
    bool owned;
    void operator()(float* p) const;
  };
  std::unique_ptr<float[], Free> data_;
};

}  // namespace blockgtq::cpu
