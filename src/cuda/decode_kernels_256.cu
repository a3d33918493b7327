// Head dim 256 with value widths that only the plan knows.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {
namespace {

template <bool kFew, bool kMean>
DecodeKernelPointer Pick(const DecodeVariant& v) {
  if (v.warps != 8) return nullptr;
  if (v.split_tiles && kMean && !kFew) return nullptr;  // it would lack registers
  if constexpr (kFew || !kMean) {
    if (v.split_tiles) return DecodeKernel<8, 256, kFew, 0, kMean, 1>;
  }
  return DecodeKernel<8, 256, kFew, 0, kMean, 4>;
}

}  // namespace

DecodeKernelPointer DecodeKernel256(const DecodeVariant& v) {
  if (v.few_heads) return v.mean ? Pick<true, true>(v) : Pick<true, false>(v);
  return v.mean ? Pick<false, true>(v) : Pick<false, false>(v);
}

}  // namespace blockgtq::cuda
