// See memory.h.
#include "tests/cuda/emulator/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace blockgtq::emulator {
namespace {

std::map<const uint8_t*, Allocation> g_allocations;

}  // namespace

Mapping MapGuarded(size_t bytes, size_t alignment) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (bytes + alignment - 1) / alignment * alignment, body = (used + page - 1) / page * page;
  Mapping m;
  m.bytes = body + 2 * page;
  m.start = mmap(nullptr, m.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m.start == MAP_FAILED ||
      mprotect(static_cast<char*>(m.start) + page, body, PROT_READ | PROT_WRITE) != 0) {
    std::perror("mapping memory");
    std::exit(1);
  }
  m.data = static_cast<uint8_t*>(m.start) + page + body - used;
  return m;
}

void* AllocateDevice(size_t bytes) {
  // As cudaMalloc aligns, but where the size is odd, an end close to the guard is worth more.
  const Mapping mapping = MapGuarded(bytes, bytes % 256 == 0 ? 256 : 16);
  std::memset(mapping.data, 0xfe, bytes);
  g_allocations[mapping.data] = {mapping, bytes, std::vector<uint32_t>((bytes + 3) / 4)};
  return mapping.data;
}

void FreeDevice(const void* p) {
  const auto found = g_allocations.find(static_cast<const uint8_t*>(p));
  if (found == g_allocations.end()) return;
  munmap(found->second.mapping.start, found->second.mapping.bytes);
  g_allocations.erase(found);
}

Allocation* FindAllocation(const void* p) {
  auto next = g_allocations.upper_bound(static_cast<const uint8_t*>(p));
  if (next == g_allocations.begin()) return nullptr;
  Allocation& a = std::prev(next)->second;
  return static_cast<const uint8_t*>(p) < a.mapping.data + a.bytes ? &a : nullptr;
}

}  // namespace blockgtq::emulator
