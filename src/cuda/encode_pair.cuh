// What encoding and unpacking share: arithmetic on fp16 pairs as 32-bit words, and asynchronous copies.
#pragma once

#include <bit>
#include <cstdint>

#include "src/cuda/ptx.cuh"

namespace blockgtq::cuda {

/// The fp16 pair (v, v) of a normal number, rounded to nearest.
constexpr uint32_t HalfPair(float v) {
  if (v == 0.0f) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(v), magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u;
  return ((bits >> 16 & 0x8000u) | rounded >> 13) * 0x10001u;
}
__device__ __forceinline__ uint32_t PairFma(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
/// a * b + c clamped to [0, 1]; 0 for NaN.
__device__ __forceinline__ uint32_t PairFmaClamped(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.sat.f16x2 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t PairMultiply(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t PairAdd(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t PairSubtract(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
/// a + b clamped to [0, 1].
__device__ __forceinline__ uint32_t PairAddClamped(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.sat.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t PairMin(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("min.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  uint32_t d;
  asm("cvt.rn.satfinite.f16x2.f32 %0,%1,%2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
constexpr uint32_t kPairMagnitude = 0x7fff7fffu;

// ---- 16-byte copies of global to shared memory

/// 16 bytes of zeros; `any` is not read.
__device__ __forceinline__ void ClearAsync(uint32_t shared, const void* any) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,0;" ::"r"(shared), "l"(any) : "memory");
}
__device__ __forceinline__ void EndCopyGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for the thread's own copies, all but the last `kGroups` groups.
template <int kGroups>
__device__ __forceinline__ void WaitForCopiesBut() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
__device__ __forceinline__ void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace blockgtq::cuda
