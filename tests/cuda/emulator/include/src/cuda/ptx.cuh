// Stand-in for the header of this name in src/cuda: the same functions on the emulator. The folder of this
// file's include/ comes first in the emulated programs' search path.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

/// See the original.
#define BGTQ_DYNAMIC_SHARED(type, alignment, name) \
  type* const name = reinterpret_cast<type*>(blockgtq::emulator::DynamicShared())

namespace blockgtq::cuda {

constexpr bool kSm90 = BGTQ_EMULATED_SM == 90;

inline int WarpIndex() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x >> 5), 0); }

template <typename T>
inline T Fresh(T x) {
  return x;
}
inline float FreshZero() { return 0; }

uint32_t SelectBytes(uint32_t a, uint32_t b, uint32_t selectors);
inline uint32_t SelectBits(uint32_t mask, uint32_t a, uint32_t b) { return (mask & a) | (~mask & b); }
inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }
uint32_t TransposeB16(uint32_t x);

void ExchangeMatrixRows(uint32_t (&r)[4], const uint4& row, bool transposed);
template <bool kTransposed>
void LoadMatrixRows(uint32_t (&r)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator::Fail("a matrix's row is not aligned");
  ExchangeMatrixRows(r, *static_cast<const uint4*>(row), kTransposed);
}

// ---- tensor products (instructions.cc)
struct Int4 {
  int x, y, z, w;
};
void MmaS8K32(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
void MmaS8K32From(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                  const Int4& c);
void MmaS8K16(int* d, uint32_t a0, uint32_t a1, uint32_t b0);
void MmaS8U8K16(int* d, uint32_t a0, uint32_t a1, uint32_t b0);
void MmaS8U8K16From(int* d, uint32_t a0, uint32_t a1, uint32_t b0, const Int4& c);
void MmaS8U8K32(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1);
void MmaS8U8K32From(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                    const Int4& c);
void MmaF16(float* d, uint4 a, uint32_t b0, uint32_t b1);
void MmaF16FromZero(float* d, uint4 a, uint32_t b0, uint32_t b1);

constexpr int kAccumulatorStart = 0x4B400000;
constexpr float kAccumulatorStartFloat = 12582912.0f;
inline float AccumulatorToFloat(int a) { return __int_as_float(a) - kAccumulatorStartFloat; }

// ---- copies
inline uint32_t SharedAddress(const void* p) { return emulator::SharedAddress(p); }
inline void BarrierInit(uint32_t barrier, int arrivals) { emulator::BarrierInit(barrier, arrivals); }
inline void BarrierInitFence() {}
inline void BarrierArrive(uint32_t barrier) { emulator::BarrierArrive(barrier, 0); }
inline void BarrierExpect(uint32_t barrier, uint32_t bytes) { emulator::BarrierArrive(barrier, bytes); }
inline void BarrierWait(uint32_t barrier, uint32_t phase) { emulator::BarrierWait(barrier, phase); }
inline void BulkCopy(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier,
                     bool /*read_once*/) {
  emulator::BulkCopy(shared, global, bytes, barrier);
}
inline void BulkCopyToBlock(uint32_t to, uint32_t shared, uint32_t bytes, uint32_t barrier) {
  emulator::BulkCopyToBlock(to, shared, bytes, barrier);
}
inline void FenceAsyncProxy() {}
inline void CopyAsync(uint32_t shared, const void* global) { emulator::CopyAsync(shared, global); }
inline void BarrierArriveAfterCopies(uint32_t barrier) { emulator::BarrierArriveAfterCopies(barrier); }
inline void PrefetchToL2(const void*) {}

// ---- clusters of blocks
inline void ClusterArriveRelaxed() { emulator::ClusterArrive(); }
inline void ClusterWait() { emulator::ClusterWait(); }
inline uint32_t ClusterAddress(uint32_t shared, int rank) { return emulator::ClusterAddress(shared, rank); }

// ---- words between blocks
inline void SendWord(uint64_t* to, uint64_t word) { *to = word; }
inline uint64_t ReceiveWord(const uint64_t* from) { return *from; }
inline void BetweenPolls() { emulator::Fail("a block waits for a word of a cluster before it"); }

// ---- programmatic dependent launch
inline void WaitForPreviousKernel() { emulator::WaitForPreviousKernel(); }
inline void LetNextKernelStart() { emulator::LetNextKernelStart(); }

}  // namespace blockgtq::cuda
