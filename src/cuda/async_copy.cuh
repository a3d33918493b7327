// Copies of a whole warp from global to shared memory that complete on a barrier: by the copy engine on
// sm_90, by 16-byte copies of every lane on sm_80.
#pragma once

#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

/// What a barrier of WarpCopy is initialised with: the lane that starts a copy arrives, or all lanes do.
constexpr int kCopyArrivals = kSm90 ? 1 : 32;

/// Starts a copy of `bytes` (a multiple of 16; 0 only completes a phase of `barrier`). The whole warp calls
/// it with the same arguments. read_once: it is the first that L2 drops (sm_90).
__device__ __forceinline__ void WarpCopy(uint32_t shared, const void* global, int bytes, uint32_t barrier,
                                         bool read_once = false) {
  const int lane = threadIdx.x & 31;
  if constexpr (kSm90) {
    if (lane != 0) return;
    BarrierExpect(barrier, bytes);
    if (bytes > 0) BulkCopy(shared, global, bytes, barrier, read_once);
  } else {
    const uint8_t* from = static_cast<const uint8_t*>(global);
#pragma unroll 4
    for (int i = 16 * lane; i < bytes; i += 16 * 32) CopyAsync(shared + i, from + i);
    BarrierArriveAfterCopies(barrier);
  }
}

/// The same for the arguments that lane `owner` has; bytes -1: no copy.
__device__ __forceinline__ void WarpCopyOf(int owner, uint32_t shared, const void* global, int bytes,
                                           uint32_t barrier, bool read_once) {
  if constexpr (kSm90) {
    if (static_cast<int>(threadIdx.x & 31) != owner || bytes < 0) return;
    BarrierExpect(barrier, bytes);
    if (bytes > 0) BulkCopy(shared, global, bytes, barrier, read_once);
  } else {
    const uint64_t address = reinterpret_cast<uint64_t>(global);
    const uint32_t low = __shfl_sync(~0u, static_cast<uint32_t>(address), owner),
                   high = __shfl_sync(~0u, static_cast<uint32_t>(address >> 32), owner);
    const int size = __shfl_sync(~0u, bytes, owner);
    if (size < 0) return;
    WarpCopy(shared, reinterpret_cast<const void*>(static_cast<uint64_t>(high) << 32 | low), size, barrier);
  }
}

}  // namespace blockgtq::cuda
