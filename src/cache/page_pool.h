// The memory of a KV cache: one reservation of address space, handed out as refcounted blocks. A block is one
// page of every layer (one id serves them all), the layers one after the other, so that memory grows from the
// front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/cache_memory.h"

namespace blockgtq {

/// a * b of non-negative sizes, or -1 when either is negative or the product does not fit.
int64_t CheckedMultiply(int64_t a, int64_t b);

/// Invariant: the bytes of a block that nobody holds are zero.
class PagePool {
 public:
  PagePool() = default;

  /// memory      must outlive the pool
  /// page_bytes  [layers] bytes of one page of each layer, multiples of 16
  /// blocks      blocks in all; ids are 0 .. blocks - 1
  /// Errors: kOutOfMemory, which states the bytes wanted.
  static Result<PagePool> Create(CacheMemory& memory, std::vector<int64_t> page_bytes, int64_t blocks,
                                 const std::string& what);

  int64_t blocks() const { return blocks_; }
  int64_t free_blocks() const { return free_blocks_; }
  int64_t page_bytes(int layer) const { return page_bytes_[layer]; }
  int64_t block_bytes() const { return block_bytes_; }  // one page of every layer

  int64_t layer_offset(int layer) const { return layer_offset_[layer]; }  // of a layer's page in a block

  /// The page of `block` in `layer`; 16-byte aligned.
  std::byte* Page(int layer, int32_t block) const {
    return region_.data() + block_bytes_ * block + layer_offset_[layer];
  }

  /// Takes the free block with the lowest id, all zero, with one reference. Precondition: free_blocks() > 0.
  int32_t Allocate();
  void Retain(int32_t block) { ++references_[block]; }
  /// Drops one reference of each block. Blocks that nobody holds any more are cleared, and stop being
  /// resident as far as they fill units of the memory's granularity together with their free neighbours.
  void Release(std::span<const int32_t> blocks);
  int references(int32_t block) const { return references_[block]; }

  Status Copy(int32_t from, int32_t to);

 private:
  bool IsFree(int64_t block) const { return block >= next_unused_ || references_[block] == 0; }
  bool AreFree(int64_t first, int64_t end) const;
  void Clear(int64_t first, int64_t end);

  std::vector<int64_t> page_bytes_;    // [layers]
  std::vector<int64_t> layer_offset_;  // [layers], of a layer's page in a block
  int64_t blocks_ = 0, free_blocks_ = 0, block_bytes_ = 0;
  int64_t next_unused_ = 0;          // blocks from here on were never handed out
  std::vector<int32_t> references_;  // [next_unused_]
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>> returned_;  // free, lowest first
  CacheMemory* memory_ = nullptr;
  CacheRegion region_;
};

}  // namespace blockgtq
