// The GPU that a backend runs on: its stream, its limits, and a count that tells captured graphs when memory
// they point to has moved.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "blockgtq/status.h"
#include "src/cuda/decode_attention.h"
#include "src/cuda/device_memory.h"

struct CUstream_st;

namespace blockgtq::cuda {

class Device {
 public:
  /// Makes device `index` the current one of the process. Errors: kUnsupported when it is absent or has no
  /// kernels here.
  static Result<std::unique_ptr<Device>> Open(int index);
  ~Device();

  CUstream_st* stream() const { return stream_; }
  const DeviceLimits& limits() const { return limits_; }
  /// "NVIDIA H200, 139.8 GiB".
  const std::string& name() const { return name_; }

  /// Grows `buffer` to at least `bytes` (its content is lost). what: begins the error's text. Errors:
  /// kOutOfMemory.
  Status Reserve(DeviceBuffer& buffer, int64_t bytes, const std::string& what);
  /// Changes whenever a captured graph may be stale: memory that it uses was freed or moved, or activations
  /// are held in other forms.
  uint64_t generation() const { return generation_; }
  void NoteMoved() { ++generation_; }

  /// Waits for the stream. Errors: what a kernel or copy ended with.
  Status Synchronize();

 private:
  Device() = default;
  CUstream_st* stream_ = nullptr;
  DeviceLimits limits_;
  std::string name_;
  uint64_t generation_ = 0;
};

}  // namespace blockgtq::cuda
