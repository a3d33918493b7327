// gemma3: Gemma 3 (text). Most layers have a sliding window and a RoPE base of their own; norms before and
// after both halves of a layer, q and k normed by head, embeddings scaled by sqrt(width), a GELU gate.
#pragma once

#include <memory>

#include "src/models/model.h"

namespace blockgtq {
Result<std::unique_ptr<Model>> LoadGemma3(const ModelSource& source, Backend& backend);
}
