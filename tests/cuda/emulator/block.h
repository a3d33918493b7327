// The emulator's threads, warps and blocks, for the files that implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace blockgtq::emulator {

struct Block;
struct Thread;

// Epochs are numbers of one counter, so that none occurs twice in a program's life and what the race checker
// keeps need not be cleared.
uint32_t NextEpoch();

struct Warp {
  uint32_t epoch = NextEpoch();  // ends at each __syncwarp
  int arrived = 0;
  const char* instruction = nullptr;  // that the arrived lanes wait in
  void* arguments[32];
  Thread* lanes[32];
};

/// 16 bytes of a thread's own copies (cp.async).
struct SmallCopy {
  uint32_t shared;
  const void* global;
};

struct Thread {
  void* stack_pointer;
  char* stack;
  int index, lane;
  Block* block;
  Warp* warp;
  bool done = false;
  bool waited = false;  // for the kernels ahead: itself, or a thread that it has met in a barrier since
  bool arrived_in_cluster = false;
  uint32_t cluster_epoch = 0;          // in which it arrived
  std::vector<SmallCopy> copies = {};  // that no arrival follows yet
};

/// An mbarrier. A phase ends when all arrivals and all expected bytes are there.
struct TransactionBarrier {
  int arrivals, pending;
  int64_t bytes = 0;
  uint32_t phase = 0;
  std::vector<Thread*> waiting = {};
};

struct Block {
  unsigned index;
  uint8_t* shared;
  size_t shared_bytes;
  int size, alive;               // threads
  uint32_t epoch = NextEpoch();  // ends at each __syncthreads
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Thread*> at_sync = {};
  std::unordered_map<uint32_t, TransactionBarrier> barriers = {};
};

constexpr size_t kStackBytes = 128 << 10;

/// The thread that runs; null outside of kernels.
extern Thread* g_thread;
/// The blocks that live, by rank, and the part of their life between two cluster barriers.
extern std::vector<Block*> g_cluster;
extern uint32_t g_cluster_epoch;
/// The launch that runs; the first one that may still run beside it, where it is an early one.
extern uint32_t g_launch, g_first_unfinished;
extern bool g_launched_early;

}  // namespace blockgtq::emulator
