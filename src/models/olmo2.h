// olmo2: OLMo 2. Norms after attention and feed-forward alone; q and k are normed over all heads together.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceTensorName kOlmo2Tensors[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
};
inline constexpr HuggingFaceFamily kOlmo2Families[] = {
    {.model_type = "olmo2", .architecture = "olmo2", .layer_tensors = kOlmo2Tensors},
};

Result<std::unique_ptr<Model>> LoadOlmo2(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
