// Memory of the GPU and pinned memory of the host, owned: freed when the owner goes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "blockgtq/status.h"

namespace blockgtq::cuda {

/// Memory of the current device; contents are undefined until written.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  /// what: begins the error's text ("KV cache of 4096 tokens"). bytes = 0 gives an empty buffer. The memory
  /// is 256-byte aligned. Errors: kOutOfMemory, which states the bytes wanted and free; kInvalidArgument for
  /// a negative size.
  static Result<DeviceBuffer> Allocate(int64_t bytes, const std::string& what);

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Host memory that the GPU copies from and to at full speed, asynchronously.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer();

  /// As DeviceBuffer::Allocate, of host memory.
  static Result<PinnedBuffer> Allocate(int64_t bytes, const std::string& what);

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

struct DeviceMemoryInfo {
  int64_t free = 0, total = 0;  // bytes
};
/// Of the current device. Errors: kUnsupported when there is none.
Result<DeviceMemoryInfo> ReadDeviceMemory();

}  // namespace blockgtq::cuda
