// Head dim 128 with value widths that only the plan knows; short contexts of every plan.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {

DecodeKernelPointer DecodeKernel128(const DecodeVariant& v) {
  if (v.warps != 8) return nullptr;
  return PickInstance(v, [&v]<bool kFew, bool kMean, bool kRope>() -> DecodeKernelPointer {
    if (v.split_tiles) return DecodeKernel<8, 128, kFew, 0, kMean, 1, kRope>;
    return DecodeKernel<8, 128, kFew, 0, kMean, 4, kRope>;
  });
}

}  // namespace blockgtq::cuda
