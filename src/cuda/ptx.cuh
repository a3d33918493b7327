// Thin names for the PTX instructions that the kernels use: int8 and fp16 tensor products, byte selection,
// asynchronous copies with their barriers, and, on sm_90 and later, clusters and programmatic dependent
// launch. Code for sm_80 has the same names: there a cluster is one block, and no kernel starts early.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

/// Declares `name`, the block's dynamic shared memory. A macro because the emulator, which has its own
/// version of this header (tests/cuda/emulator), keeps a block's memory elsewhere.
#define BGTQ_DYNAMIC_SHARED(type, alignment, name) \
  extern __shared__ __align__(alignment)           \
  type name[]

namespace blockgtq::cuda {

/// Whether the code is for sm_90 or later, with bulk copies, clusters and programmatic dependent launch. What
/// host code asks is HasSm90Code() (launch.cuh).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kSm90 = false;
#else
constexpr bool kSm90 = true;
#endif

/// The warp's index in its block, in a form that the compiler knows to be the same for the whole warp.
__device__ __forceinline__ int WarpIndex() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x >> 5), 0); }

/// x, as a value that the compiler cannot know again: what is computed from it is not kept in registers from
/// one turn of a loop to the next.
__device__ __forceinline__ int Fresh(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <typename T>
__device__ __forceinline__ const T* Fresh(const T* x) {
  asm volatile("" : "+l"(x));
  return x;
}

/// 0, defined here and nowhere else: a variable that is only set under a condition then takes no register in
/// the turn of a loop before.
__device__ __forceinline__ float FreshZero() {
  float x;
  asm volatile("mov.f32 %0,0f00000000;" : "=f"(x));
  return x;
}

/// Four bytes selected from the eight bytes of (a, b) by the nibbles of `selectors`.
__device__ __forceinline__ uint32_t SelectBytes(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t r;
  asm("prmt.b32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(selectors));
  return r;
}

/// mask ? a : b, bit by bit.
__device__ __forceinline__ uint32_t SelectBits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t r;
  asm("lop3.b32 %0,%1,%2,%3,0xca;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
  return r;
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

/// Transposes an 8 x 8 matrix of 16-bit elements that the warp holds two a lane.
__device__ __forceinline__ uint32_t TransposeB16(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(y) : "r"(x));
  return y;
}

/// Four 8 x 8 matrices of 16-bit elements from shared memory: lanes 8 i .. 8 i + 7 name the rows of matrix i,
/// 16 bytes each. r[i]: of that matrix, or with kTransposed of its transpose, row lane / 4, elements
/// 2 (lane mod 4) and the next.
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrixRows(uint32_t (&r)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

// ---- tensor products. d [16, 8] += a [16, k] b [k, 8]; fragments as the PTX manual lays them out.

struct Int4 {
  int x, y, z, w;
};

__device__ __forceinline__ void MmaS8K32(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// The same with the accumulator's start in another register quad: spares the moves.
__device__ __forceinline__ void MmaS8K32From(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                             uint32_t b0, uint32_t b1, const Int4& c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w));
}
__device__ __forceinline__ void MmaS8K16(int* d, uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ void MmaS8U8K16(int* d, uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ void MmaS8U8K16From(int* d, uint32_t a0, uint32_t a1, uint32_t b0, const Int4& c) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%7,%8,%9,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b0), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w));
}
/// Signed a, unsigned b.
__device__ __forceinline__ void MmaS8U8K32(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaS8U8K32From(int* d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1, const Int4& c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w));
}
__device__ __forceinline__ void MmaF16(float* d, uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
/// d = a b.
__device__ __forceinline__ void MmaF16FromZero(float* d, uint4 a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(0.0f));
}

// ---- int32 accumulators that start at kAccumulatorStart read as floats: one FADD converts them, exact while
// the sum stays below 2^22 in magnitude.
constexpr int kAccumulatorStart = 0x4B400000;
constexpr float kAccumulatorStartFloat = 12582912.0f;
__device__ __forceinline__ float AccumulatorToFloat(int a) {
  return __int_as_float(a) - kAccumulatorStartFloat;
}

// ---- copies of global to shared memory, and barriers that they complete on (async_copy.cuh)

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals));
}
/// Before a barrier is used, __syncthreads as well.
__device__ __forceinline__ void BarrierInitFence() {
  if constexpr (kSm90) asm volatile("fence.mbarrier_init.release.cluster;");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 S;\nmbarrier.arrive.shared.b64 S,[%0];\n}" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t phase) {
  if constexpr (kSm90) {
    asm volatile(
        "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared.b64 P1,[%0],%1;\n@P1 bra DONE;\n"
        "bra LAB_WAIT;\nDONE:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.test_wait.parity.shared.b64 P1,[%0],%1;\n@P1 bra DONE;\n"
        "bra LAB_WAIT;\nDONE:\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
  }
}
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// How L2 keeps what a copy reads: data that is read again, or that leaves before anything else does.
__device__ __forceinline__ uint64_t CachePolicy(bool read_once) {
  uint64_t again, once;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0,1.0;" : "=l"(again));
  asm("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(once));
  return read_once ? once : again;
}
/// Copies `bytes` (a multiple of 16) of global memory to shared memory; completes on `barrier`.
__device__ __forceinline__ void BulkCopy(uint32_t shared, const void* global, uint32_t bytes,
                                         uint32_t barrier, bool read_once) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1],%2,[%3],%4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(CachePolicy(read_once))
      : "memory");
}
/// Copies `bytes` (a multiple of 16) of this block's shared memory, written before a FenceAsyncProxy, to
/// another block of the cluster: `to` and `barrier`, which it completes on, are cluster addresses.
__device__ __forceinline__ void BulkCopyToBlock(uint32_t to, uint32_t shared, uint32_t bytes,
                                                uint32_t barrier) {
  if constexpr (kSm90) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(to),
        "r"(shared), "r"(bytes), "r"(barrier)
        : "memory");
  }
}
/// Makes what this thread wrote to shared memory visible to bulk copies that start after a __syncthreads.
__device__ __forceinline__ void FenceAsyncProxy() {
  if constexpr (kSm90) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// This thread copies 16 bytes.
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared), "l"(global) : "memory");
}
/// Arrives at `barrier` when this thread's copies of 16 bytes, all so far, are there.
__device__ __forceinline__ void BarrierArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void PrefetchToL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// ---- clusters of blocks
/// Without publishing what this block wrote (that is a fence of the whole GPU): enough to say that its
/// barriers are initialised (BarrierInitFence), or its reads of what others sent over.
__device__ __forceinline__ void ClusterArriveRelaxed() {
  if constexpr (kSm90) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void ClusterWait() {
  if constexpr (kSm90) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The address of `shared` (of this block) in block `rank` of the cluster.
__device__ __forceinline__ uint32_t ClusterAddress(uint32_t shared, int rank) {
  uint32_t r = shared;
  if constexpr (kSm90) asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(shared), "r"(rank));
  return r;
}

// ---- words that blocks send each other through global memory: what is in one word arrives together
__device__ __forceinline__ void SendWord(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t ReceiveWord(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
/// Between two looks at a word that is not there yet.
__device__ __forceinline__ void BetweenPolls() {}

// ---- programmatic dependent launch
/// Waits until the kernel before this one in the stream has finished and its writes are visible.
__device__ __forceinline__ void WaitForPreviousKernel() {
  if constexpr (kSm90) asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// Lets the next kernel's blocks start as soon as resources allow.
__device__ __forceinline__ void LetNextKernelStart() {
  if constexpr (kSm90) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace blockgtq::cuda
