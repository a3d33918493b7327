// A GPU on one CPU thread, as far as the emulated kernels need one: what the stand-ins for the CUDA headers
// (include/) call. Each CUDA thread is a fiber that runs until it has to wait; what waits and what runs next
// is shuffled, differently in each launch. Blocks of a cluster live at the same time, clusters run one after
// another, the last one first. Whatever is an error or undefined on a GPU (a deadlock, lanes that diverge
// before a warp-wide instruction, a misaligned copy, an access out of bounds, ...) ends the program with
// status 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace blockgtq::emulator {

struct KernelLaunch {
  unsigned blocks, threads, cluster_blocks;
  size_t shared_bytes;
  bool early;  // may start before the kernel ahead of it has finished
  std::function<void()> body;
};
void Launch(const KernelLaunch& launch);

/// Ends the program: says what, two numbers that explain it, which thread, and where.
[[noreturn]] void Fail(const char* what, int64_t a = 0, int64_t b = 0);

// ---- Called by the threads of a kernel.

/// A warp-wide instruction: when all 32 lanes are here, one of them calls execute(the lanes' arguments).
/// Lanes that wait in instructions of different names have diverged.
void WarpInstruction(const char* name, void* argument, void (*execute)(void* const* arguments));
void SyncWarp();
enum class Shuffle { kFrom, kXor, kUp };
uint32_t ShuffleLanes(Shuffle kind, uint32_t value, int argument);
int AnyLane(int value);

void SyncThreads();
uint8_t* DynamicShared();

// Addresses of shared memory: the offset in the block's dynamic part; in the highest byte 1 + the rank of the
// cluster's block, or 0 for the own block.
uint32_t SharedAddress(const void* p);
uint32_t ClusterAddress(uint32_t shared, int rank);

void BarrierInit(uint32_t barrier, int arrivals);
void BarrierArrive(uint32_t barrier, int64_t expected_bytes);
void BarrierWait(uint32_t barrier, uint32_t parity);
/// Happens some time later, at the latest when no thread can go on without it.
void BulkCopy(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier);
/// The same from this block's shared memory; to, barrier: of a block of the cluster, maybe of this one.
/// Whether fences stand between writes and the copy is not checked.
void BulkCopyToBlock(uint32_t to, uint32_t shared, uint32_t bytes, uint32_t barrier);

/// 16 bytes; happens together with the thread's others after BarrierArriveAfterCopies, some time later, and
/// the arrival with them.
void CopyAsync(uint32_t shared, const void* global);
void BarrierArriveAfterCopies(uint32_t barrier);

void ClusterArrive();
void ClusterWait();
void WaitForPreviousKernel();
void LetNextKernelStart();

}  // namespace blockgtq::emulator
