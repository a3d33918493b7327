// See page_group.h.
#include "src/cache/page_group.h"

#include <algorithm>

#include "src/codec/plan.h"

namespace blockgtq {

int64_t PageGroup::FirstNeeded(int64_t length, int64_t coded_end, int64_t slack) const {
  if (window == 0) return 0;
  const int64_t needed = std::min(length + 1 - window, coded_end - history);
  return std::max<int64_t>(needed - slack, 0) / kPageTokens;
}

int64_t PageGroup::Wanted(const PageTable& table, int64_t first_written, int64_t pages) const {
  int64_t wanted = std::max<int64_t>(pages - table.pages(), 0);
  for (int64_t page = std::max(first_written, table.first); page < table.pages(); ++page) {
    wanted += IsShared(table, page) ? 1 : 0;
  }
  return wanted;
}

Status PageGroup::Extend(PageTable& table, int64_t first_written, int64_t pages) {
  for (int64_t page = std::max(first_written, table.first); page < table.pages(); ++page) {
    if (IsShared(table, page)) BGTQ_RETURN_IF_ERROR(MakeOwn(table, page));
  }
  while (table.pages() < pages) table.blocks.push_back(pool.Allocate());
  return Status::Ok();
}

void PageGroup::Drop(PageTable& table, int64_t first) {
  first = std::min(first, table.pages());
  if (first <= table.first) return;
  const std::span<int32_t> dropped =
      std::span(table.blocks)
          .subspan(static_cast<size_t>(table.first), static_cast<size_t>(first - table.first));
  pool.Release(dropped);
  std::fill(dropped.begin(), dropped.end(), -1);
  table.first = first;
}

void PageGroup::Shorten(PageTable& table, int64_t pages) {
  if (pages >= table.pages()) return;
  const auto kept = static_cast<size_t>(std::max(pages, table.first));
  pool.Release(std::span(table.blocks).subspan(kept));
  table.blocks.resize(static_cast<size_t>(pages));
  table.first = std::min(table.first, pages);
}

void PageGroup::Release(PageTable& table) { Shorten(table, 0); }

Status PageGroup::MakeOwn(PageTable& table, int64_t page) {
  int32_t& block = table.blocks[static_cast<size_t>(page)];
  const int32_t copy = pool.Allocate();
  const Status copied = pool.Copy(block, copy);
  pool.Release({copied.ok() ? &block : &copy, 1});
  BGTQ_RETURN_IF_ERROR(copied);
  block = copy;
  return Status::Ok();
}

}  // namespace blockgtq
