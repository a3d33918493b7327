// glm4: GLM-4-0414. As chatglm, with norms after attention and feed-forward too.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kGlm4Families[] = {
    {.model_type = "glm4", .architecture = "glm4", .pairing = RopePairing::kNorm, .rotary_share = 0.5},
};

Result<std::unique_ptr<Model>> LoadGlm4(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
