// Head dim 128 with 3-bit values, the common plan, for medium and long contexts.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {

DecodeKernelPointer DecodeKernel128Value3(const DecodeVariant& v) {
  if (v.split_tiles || (v.warps != 8 && v.warps != 12)) return nullptr;
  return PickInstance(v, [&v]<bool kFew, bool kMean, bool kRope>() -> DecodeKernelPointer {
    if (v.warps == 12) {
      // With kRope the loop over tiles would lack registers, and long contexts hardly gain from it.
      if constexpr (kRope) return nullptr;
      return DecodeKernel<12, 128, kFew, 3, kMean, 4, false>;
    }
    return DecodeKernel<8, 128, kFew, 3, kMean, 4, kRope>;
  });
}

}  // namespace blockgtq::cuda
