// Matrix products on the GPU: y = alpha W x (+ bias) (+ y), fp16 weights and inputs, fp32 sums and outputs.
//
// Up to 16 rows of input go to an own kernel that is bound by reading the weights (gemv.h); more to cuBLASLt,
// which is loaded on first use.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "blockgtq/status.h"
#include "src/cuda/matmul_item.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// Products of one device, on one stream at a time (they share a workspace). Not thread-safe.
class MatMul {
 public:
  /// processors: of the current device (DeviceLimits).
  explicit MatMul(int processors);
  ~MatMul();
  MatMul(MatMul&&) noexcept;
  MatMul& operator=(MatMul&&) noexcept;

  /// Loads cuBLASLt and allocates its workspace. Run does it when it first meets many rows; call it before a
  /// stream that will need them is captured.
  /// Errors: kUnsupported naming the library that was not found; kOutOfMemory.
  Status Prepare();

  /// All products share the input x = x_hi + x_lo / kLowHalfScale, fp16 [rows, in]; x_lo may be null.
  /// Alignment: all pointers 16 bytes. early: as LaunchGemv; with many rows it has no effect.
  /// Errors: kInvalidArgument for empty shapes; kUnsupported when in is not a multiple of 8; those of
  /// Prepare.
  Status Run(std::span<const MatMulItem> items, const uint16_t* x_hi, const uint16_t* x_lo, int64_t rows,
             int64_t in, bool early, CUstream_st* stream);

  /// The products of Run by cuBLASLt, however few the rows.
  Status RunLibrary(std::span<const MatMulItem> items, const uint16_t* x_hi, const uint16_t* x_lo,
                    int64_t rows, int64_t in, CUstream_st* stream);
  /// Whether Run would need cuBLASLt.
  static bool NeedsLibrary(int64_t rows, bool has_low);

 private:
  struct Library;
  int processors_;
  std::unique_ptr<Library> library_;
};

}  // namespace blockgtq::cuda
