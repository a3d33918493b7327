// Where a cache's bytes live: in the host's memory, or on a device. The cache keeps its books on the host and
// reaches the bytes only through this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "blockgtq/status.h"

namespace blockgtq {

class CacheMemory {
 public:
  virtual ~CacheMemory() = default;

  /// Zeroed bytes, at least 256-byte aligned. what: begins the error's text ("KV cache of 4096 tokens").
  /// Errors: kOutOfMemory, which states the bytes wanted.
  virtual Result<std::byte*> Allocate(int64_t bytes, const std::string& what) = 0;
  virtual void Free(std::byte* data, int64_t bytes) = 0;

  /// Bytes in whole units of this, aligned to it within an allocation, are cheap to clear and stop being
  /// resident where memory grows as it is written.
  virtual int64_t granularity() const = 0;
  /// Makes bytes zero. A device's failure shows in the next Copy, Read or Write, or in the next kernel.
  virtual void Clear(std::byte* data, int64_t bytes) = 0;
  /// Copies between two places of this memory that do not overlap.
  virtual Status Copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  /// Copies from here to the host; everything launched on the device before is done by then.
  virtual Status Read(std::byte* host, const std::byte* from, int64_t bytes) = 0;
  virtual Status Write(std::byte* to, const std::byte* host, int64_t bytes) = 0;

  /// How keys lie in the pages of an uncompressed cache: [head_dim, 64 tokens] (false), or [64 tokens,
  /// head_dim] (true), as the library kernels of GPUs want them. Sessions hold the former.
  virtual bool keys_by_token() const = 0;
};

/// Private anonymous memory, resident only as it is written.
CacheMemory& HostMemory();

/// An allocation that frees itself.
class CacheRegion {
 public:
  CacheRegion() = default;
  CacheRegion(CacheRegion&& other) noexcept;
  CacheRegion& operator=(CacheRegion&& other) noexcept;
  ~CacheRegion();

  /// bytes = 0 gives an empty region. Errors: those of CacheMemory::Allocate.
  static Result<CacheRegion> Allocate(CacheMemory& memory, int64_t bytes, const std::string& what);

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  CacheMemory* memory_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace blockgtq
