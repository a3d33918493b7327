// Head dim 128 with 3-bit values: the common plan, in every configuration.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {
namespace {

template <bool kFew, bool kMean>
DecodeKernelPointer Pick(const DecodeVariant& v) {
  if (v.warp_workers) {
    if constexpr (kFew && !kMean)
      return v.warps == 12 ? DecodeKernel<12, 128, true, 3, false, true> : nullptr;
    return nullptr;
  }
  if (v.warps == 8) return DecodeKernel<8, 128, kFew, 3, kMean, false>;
  return v.warps == 12 ? DecodeKernel<12, 128, kFew, 3, kMean, false> : nullptr;
}

}  // namespace

DecodeKernelPointer DecodeKernel128Value3(const DecodeVariant& v) {
  if (v.few_heads) return v.mean ? Pick<true, true>(v) : Pick<true, false>(v);
  return v.mean ? Pick<false, true>(v) : Pick<false, false>(v);
}

}  // namespace blockgtq::cuda
