// Head dim 256 with value widths that only the plan knows.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {

DecodeKernelPointer DecodeKernel256(const DecodeVariant& v) {
  if (v.warps != 8) return nullptr;
  if (v.split_tiles && v.mean && !v.few_heads) return nullptr;  // it would lack registers
  return PickInstance(v, [&v]<bool kFew, bool kMean, bool kRope>() -> DecodeKernelPointer {
    if constexpr (kFew || !kMean) {
      if (v.split_tiles) return DecodeKernel<8, 256, kFew, 0, kMean, 1, kRope>;
    }
    return DecodeKernel<8, 256, kFew, 0, kMean, 4, kRope>;
  });
}

}  // namespace blockgtq::cuda
