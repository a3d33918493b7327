// A model of safetensors as a GGUF file.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/engine/loaded_model.h"

namespace blockgtq {

struct GgufExportOptions {
  TensorType type = TensorType::kF16;      // of matrices: F32, F16, BF16 or Q8_0
  bool tokenizer = true;                   // false: tokenizer.ggml.model "none", a file that runs on ids
  std::function<void(double)> progress{};  // the share done
};

struct GgufExport {
  int64_t tensors = 0, bytes = 0;  // of the tensors
  /// One line each: what readers of the file do otherwise than the model in safetensors, for GGUF has no
  /// words for it.
  std::vector<std::string> differences;
};

/// Matrices in options.type (F16 where rows are no whole Q8_0 blocks; routers of experts in F32), vectors in
/// F32, rows of Q and K in the order that GGUF files have, tokenizer and chat template of the folder.
/// Errors: kInvalidArgument (a GGUF model, a type without an encoder); kUnsupported naming an architecture, a
/// setting or a tokenizer whose form in GGUF this build does not know, or an element that is not finite in
/// the type; kNotFound without a tokenizer.json; kIo.
Result<GgufExport> ExportGguf(const LoadedModel& model, const GgufExportOptions& options,
                              const std::string& path);

}  // namespace blockgtq
