// Takes weights from the host to the device: matrices as fp16, vectors as fp32, whatever type they are stored
// in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "blockgtq/status.h"
#include "src/core/tensor_type.h"
#include "src/cuda/device_memory.h"

namespace blockgtq::cuda {

/// Widens, rounds and uploads in slices: several threads prepare one slice in pinned memory while the one
/// before it is on its way. For the current device. Not thread-safe.
class WeightUploader {
 public:
  /// threads: of the host, at least 1. Errors: kOutOfMemory (64 MiB of pinned memory); kUnsupported without a
  /// device.
  static Result<std::unique_ptr<WeightUploader>> Create(int threads);
  ~WeightUploader();

  /// fp16 [rows, cols], row-major. The copy is complete when this returns. name: for messages.
  /// Errors: kUnsupported naming the element that is not finite in fp16; kOutOfMemory.
  Result<DeviceBuffer> Matrix(const TensorView& tensor, const std::string& name);
  /// fp32 [rows * cols].
  Result<DeviceBuffer> Vector(const TensorView& tensor, const std::string& name);

 private:
  WeightUploader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockgtq::cuda
