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
};

/// Null where there is no such instance.
DecodeKernelPointer DecodeKernel128Value3(const DecodeVariant& variant);  // head dim 128, every value width 3
DecodeKernelPointer DecodeKernel128(const DecodeVariant& variant);        // head dim 128, any value widths
DecodeKernelPointer DecodeKernel64(const DecodeVariant& variant);         // head dim 64, any value widths
DecodeKernelPointer DecodeKernel256(const DecodeVariant& variant);        // head dim 256, any value widths

/// Head dim 128, every value width 3, few heads, no mean.
DecodeKernelPointer WarpWorkerDecodeKernel();

}  // namespace blockgtq::cuda
