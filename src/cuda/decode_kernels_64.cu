// Head dim 64 with value widths that only the plan knows: 8 warps, block workers.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {

DecodeKernelPointer DecodeKernel64(const DecodeVariant& v) {
  if (v.warps != 8 || v.warp_workers) return nullptr;
  if (v.few_heads)
    return v.mean ? DecodeKernel<8, 64, true, 0, true, false> : DecodeKernel<8, 64, true, 0, false, false>;
  return v.mean ? DecodeKernel<8, 64, false, 0, true, false> : DecodeKernel<8, 64, false, 0, false, false>;
}

}  // namespace blockgtq::cuda
