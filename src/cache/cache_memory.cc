// The host's memory as cache_memory.h wants it.
#include "src/cache/cache_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace blockgtq {
namespace {

class HostCacheMemory : public CacheMemory {
 public:
  Result<std::byte*> Allocate(int64_t bytes, const std::string& what) override {
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return Status(ErrorCode::kOutOfMemory,
                    fmt::format("{}: cannot reserve {} bytes of host memory ({}); use fewer tokens (-c)",
                                what, bytes, std::strerror(errno)));
    }
    // A tile of a layer is a few kilobytes, far from the layer's next: with small pages every record would
    // cost address translations. Only a hint; without it the cache is as correct, and slower at depth.
    if (bytes >= kHugeBytes) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t bytes) override { munmap(data, static_cast<size_t>(bytes)); }

  int64_t granularity() const override { return page_; }
  void Clear(std::byte* data, int64_t bytes) override {
    const bool whole =
        reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(page_) == 0 && bytes % page_ == 0;
    if (!whole || madvise(data, static_cast<size_t>(bytes), MADV_DONTNEED) != 0) {
      std::memset(data, 0, static_cast<size_t>(bytes));
    }
  }
  Status Copy(std::byte* to, const std::byte* from, int64_t bytes) override { return Move(to, from, bytes); }
  Status Read(std::byte* host, const std::byte* from, int64_t bytes) override {
    return Move(host, from, bytes);
  }
  Status Write(std::byte* to, const std::byte* host, int64_t bytes) override { return Move(to, host, bytes); }
  bool keys_by_token() const override { return false; }

 private:
  static constexpr int64_t kHugeBytes = int64_t{2} << 20;
  static Status Move(std::byte* to, const std::byte* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  int64_t page_ = std::max<int64_t>(sysconf(_SC_PAGESIZE), 1);
};

}  // namespace

CacheMemory& HostMemory() {
  static HostCacheMemory memory;
  return memory;
}

CacheRegion::CacheRegion(CacheRegion&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

CacheRegion& CacheRegion::operator=(CacheRegion&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

CacheRegion::~CacheRegion() {
  if (data_ != nullptr) memory_->Free(data_, size_);
}

Result<CacheRegion> CacheRegion::Allocate(CacheMemory& memory, int64_t bytes, const std::string& what) {
  CacheRegion region;
  if (bytes == 0) return region;
  BGTQ_ASSIGN_OR_RETURN(region.data_, memory.Allocate(bytes, what));
  region.memory_ = &memory;
  region.size_ = bytes;
  return region;
}

}  // namespace blockgtq
