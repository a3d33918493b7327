// qwen3: Qwen3's dense models. q and k are normed by head, no biases.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {
Result<std::unique_ptr<Model>> LoadQwen3(const ModelSource& source, Backend& backend);
}
