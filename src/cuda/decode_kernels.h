// The compiled instances of the attention kernel, by file, and what tells them apart.
#pragma once

#include "src/cuda/decode_params.h"

namespace blockgtq::cuda {

using DecodeKernelPointer = void (*)(DecodeParams);

inline constexpr int kWarpWorkerWarps = 12;  // a block of decode_warp_kernel.cu

struct DecodeVariant {
  int warps = 8;              // a block
  bool few_heads = false;     // at most kFewQueryHeads query heads a work head
  bool mean = false;          // some head of the model has a key mean
  bool split_tiles = false;   // four warps share a tile: for short contexts
  bool warp_workers = false;  // every warp its own worker: for many short sequences
  bool rope = false;          // rotates and stores the newest token itself (FusedRope)
};

/// pick.operator()<few heads, mean, rope>() with what the variant says.
template <typename Pick>
DecodeKernelPointer PickInstance(const DecodeVariant& v, Pick pick) {
  const auto with_rope = [&]<bool kFew, bool kMean>() {
    return v.rope ? pick.template operator()<kFew, kMean, true>()
                  : pick.template operator()<kFew, kMean, false>();
  };
  const auto with_mean = [&]<bool kFew>() {
    return v.mean ? with_rope.template operator()<kFew, true>()
                  : with_rope.template operator()<kFew, false>();
  };
  return v.few_heads ? with_mean.template operator()<true>() : with_mean.template operator()<false>();
}

/// Null where there is no such instance.
DecodeKernelPointer DecodeKernel128Value3(const DecodeVariant& variant);  // head dim 128, every value width 3
DecodeKernelPointer DecodeKernel128(const DecodeVariant& variant);        // head dim 128, any value widths
DecodeKernelPointer DecodeKernel64(const DecodeVariant& variant);         // head dim 64, any value widths
DecodeKernelPointer DecodeKernel256(const DecodeVariant& variant);        // head dim 256, any value widths

/// Head dim 128, every value width 3, few heads, no mean.
DecodeKernelPointer WarpWorkerDecodeKernel();

}  // namespace blockgtq::cuda
