// phi3: Phi-3 and Phi-4 (dense). q, k and v in one matrix, gate and up in one; a sliding window; LongRoPE.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {

inline constexpr HuggingFaceFamily kPhi3Families[] = {
    {.model_type = "phi3", .architecture = "phi3"},
};

Result<std::unique_ptr<Model>> LoadPhi3(const ModelSource& source, Backend& backend);

}  // namespace blockgtq
