// llama: Llama 1-3, SmolLM2 and others of the family. RoPE pairs (2j, 2j + 1), no biases; Llama 3's frequency
// divisors.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kLlamaFamilies[] = {
    {.model_type = "llama", .architecture = "llama"},
    {.model_type = "mistral", .architecture = "llama"},
};

Result<std::unique_ptr<Model>> LoadLlama(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
