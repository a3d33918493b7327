// The host's memory as cache_memory.h wants it.
#include "src/cache/cache_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "src/core/machine_memory.h"

namespace blockgtq {
namespace {

class HostCacheMemory : public CacheMemory {
 public:
  Result<std::byte*> Allocate(int64_t bytes, const std::string& what) override {
    const std::lock_guard lock(mutex_);
    BGTQ_RETURN_IF_ERROR(CheckRoom(bytes, what));
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
    reserved_[static_cast<std::byte*>(data)] = bytes;
    return static_cast<std::byte*>(data);
  }
  void Free(std::byte* data, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    reserved_.erase(data);
    munmap(data, static_cast<size_t>(bytes));
  }

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
  static constexpr int64_t kCheckedBytes = int64_t{64} << 20;  // smaller ones are not what memory ends for

  /// The system would reserve more than there is, and end the process once it is written.
  Status CheckRoom(int64_t bytes, const std::string& what) const {
    if (bytes < kCheckedBytes) return Status::Ok();
    const std::optional<MachineMemory> memory = ReadMachineMemory();
    if (!memory.has_value()) return Status::Ok();
    const int64_t unwritten = UnwrittenBytes(), free = std::max<int64_t>(0, memory->free - unwritten);
    if (bytes <= free) return Status::Ok();
    const std::string reserved =
        unwritten == 0 ? "" : fmt::format(", beside {} that are reserved", unwritten);
    return Status(
        ErrorCode::kOutOfMemory,
        fmt::format("{}: {} bytes of host memory wanted, {} of {} are free{}; use fewer tokens (-c)", what,
                    bytes, free, memory->total, reserved));
  }
  /// Of what is reserved: it is still counted as free.
  int64_t UnwrittenBytes() const {
    constexpr int64_t kPagesAtOnce = 1 << 16;
    std::vector<unsigned char> resident(kPagesAtOnce);
    int64_t unwritten = 0;
    for (const auto& [data, bytes] : reserved_) {
      if (bytes < kCheckedBytes) continue;
      for (int64_t first = 0; first < bytes; first += kPagesAtOnce * page_) {
        const int64_t count = std::min(bytes - first, kPagesAtOnce * page_),
                      pages = (count + page_ - 1) / page_;
        if (mincore(data + first, static_cast<size_t>(count), resident.data()) != 0) continue;
        unwritten += page_ * std::count_if(resident.begin(), resident.begin() + pages,
                                           [](unsigned char flags) { return (flags & 1) == 0; });
      }
    }
    return unwritten;
  }
  static Status Move(std::byte* to, const std::byte* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return Status::Ok();
  }
  int64_t page_ = std::max<int64_t>(sysconf(_SC_PAGESIZE), 1);
  std::mutex mutex_;
  std::map<std::byte*, int64_t> reserved_;  // what was given out
};

}  // namespace

CacheMemory& HostMemory() {
  // Never destroyed: objects of static life may hold caches.
  static HostCacheMemory& memory = *new HostCacheMemory;
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
