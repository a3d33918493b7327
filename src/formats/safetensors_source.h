// A model of Hugging Face transformers (config.json and safetensors, whole or sharded) as a ModelSource.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "src/formats/huggingface_family.h"
#include "src/formats/model_source.h"

namespace blockgtq {

/// path: a folder with config.json and model.safetensors or model.safetensors.index.json, or a .safetensors
/// file that holds a whole model beside its config.json. Weights are mapped, not read.
/// Errors: kNotFound; those of SafetensorsFile::Open, ParseSafetensorsIndex and ReadHuggingFaceConfig;
/// kCorruptFile when index, files and configuration contradict each other; kUnsupported for a dtype other
/// than F32, F16 and BF16.
Result<std::unique_ptr<ModelSource>> OpenSafetensorsSource(const std::string& path,
                                                           std::span<const HuggingFaceFamily> families);

}  // namespace blockgtq
