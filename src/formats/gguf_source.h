// A GGUF file as a ModelSource.
#pragma once

#include <memory>
#include <string>

#include "src/formats/model_source.h"

namespace blockgtq {

/// Errors: those of GgufFile::Open; kCorruptFile without general.architecture.
Result<std::unique_ptr<ModelSource>> OpenGgufSource(const std::string& path);
/// The same of a file that is open already.
Result<std::unique_ptr<ModelSource>> MakeGgufSource(std::unique_ptr<GgufFile> file);

}  // namespace blockgtq
