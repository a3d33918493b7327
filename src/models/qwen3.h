// qwen3: Qwen3's dense models. q and k are normed by head, no biases.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kQwen3Families[] = {
    {.model_type = "qwen3", .architecture = "qwen3", .window_needs_flag = true},
};

Result<std::unique_ptr<Model>> LoadQwen3(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
