// See race_check.h.
#include "tests/cuda/emulator/race_check.h"

#include <array>
#include <vector>

#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/emulator/memory.h"

namespace blockgtq::emulator {
namespace {

struct ByteHistory {
  // The last write. An epoch of 0 never is.
  uint32_t write_epoch = 0, write_warp_epoch = 0;
  // The reads of one epoch of the block: by which warps, and of the last one's epoch by which thread.
  uint32_t read_epoch = 0, read_warp_epoch = 0, reading_warps = 0;
  int16_t writer = 0, reader = 0;
  bool several_readers = false;
};

std::array<std::vector<ByteHistory>, 16> g_history;  // [rank in the cluster][byte]

ByteHistory* History(const Block* block) {
  std::vector<ByteHistory>& history = g_history[block->index % g_cluster.size()];
  if (history.size() < block->shared_bytes) history.resize(block->shared_bytes);
  return history.data();
}

void CheckGlobal(const void* p, size_t bytes, bool write) {
  const char* stack = g_thread->stack;
  if (p >= stack && p < stack + kStackBytes) return;
  const bool too_early = g_launched_early && !g_thread->waited;
  if (!write && !too_early) return;
  Allocation* a = FindAllocation(p);
  if (a == nullptr) return;
  const size_t offset = static_cast<const uint8_t*>(p) - a->mapping.data;
  if (write && too_early) Fail("RACE: a write before the kernel ahead has finished; offset", offset);
  for (size_t word = offset / 4; word <= (offset + bytes - 1) / 4; ++word) {
    const uint32_t written = a->written_in[word];
    if (write) {
      a->written_in[word] = g_launch;
    } else if (written >= g_first_unfinished && written < g_launch) {
      Fail("RACE: a read of what a kernel ahead writes, before it has finished; offset", offset);
    }
  }
}

void CheckShared(ByteHistory& byte, size_t offset, bool write) {
  const Thread& t = *g_thread;
  const uint32_t epoch = t.block->epoch, warp_epoch = t.warp->epoch;
  const int warp = t.index / 32;
  if (byte.write_epoch == epoch && byte.writer != t.index) {
    if (byte.writer / 32 != warp)
      Fail("RACE: after another warp's write; offset, thread", offset, byte.writer);
    if (byte.write_warp_epoch == warp_epoch) {
      Fail("RACE: after another lane's write; offset, thread", offset, byte.writer);
    }
  }
  if (write) {
    if (byte.read_epoch == epoch) {
      if ((byte.reading_warps & ~(1u << warp)) != 0) {
        Fail("RACE: a write after another warp's read; offset, warps", offset, byte.reading_warps);
      }
      if (byte.read_warp_epoch == warp_epoch && (byte.reader != t.index || byte.several_readers)) {
        Fail("RACE: a write after another lane's read; offset, thread", offset, byte.reader);
      }
    }
    byte.writer = static_cast<int16_t>(t.index);
    byte.write_epoch = epoch, byte.write_warp_epoch = warp_epoch;
    return;
  }
  if (byte.read_epoch != epoch) byte.read_epoch = epoch, byte.reading_warps = 0, byte.read_warp_epoch = 0;
  byte.reading_warps |= 1u << warp;
  if (byte.read_warp_epoch != warp_epoch) {
    byte.read_warp_epoch = warp_epoch, byte.several_readers = false;
    byte.reader = static_cast<int16_t>(t.index);
  } else if (byte.reader != t.index) {
    byte.several_readers = true;
  }
}

}  // namespace

void CheckAccess(const void* p, size_t bytes, bool write) {
  if (g_thread == nullptr) return;
  const Block* block = g_thread->block;
  const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(p) - block->shared);
  if (offset >= block->shared_bytes) return CheckGlobal(p, bytes, write);
  ByteHistory* history = History(block);
  for (size_t i = offset; i < offset + bytes; ++i) CheckShared(history[i], i, write);
}

}  // namespace blockgtq::emulator

// What -fsanitize=thread calls.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t n) { blockgtq::emulator::CheckAccess(p, n, false); }
void __tsan_write_range(void* p, size_t n) { blockgtq::emulator::CheckAccess(p, n, true); }
#define BGTQ_ACCESS(n)                                                                     \
  void __tsan_read##n(void* p) { blockgtq::emulator::CheckAccess(p, n, false); }           \
  void __tsan_write##n(void* p) { blockgtq::emulator::CheckAccess(p, n, true); }           \
  void __tsan_unaligned_read##n(void* p) { blockgtq::emulator::CheckAccess(p, n, false); } \
  void __tsan_unaligned_write##n(void* p) { blockgtq::emulator::CheckAccess(p, n, true); }
BGTQ_ACCESS(1)
BGTQ_ACCESS(2)
BGTQ_ACCESS(4)
BGTQ_ACCESS(8)
BGTQ_ACCESS(16)
#undef BGTQ_ACCESS
}
