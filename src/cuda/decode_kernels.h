// The compiled instances of the attention kernel, by file, and what tells them apart.
#pragma once

#include "src/cuda/decode_params.h"

namespace blockgtq::cuda {

using DecodeKernelPointer = void (*)(DecodeParams);

struct DecodeVariant {
  int warps = 8;              // a block
  bool few_heads = false;     // at most kFewQueryHeads query heads a KV head
  bool mean = false;          // some head of the model has a key mean
  bool warp_workers = false;  // every warp its own worker
};

/// Null where there is no such instance.
DecodeKernelPointer DecodeKernel128Value3(const DecodeVariant& variant);  // head dim 128, every value width 3
DecodeKernelPointer DecodeKernel128(const DecodeVariant& variant);        // head dim 128, any value widths
DecodeKernelPointer DecodeKernel64(const DecodeVariant& variant);         // head dim 64, any value widths

}  // namespace blockgtq::cuda
