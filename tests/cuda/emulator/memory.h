// Memory that ends at a page without access, and the list of what cudaMalloc gave out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace blockgtq::emulator {

struct Mapping {
  void* start;
  size_t bytes;
  uint8_t* data;
};
/// `bytes` of memory, rounded up to `alignment`, between two pages without access; ends at the second.
Mapping MapGuarded(size_t bytes, size_t alignment);

struct Allocation {
  Mapping mapping;
  size_t bytes;
  std::vector<uint32_t> written_in;  // [(bytes + 3) / 4] the last launch that wrote the word (race_check.h)
};
/// What cudaMalloc gave out and holds p; null elsewhere.
Allocation* FindAllocation(const void* p);
void* AllocateDevice(size_t bytes);
void FreeDevice(const void* p);

}  // namespace blockgtq::emulator
