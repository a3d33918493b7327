// chatglm: GLM-4-9B. Half of each head rotates, in pairs (2j, 2j + 1); gate and up in one matrix.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kChatGlmFamilies[] = {
    {.model_type = "glm", .architecture = "chatglm", .pairing = RopePairing::kNorm, .rotary_share = 0.5},
};

Result<std::unique_ptr<Model>> LoadChatGlm(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
