// A model's configuration as the metadata of a GGUF file.
#pragma once

#include <string>
#include <vector>

#include "src/formats/gguf_writer.h"
#include "src/formats/model_source.h"
#include "src/models/model.h"

namespace blockgtq {

struct GgufVectorTensor {
  std::string name;
  std::vector<float> values;
};

struct GgufModelMetadata {
  GgufMetadata metadata;
  std::vector<GgufVectorTensor> tensors;  // settings that GGUF keeps as tensors: RoPE's factors
  /// One line each: what llama.cpp does not read for the architecture.
  std::vector<std::string> differences;
};

/// The keys of GGUF for a model of safetensors, `config` being what this build reads in its configuration.
/// Errors: kUnsupported naming an architecture or a setting whose form in GGUF this build does not know.
Result<GgufModelMetadata> ModelToGguf(const ModelSource& source, const ModelConfig& config);

}  // namespace blockgtq
