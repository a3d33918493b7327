// Head dim 128 with 3-bit values, the common plan, for medium and long contexts.
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/decode_kernels.h"

namespace blockgtq::cuda {
namespace {

template <bool kFew, bool kMean>
DecodeKernelPointer Pick(const DecodeVariant& v) {
  if (v.split_tiles) return nullptr;
  if (v.warps == 8) return DecodeKernel<8, 128, kFew, 3, kMean, 4>;
  return v.warps == 12 ? DecodeKernel<12, 128, kFew, 3, kMean, 4> : nullptr;
}

}  // namespace

DecodeKernelPointer DecodeKernel128Value3(const DecodeVariant& v) {
  if (v.few_heads) return v.mean ? Pick<true, true>(v) : Pick<true, false>(v);
  return v.mean ? Pick<false, true>(v) : Pick<false, false>(v);
}

}  // namespace blockgtq::cuda
