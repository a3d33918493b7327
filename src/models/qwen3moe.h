// qwen3moe: Qwen3's mixtures of experts. As qwen3, with experts in every layer.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {
Result<std::unique_ptr<Model>> LoadQwen3Moe(const ModelSource& source, Backend& backend);
}
