// Products of stored weight matrices with activations, on a thread pool. Weights stay in their GGUF type.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "src/core/tensor_type.h"
#include "src/core/thread_pool.h"

namespace blockgtq::cpu {

/// How activations enter a product.
enum class ActivationMode {
  kInt8,   // rounded to int8 with one scale a 32 elements: integer dot products (fast; the default)
  kFloat,  // float32 throughout: weights widened a panel at a time (exact; used for scoring)
};

/// One product that shares its input with the others of a call: y[t] = W x[t] (+ bias) (+ y[t] when
/// accumulate).
struct MatMulOutput {
  TensorView weight;            // [rows, cols]
  const float* bias = nullptr;  // [rows] or nullptr
  float* y = nullptr;           // [tokens, rows], row stride y_stride
  int64_t y_stride = 0;
  bool accumulate = false;
};

/// Reusable scratch of the calls of one engine (quantised activations, unpacked panels a thread).
class MatMulScratch {
 public:
  MatMulScratch();
  ~MatMulScratch();
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Computes every output for x [tokens, cols] (row stride x_stride). All weights have the same cols, a
/// multiple of 32 (F32, F16, BF16: any). The result does not depend on the number of threads, and in a given
/// mode not on how tokens are split over calls.
void MatMul(ThreadPool& pool, ActivationMode mode, std::span<const MatMulOutput> outputs, const float* x,
            int64_t tokens, int64_t x_stride, MatMulScratch& scratch);

}  // namespace blockgtq::cpu
