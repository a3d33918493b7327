// gemma3: Gemma 3 (text). Most layers have a sliding window and a RoPE base of their own; norms before and
// after both halves of a layer, q and k normed by head, embeddings scaled by sqrt(width), a GELU gate.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceTensorName kGemma3Tensors[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
};
inline constexpr HuggingFaceFamily kGemma3Families[] = {
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .norms_add_one = true,
     .rope_theta = 1e6,
     .layer_tensors = kGemma3Tensors},
};

Result<std::unique_ptr<Model>> LoadGemma3(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
