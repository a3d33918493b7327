// Address space, refcounts and the free list of page_pool.h.
#include "src/cache/page_pool.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace blockgtq {
namespace {

int64_t RoundDown(int64_t value, int64_t unit) { return value / unit * unit; }
int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

int64_t CheckedMultiply(int64_t a, int64_t b) {
  int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return -1;
  return product;
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

Result<MappedRegion> MappedRegion::Map(int64_t bytes, const std::string& what) {
  MappedRegion region;
  if (bytes == 0) return region;
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("{}: cannot reserve {} bytes ({})", what, bytes, std::strerror(errno)));
  }
  region.data_ = static_cast<std::byte*>(data);
  region.size_ = bytes;
  return region;
}

Result<PagePool> PagePool::Create(std::vector<int64_t> page_bytes, int64_t blocks, const std::string& what) {
  PagePool pool;
  pool.os_page_ = std::max<int64_t>(sysconf(_SC_PAGESIZE), 1);
  for (const int64_t bytes : page_bytes) {
    pool.layer_offset_.push_back(pool.block_bytes_);
    if (bytes > std::numeric_limits<int64_t>::max() - pool.block_bytes_) pool.block_bytes_ = -1;
    if (pool.block_bytes_ < 0) break;
    pool.block_bytes_ += bytes;
  }
  const int64_t total = CheckedMultiply(pool.block_bytes_, blocks);
  if (total < 0 || blocks > std::numeric_limits<int32_t>::max()) {
    return Status(
        ErrorCode::kOutOfMemory,
        fmt::format("{}: {} pages of every layer are more than this machine can address", what, blocks));
  }
  BGTQ_ASSIGN_OR_RETURN(pool.region_, MappedRegion::Map(total, what));
  // A tile of a layer is a few kilobytes, far from the layer's next: with small pages every record would cost
  // address translations. Only a hint; without it the cache is as correct, and slower at depth.
  if (total > 0) madvise(pool.region_.data(), static_cast<size_t>(total), MADV_HUGEPAGE);
  pool.page_bytes_ = std::move(page_bytes);
  pool.blocks_ = pool.free_blocks_ = blocks;
  return pool;
}

int32_t PagePool::Allocate() {
  --free_blocks_;
  if (!returned_.empty()) {  // every returned id is below next_unused_
    const int32_t block = returned_.top();
    returned_.pop();
    references_[block] = 1;
    return block;
  }
  references_.push_back(1);
  return static_cast<int32_t>(next_unused_++);
}

void PagePool::Release(std::span<const int32_t> blocks) {
  std::vector<int32_t> freed;
  for (const int32_t block : blocks) {
    if (--references_[block] == 0) freed.push_back(block);
  }
  std::sort(freed.begin(), freed.end());
  for (size_t first = 0; first < freed.size();) {  // runs of consecutive ids: few calls to the system
    size_t end = first + 1;
    while (end < freed.size() && freed[end] == freed[end - 1] + 1) ++end;
    Clear(freed[first], int64_t{freed[end - 1]} + 1);
    first = end;
  }
  for (const int32_t block : freed) returned_.push(block);
  free_blocks_ += static_cast<int64_t>(freed.size());
}

void PagePool::Copy(int32_t from, int32_t to) {
  std::memcpy(Page(0, to), Page(0, from), static_cast<size_t>(block_bytes_));
}

bool PagePool::AreFree(int64_t first, int64_t end) const {
  for (int64_t block = first; block < std::min(end, blocks_); ++block) {
    if (!IsFree(block)) return false;
  }
  return true;
}

// Zeroes blocks [first, end). Whole operating-system pages are dropped; one at an edge, shared
// with blocks outside the run, is dropped only when those are free (hence zero) too.
void PagePool::Clear(int64_t first, int64_t end) {
  std::byte* base = region_.data();
  const int64_t bytes = block_bytes_;
  if (bytes == 0) return;
  const int64_t begin_byte = first * bytes, end_byte = end * bytes;

  int64_t drop_begin = RoundDown(begin_byte, os_page_);
  if (!AreFree(drop_begin / bytes, first)) drop_begin = RoundUp(begin_byte, os_page_);
  int64_t drop_end = RoundUp(end_byte, os_page_);
  if (!AreFree(end, (drop_end + bytes - 1) / bytes)) drop_end = RoundDown(end_byte, os_page_);

  if (drop_begin >= drop_end ||
      madvise(base + drop_begin, static_cast<size_t>(drop_end - drop_begin), MADV_DONTNEED) != 0) {
    std::memset(base + begin_byte, 0, static_cast<size_t>(end_byte - begin_byte));
    return;
  }
  if (begin_byte < drop_begin) {
    std::memset(base + begin_byte, 0, static_cast<size_t>(drop_begin - begin_byte));
  }
  if (drop_end < end_byte) std::memset(base + drop_end, 0, static_cast<size_t>(end_byte - drop_end));
}

}  // namespace blockgtq
