// The pre-norm decoder that llama, qwen2 and their kin share: RMS norm, grouped-query attention with RoPE,
// RMS norm, SwiGLU feed-forward, residuals. A family that differs only in its tensors and pairing is one file
// that calls this.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

/// Where a family departs from the plainest form.
struct DenseDecoderTraits {
  RopePairing pairing = RopePairing::kNorm;  // in GGUF files
  bool qkv_bias = false;                     // attn_{q,k,v}.bias are required; otherwise they must be absent
};

Result<std::unique_ptr<Model>> LoadDenseDecoder(const ModelSource& source, Backend& backend,
                                                const DenseDecoderTraits& traits);

}  // namespace blockgtq
