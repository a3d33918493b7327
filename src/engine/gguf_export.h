// A model of safetensors as a GGUF file.
#pragma once

#include <functional>
#include <string>

#include "src/engine/loaded_model.h"

namespace blockgtq {

struct GgufExport {
  int64_t tensors = 0, bytes = 0;  // of the tensors
};

/// Matrices in `type` (F32, F16, BF16 or Q8_0; F16 where rows are no whole Q8_0 blocks), vectors in F32, rows
/// of Q and K in the order that GGUF files have. The tokenizer is not written (tokenizer.ggml.model "none").
/// progress: the share done. Errors: kInvalidArgument (a GGUF model, a type without an encoder); kUnsupported
/// naming an architecture or setting whose form in GGUF this build does not know, or an element that is not
/// finite in the type; kIo.
Result<GgufExport> ExportGguf(const LoadedModel& model, TensorType type, const std::string& path,
                              const std::function<void(double)>& progress);

}  // namespace blockgtq
