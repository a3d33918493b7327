// olmo2: OLMo 2. Norms after attention and feed-forward alone; q and k are normed over all heads together.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {
Result<std::unique_ptr<Model>> LoadOlmo2(const ModelSource& source, Backend& backend);
}
