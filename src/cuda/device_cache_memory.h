// A KV cache's bytes in the memory of a GPU.
#pragma once

#include "src/cache/cache_memory.h"
#include "src/cuda/device.h"

namespace blockgtq::cuda {

class DeviceCacheMemory : public CacheMemory {
 public:
  /// device must outlive this and every cache in it. Work is ordered with the device's stream.
  explicit DeviceCacheMemory(Device& device) : device_(device) {}

  Result<std::byte*> Allocate(int64_t bytes, const std::string& what) override;
  void Free(std::byte* data, int64_t bytes) override;
  int64_t granularity() const override { return 1; }
  void Clear(std::byte* data, int64_t bytes) override;
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  Status Read(std::byte* host, const std::byte* from, int64_t bytes) override;
  Status Write(std::byte* to, const std::byte* host, int64_t bytes) override;
  bool keys_by_token() const override { return true; }

 private:
  Device& device_;
};

}  // namespace blockgtq::cuda
