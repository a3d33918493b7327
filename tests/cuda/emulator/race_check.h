// Races in shared memory and around programmatic dependent launch. The kernels are compiled with
// -fsanitize=thread, whose calls on every access end here instead of in ThreadSanitizer's library.
//
// In dynamic shared memory, two accesses of one byte, one of them a write, must be separated: by
// __syncthreads between warps, by __syncwarp (or __syncthreads) between lanes of a warp. Shuffles and
// mbarriers do not count. What bulk copies write and static shared memory are not watched. In global memory,
// a thread of a kernel that started early may not write before it has waited for the kernels ahead, nor read
// (or start a copy of) what one of them that may still run wrote. It has waited where a thread that it has
// met in such a barrier did.
#pragma once

#include <cstddef>
#include <cstdint>

namespace blockgtq::emulator {

void CheckAccess(const void* p, size_t bytes, bool write);

}  // namespace blockgtq::emulator
