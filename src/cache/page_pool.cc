// Refcounts and the free list of page_pool.h.
#include "src/cache/page_pool.h"

#include <fmt/format.h>

#include <algorithm>
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

Result<PagePool> PagePool::Create(CacheMemory& memory, std::vector<int64_t> page_bytes, int64_t blocks,
                                  const std::string& what) {
  PagePool pool;
  pool.memory_ = &memory;
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
  BGTQ_ASSIGN_OR_RETURN(pool.region_, CacheRegion::Allocate(memory, total, what));
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

Status PagePool::Copy(int32_t from, int32_t to) {
  return memory_->Copy(Page(0, to), Page(0, from), block_bytes_);
}

bool PagePool::AreFree(int64_t first, int64_t end) const {
  for (int64_t block = first; block < std::min(end, blocks_); ++block) {
    if (!IsFree(block)) return false;
  }
  return true;
}

// Zeroes blocks [first, end). Whole units of the memory's granularity are cleared at once; one at an edge,
// shared with blocks outside the run, only when those are free (hence zero) too.
void PagePool::Clear(int64_t first, int64_t end) {
  std::byte* base = region_.data();
  const int64_t bytes = block_bytes_, unit = memory_->granularity();
  if (bytes == 0) return;
  const int64_t begin_byte = first * bytes, end_byte = end * bytes;

  int64_t whole_begin = RoundDown(begin_byte, unit);
  if (!AreFree(whole_begin / bytes, first)) whole_begin = RoundUp(begin_byte, unit);
  int64_t whole_end = RoundUp(end_byte, unit);
  if (!AreFree(end, (whole_end + bytes - 1) / bytes)) whole_end = RoundDown(end_byte, unit);

  if (whole_begin >= whole_end) {
    memory_->Clear(base + begin_byte, end_byte - begin_byte);
    return;
  }
  memory_->Clear(base + whole_begin, whole_end - whole_begin);
  if (begin_byte < whole_begin) memory_->Clear(base + begin_byte, whole_begin - begin_byte);
  if (whole_end < end_byte) memory_->Clear(base + whole_end, end_byte - whole_end);
}

}  // namespace blockgtq
