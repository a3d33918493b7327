// See emulator.h. The scheduler, and everything that a thread can wait for.
#include "tests/cuda/emulator/emulator.h"

#include <cuda_runtime.h>
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/memory.h"
#include "tests/cuda/emulator/race_check.h"

uint3 threadIdx, blockIdx, blockDim, gridDim;

// Saves the callee-saved registers and the stack pointer in *from and continues where `to` was saved.
extern "C" void BgtqEmulatorSwitch(void** from, void* to);
asm(R"(
.text
.globl BgtqEmulatorSwitch
BgtqEmulatorSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace blockgtq::emulator {

Thread* g_thread = nullptr;
std::vector<Block*> g_cluster;
uint32_t g_cluster_epoch = 0, g_launch = 1,
         g_first_unfinished = 1;  // words that no launch has written have 0
bool g_launched_early = false;

namespace {

constexpr size_t kMaxSharedBytes = BGTQ_EMULATED_SM == 90 ? 232448 : 166912;  // of a block
constexpr uint32_t kOffsetMask = 0xffffff;  // of a shared address; above it the rank

/// A bulk copy; or, where bytes is 0, a thread's small ones, which arrive at the barrier.
struct PendingCopy {
  Block* block;
  uint32_t shared, barrier, bytes;
  const void* from;
  const Block* sender = nullptr;  // whose shared memory `from` is
  std::vector<SmallCopy> small = {};
};

// Threads that can go on, and in which order they do.
class ReadyThreads {
 public:
  enum class Order { kFirstIn, kLastIn, kAny, kAnyOfTheFirst };
  void Start(Order order) { order_ = order; }
  bool empty() const { return head_ == threads_.size(); }
  void Add(Thread* t) { threads_.push_back(t); }
  void Add(std::vector<Thread*>& threads) {
    threads_.insert(threads_.end(), threads.begin(), threads.end());
    threads.clear();
  }
  Thread* Take(std::mt19937& random) {
    if (head_ > 1 << 16) {
      threads_.erase(threads_.begin(), threads_.begin() + static_cast<ptrdiff_t>(head_));
      head_ = 0;
    }
    if (order_ == Order::kFirstIn) return threads_[head_++];
    size_t at = threads_.size() - 1;
    if (order_ != Order::kLastIn) {
      const size_t count = threads_.size() - head_;
      at = head_ + random() % (order_ == Order::kAny ? count : std::min<size_t>(count, 64));
    }
    std::swap(threads_[at], threads_.back());
    Thread* t = threads_.back();
    threads_.pop_back();
    return t;
  }

 private:
  Order order_ = Order::kFirstIn;
  std::vector<Thread*> threads_;
  size_t head_ = 0;
};

std::mt19937 g_random(1);
ReadyThreads g_ready;
std::vector<PendingCopy> g_copies;
std::vector<Thread*> g_at_cluster_barrier;
size_t g_cluster_arrived = 0;
void* g_scheduler = nullptr;  // its stack pointer, while a thread runs
const std::function<void()>* g_body = nullptr;
uint32_t g_epoch = 0;
bool g_lets_next_start_unwaited = false;  // a thread of the launch does, while kernels ahead of it still run

void Yield() { BgtqEmulatorSwitch(&g_thread->stack_pointer, g_scheduler); }

void ThreadMain() {
  (*g_body)();
  Thread* t = g_thread;
  if (t->warp->arrived > 0) Fail("a thread ends while its warp waits in an instruction");
  if (t->arrived_in_cluster) Fail("a thread ends after a cluster arrival without its wait");
  if (!t->copies.empty()) Fail("a thread ends with copies that no arrival follows");
  if (!t->block->at_sync.empty()) Fail("a thread ends while others wait in __syncthreads");
  t->done = true;
  --t->block->alive;
  Yield();
  std::abort();  // nobody makes it ready again
}

// Never freed: the next launch takes them over.
char* Stack(size_t index) {
  static std::vector<char*> stacks;
  while (stacks.size() <= index) {
    stacks.push_back(reinterpret_cast<char*>(MapGuarded(kStackBytes, kStackBytes).data));
  }
  return stacks[index];
}

uint8_t* SharedMemory(size_t bytes, unsigned rank) {
  static std::map<std::pair<size_t, unsigned>, uint8_t*> memory;
  uint8_t*& found = memory[{bytes, rank}];
  if (found == nullptr) found = MapGuarded(std::max<size_t>(bytes, 16), 128).data;
  std::memset(found, 0xff, bytes);  // NaN, should a kernel read what it has not written
  return found;
}

void Prepare(Thread& t, Block& block, int index, char* stack) {
  t.index = index;
  t.lane = index % 32;
  t.block = &block;
  t.warp = &block.warps[index / 32];
  t.warp->lanes[t.lane] = &t;
  t.stack = stack;
  // What BgtqEmulatorSwitch pops: six registers and the address it returns to, which is entered as by a call.
  constexpr int kRegisters = 6;
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(ThreadMain);
  for (int i = 0; i < kRegisters; ++i) *--top = nullptr;
  t.stack_pointer = top;
  g_ready.Add(&t);
}

// A wait makes what the kernels ahead have written visible to the whole grid: a thread that meets one that
// has waited may read it.
template <typename Threads>
void ShareWait(const Threads& threads) {
  bool waited = false;
  for (const Thread* t : threads) waited |= t->waited;
  for (Thread* t : threads) t->waited = waited;
}

void Settle(TransactionBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  g_ready.Add(barrier.waiting);
}

TransactionBarrier& FindBarrier(Block* block, uint32_t address) {
  if (address % 8 != 0) Fail("an mbarrier is not aligned", address);
  const auto found = block->barriers.find(address);
  if (found == block->barriers.end()) Fail("an mbarrier is not initialised", address);
  return found->second;
}

void Arrive(TransactionBarrier& barrier, uint32_t address, int64_t expected_bytes) {
  if (barrier.pending <= 0) Fail("too many arrivals at an mbarrier", address);
  barrier.bytes += expected_bytes;
  --barrier.pending;
}

uint8_t* At(Block* block, uint32_t offset, size_t bytes) {
  if (offset + bytes > block->shared_bytes) {
    Fail("an address beyond the block's shared memory", offset, static_cast<int64_t>(block->shared_bytes));
  }
  return block->shared + offset;
}

void FinishSomeCopy() {
  std::swap(g_copies[g_random() % g_copies.size()], g_copies.back());
  const PendingCopy copy = std::move(g_copies.back());
  g_copies.pop_back();
  if (copy.block->alive == 0) Fail("a copy arrives in a block that has ended", copy.block->index);
  if (copy.sender != nullptr && copy.sender->alive < copy.sender->size) {
    Fail("a copy from a block that is leaving", copy.sender->index);
  }
  TransactionBarrier& barrier = FindBarrier(copy.block, copy.barrier);
  if (copy.bytes > 0) {
    std::memcpy(copy.block->shared + copy.shared, copy.from, copy.bytes);
    barrier.bytes -= copy.bytes;
  } else {
    for (const SmallCopy& c : copy.small) std::memcpy(copy.block->shared + c.shared, c.global, 16);
    Arrive(barrier, copy.barrier, 0);
  }
  Settle(barrier);
}

// Threads and copies, until nothing can go on.
void RunUntilQuiet(unsigned copy_interval) {
  for (;;) {
    if (!g_copies.empty() && (g_ready.empty() || g_random() % copy_interval == 0)) {
      FinishSomeCopy();
      continue;
    }
    if (g_ready.empty()) return;
    g_thread = g_ready.Take(g_random);
    threadIdx.x = static_cast<unsigned>(g_thread->index);
    blockIdx.x = g_thread->block->index;
    BgtqEmulatorSwitch(&g_scheduler, g_thread->stack_pointer);
    g_thread = nullptr;
  }
}

void CheckFinished(const Block& block) {
  for (const Thread& t : block.threads) {
    if (t.done) continue;
    std::printf(
        "EMULATOR: DEADLOCK in block %u: thread %d has not ended; %d alive, %zu in __syncthreads, %zu "
        "arrived in the cluster; of its warp %d wait in %s\n",
        block.index, t.index, block.alive, block.at_sync.size(), g_cluster_arrived, t.warp->arrived,
        t.warp->arrived > 0 ? t.warp->instruction : "nothing");
    std::exit(1);
  }
  for (const auto& [address, barrier] : block.barriers) {
    if (barrier.bytes != 0) Fail("bytes of an mbarrier are missing at the end", address, barrier.bytes);
  }
}

void RunCluster(const KernelLaunch& launch, unsigned cluster, unsigned copy_interval) {
  std::vector<Block> blocks(launch.cluster_blocks);
  g_cluster.clear();
  g_cluster_epoch = NextEpoch();
  g_cluster_arrived = 0;
  size_t stacks = 0;
  for (unsigned rank = 0; rank < launch.cluster_blocks; ++rank) {
    Block& b = blocks[rank];
    b.index = cluster * launch.cluster_blocks + rank;
    b.size = b.alive = static_cast<int>(launch.threads);
    b.shared_bytes = launch.shared_bytes;
    b.shared = SharedMemory(launch.shared_bytes, rank);
    b.threads.resize(launch.threads);
    b.warps.resize(launch.threads / 32);
    g_cluster.push_back(&b);
    for (int i = 0; i < b.size; ++i) Prepare(b.threads[i], b, i, Stack(stacks++));
  }
  RunUntilQuiet(copy_interval);
  for (const Block& b : blocks) CheckFinished(b);
}

void OnBadAccess(int, siginfo_t* info, void*) {
  std::printf("EMULATOR: no access to %p\n", info->si_addr);
  for (size_t rank = 0; g_thread != nullptr && rank < g_cluster.size(); ++rank) {
    const ptrdiff_t offset = static_cast<uint8_t*>(info->si_addr) - g_cluster[rank]->shared;
    if (std::abs(offset) < static_cast<ptrdiff_t>(2 * kMaxSharedBytes)) {
      std::printf("  that is %td in the %zu bytes of shared memory of rank %zu\n", offset,
                  g_cluster[rank]->shared_bytes, rank);
    }
  }
  Fail("access out of bounds");
}

// Guard pages speak on a stack of their own, because a thread's may be what ran over.
const bool g_handles_bad_access = [] {
  static char stack[1 << 16];
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = OnBadAccess;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return sigaction(SIGSEGV, &action, nullptr) == 0 && sigaction(SIGBUS, &action, nullptr) == 0;
}();

}  // namespace

uint32_t NextEpoch() { return ++g_epoch; }

void Fail(const char* what, int64_t a, int64_t b) {
  std::printf("EMULATOR: %s (%lld, %lld)", what, static_cast<long long>(a), static_cast<long long>(b));
  if (g_thread != nullptr) std::printf(" in block %u, thread %d", g_thread->block->index, g_thread->index);
  std::printf("\n");
  std::fflush(stdout);
  void* frames[32];
  backtrace_symbols_fd(frames, backtrace(frames, 32), STDOUT_FILENO);
  _exit(1);
}

void Launch(const KernelLaunch& launch) {
  if (launch.blocks == 0 || launch.blocks % launch.cluster_blocks != 0) {
    Fail("a grid that is not whole clusters", launch.blocks, launch.cluster_blocks);
  }
  if (launch.threads == 0 || launch.threads % 32 != 0)
    Fail("a block that is not whole warps", launch.threads);
  if (launch.shared_bytes > kMaxSharedBytes) {
    Fail("too much shared memory", static_cast<int64_t>(launch.shared_bytes));
  }
  if (BGTQ_EMULATED_SM < 90 && (launch.cluster_blocks > 1 || launch.early)) {
    Fail("a launch that sm_80 does not know", launch.cluster_blocks, launch.early);
  }
  // Where the kernel ahead let this one start before it had waited itself, what it did not wait for runs too.
  if (!g_launched_early || !g_lets_next_start_unwaited) g_first_unfinished = g_launch;
  ++g_launch;
  g_launched_early = launch.early;
  g_lets_next_start_unwaited = false;
  g_body = &launch.body;
  gridDim.x = launch.blocks;
  blockDim.x = launch.threads;
  const auto order = static_cast<ReadyThreads::Order>(g_random() % 4);
  g_ready.Start(order);
  // Where the last one in goes first, copies may be very late.
  const unsigned copy_interval = order == ReadyThreads::Order::kLastIn ? 997 : 31;
  std::vector<unsigned> clusters(launch.blocks / launch.cluster_blocks);
  // The last one first: a cluster may wait for what those after it send.
  for (unsigned i = 0; i < clusters.size(); ++i) clusters[i] = static_cast<unsigned>(clusters.size()) - 1 - i;
  for (const unsigned cluster : clusters) RunCluster(launch, cluster, copy_interval);
}

void WarpInstruction(const char* name, void* argument, void (*execute)(void* const*)) {
  Warp* warp = g_thread->warp;
  if (warp->arrived > 0 && std::strcmp(warp->instruction, name) != 0) {
    std::printf("EMULATOR: one lane in %s, others in %s\n", name, warp->instruction);
    Fail("lanes diverge");
  }
  warp->instruction = name;
  warp->arguments[g_thread->lane] = argument;
  if (++warp->arrived == 32) {
    warp->arrived = 0;
    execute(warp->arguments);
    for (Thread* lane : warp->lanes) g_ready.Add(lane);
  }
  Yield();
}

void SyncWarp() {
  WarpInstruction("__syncwarp", nullptr, [](void* const*) {
    g_thread->warp->epoch = NextEpoch();
    ShareWait(g_thread->warp->lanes);
  });
}

uint32_t ShuffleLanes(Shuffle kind, uint32_t value, int argument) {
  struct Exchange {
    uint32_t value;
    int from;
    uint32_t result;
  };
  const int lane = g_thread->lane;
  int from = argument & 31;
  if (kind == Shuffle::kXor) from = lane ^ argument;
  if (kind == Shuffle::kUp) from = lane < argument ? lane : lane - argument;
  constexpr const char* kNames[] = {"__shfl_sync", "__shfl_xor_sync", "__shfl_up_sync"};
  Exchange exchange = {value, from, 0};
  WarpInstruction(kNames[static_cast<int>(kind)], &exchange, [](void* const* arguments) {
    for (int i = 0; i < 32; ++i) {
      auto* e = static_cast<Exchange*>(arguments[i]);
      e->result = static_cast<const Exchange*>(arguments[e->from])->value;
    }
  });
  return exchange.result;
}

int AnyLane(int value) {
  WarpInstruction("__any_sync", &value, [](void* const* arguments) {
    int any = 0;
    for (int i = 0; i < 32; ++i) any |= static_cast<int>(*static_cast<int*>(arguments[i]) != 0);
    for (int i = 0; i < 32; ++i) *static_cast<int*>(arguments[i]) = any;
  });
  return value;
}

void SyncThreads() {
  Block* block = g_thread->block;
  if (g_thread->warp->arrived > 0) Fail("__syncthreads while lanes of the warp wait in an instruction");
  block->at_sync.push_back(g_thread);
  if (static_cast<int>(block->at_sync.size()) == block->alive) {
    ShareWait(block->at_sync);
    g_ready.Add(block->at_sync);
    block->epoch = NextEpoch();
  }
  Yield();
}

uint8_t* DynamicShared() { return g_thread->block->shared; }

uint32_t SharedAddress(const void* p) {
  const Block* block = g_thread->block;
  const auto offset = static_cast<size_t>(static_cast<const uint8_t*>(p) - block->shared);
  if (offset > block->shared_bytes) Fail("not an address of the block's dynamic shared memory");
  return static_cast<uint32_t>(offset);
}

uint32_t ClusterAddress(uint32_t shared, int rank) {
  return (shared & kOffsetMask) | static_cast<uint32_t>(rank + 1) << 24;
}

void BarrierInit(uint32_t barrier, int arrivals) {
  Block* block = g_thread->block;
  At(block, barrier, 8);
  const TransactionBarrier made = {.arrivals = arrivals, .pending = arrivals};
  if (!block->barriers.emplace(barrier, made).second) Fail("an mbarrier is initialised twice", barrier);
}

void BarrierArrive(uint32_t barrier, int64_t expected_bytes) {
  TransactionBarrier& b = FindBarrier(g_thread->block, barrier);
  Arrive(b, barrier, expected_bytes);
  Settle(b);
}

void BarrierWait(uint32_t barrier, uint32_t parity) {
  for (;;) {
    TransactionBarrier& b = FindBarrier(g_thread->block, barrier);
    if ((b.phase & 1) != (parity & 1)) return;
    b.waiting.push_back(g_thread);
    Yield();
  }
}

void BulkCopy(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  if (bytes == 0 || bytes % 16 != 0 || shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    Fail("a bulk copy that is not of aligned 16 bytes", shared, bytes);
  }
  Block* block = g_thread->block;
  At(block, shared, bytes);
  FindBarrier(block, barrier);
  CheckAccess(global, bytes, false);
  g_copies.push_back({block, shared, barrier, bytes, global});
}

void BulkCopyToBlock(uint32_t to, uint32_t shared, uint32_t bytes, uint32_t barrier) {
  const uint32_t offset = to & kOffsetMask, rank = (to >> 24) - 1;
  if (bytes == 0 || bytes % 16 != 0 || shared % 16 != 0 || offset % 16 != 0) {
    Fail("a bulk copy that is not of aligned 16 bytes", shared, bytes);
  }
  if (rank >= g_cluster.size() || barrier >> 24 != to >> 24) {
    Fail("not a block of the cluster, or not the one of the barrier", rank, barrier >> 24);
  }
  Block* block = g_cluster[rank];
  At(block, offset, bytes);
  FindBarrier(block, barrier & kOffsetMask);
  const uint8_t* from = At(g_thread->block, shared, bytes);
  CheckAccess(from, bytes, false);
  g_copies.push_back({block, offset, barrier & kOffsetMask, bytes, from, g_thread->block});
}

void CopyAsync(uint32_t shared, const void* global) {
  if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) {
    Fail("a copy that is not of aligned 16 bytes", shared);
  }
  At(g_thread->block, shared, 16);
  CheckAccess(global, 16, false);
  g_thread->copies.push_back({shared, global});
}

void BarrierArriveAfterCopies(uint32_t barrier) {
  FindBarrier(g_thread->block, barrier);
  g_copies.push_back({g_thread->block, 0, barrier, 0, nullptr, nullptr, std::move(g_thread->copies)});
  g_thread->copies.clear();
}

void ClusterArrive() {
  if (g_thread->arrived_in_cluster) Fail("a second cluster arrival without a wait");
  g_thread->arrived_in_cluster = true;
  g_thread->cluster_epoch = g_cluster_epoch;
  if (++g_cluster_arrived < g_cluster.size() * g_cluster[0]->size) return;
  g_cluster_arrived = 0;
  g_cluster_epoch = NextEpoch();
  g_ready.Add(g_at_cluster_barrier);
}

void ClusterWait() {
  if (!g_thread->arrived_in_cluster) Fail("a cluster wait without an arrival");
  while (g_cluster_epoch == g_thread->cluster_epoch) {
    g_at_cluster_barrier.push_back(g_thread);
    Yield();
  }
  g_thread->arrived_in_cluster = false;
}

void WaitForPreviousKernel() { g_thread->waited = true; }
void LetNextKernelStart() { g_lets_next_start_unwaited |= !g_thread->waited; }

}  // namespace blockgtq::emulator
