// qwen2: Qwen2 and Qwen2.5. RoPE pairs (j, j + D/2), biases on q, k and v; the key bias is why its mean is
// removed.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kQwen2Families[] = {
    {.model_type = "qwen2", .architecture = "qwen2", .window_needs_flag = true},
};

Result<std::unique_ptr<Model>> LoadQwen2(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
