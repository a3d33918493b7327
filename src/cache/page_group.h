// The pages of the layers that keep the same tokens: all that see everything, or all that have the sliding
// window. A group has its own memory and, in each sequence, its own block table; a windowed group gives pages
// back once no token to come sees into them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/page_pool.h"

namespace blockgtq {

/// A sequence's blocks in one group.
struct PageTable {
  std::vector<int32_t> blocks;  // by page of 64 tokens; -1 before `first`
  int64_t first = 0;            // pages before it were given back
  int64_t pages() const { return static_cast<int64_t>(blocks.size()); }
};

struct PageGroup {
  PagePool pool;
  std::vector<int> layers;  // in order; layer layers[i] is the pool's layer i
  int64_t window = 0;       // tokens that a token sees, itself included; 0: all
  int64_t history = 0;      // coded tokens that decide how the next ones are coded

  /// The first page that a sequence of `length` tokens, of which [0, coded_end) are codes, may need if it
  /// goes on: the next token sees into it, or it is not coded yet. coded_end = length where tokens do not
  /// become codes. slack: tokens that may be taken back before.
  int64_t FirstNeeded(int64_t length, int64_t coded_end, int64_t slack = 0) const;

  /// Blocks that Extend takes.
  int64_t Wanted(const PageTable& table, int64_t first_written, int64_t pages) const;
  /// Gives the table `pages` pages, and a block of its own to each from first_written on. Precondition:
  /// Wanted are free.
  Status Extend(PageTable& table, int64_t first_written, int64_t pages);
  /// Gives back the pages before `first`.
  void Drop(PageTable& table, int64_t first);
  /// Gives back the pages from `pages` on.
  void Shorten(PageTable& table, int64_t pages);
  void Release(PageTable& table);
  bool IsShared(const PageTable& table, int64_t page) const {
    return pool.references(table.blocks[static_cast<size_t>(page)]) > 1;
  }
  /// Replaces a page by a copy of its own. Precondition: a block is free.
  Status MakeOwn(PageTable& table, int64_t page);
  int64_t Bytes(const PageTable& table) const { return (table.pages() - table.first) * pool.block_bytes(); }
};

}  // namespace blockgtq
