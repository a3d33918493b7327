// deepseek2: DeepSeek-V2 and V2-Lite. Multi-head latent attention: the cache holds a latent and one rope key
// a token, and heads attend to the latents without expanding them. Mixtures of experts, some of them shared,
// after the first layers; YaRN, whose mscale goes into the softmax's scale.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kDeepSeek2Families[] = {
    {.model_type = "deepseek_v2", .architecture = "deepseek2", .pairing = RopePairing::kNorm},
};

Result<std::unique_ptr<Model>> LoadDeepSeek2(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
