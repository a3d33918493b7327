// qwen3moe: Qwen3's mixtures of experts. As qwen3, with experts in every layer.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kQwen3MoeFamilies[] = {
    {.model_type = "qwen3_moe", .architecture = "qwen3moe", .window_needs_flag = true},
};

Result<std::unique_ptr<Model>> LoadQwen3Moe(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
