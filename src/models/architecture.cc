// The architecture registry, and what is common to loading any of them.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <vector>

#include "src/formats/gguf_source.h"
#include "src/formats/message.h"
#include "src/formats/safetensors_source.h"
#include "src/models/chatglm.h"
#include "src/models/deepseek2.h"
#include "src/models/gemma3.h"
#include "src/models/glm4.h"
#include "src/models/llama.h"
#include "src/models/model.h"
#include "src/models/olmo2.h"
#include "src/models/phi3.h"
#include "src/models/qwen2.h"
#include "src/models/qwen3.h"
#include "src/models/qwen3moe.h"

namespace blockgtq {
namespace {

constexpr std::array<Architecture, 10> kArchitectures = {{
    {"llama", LoadLlama, kLlamaFamilies},
    {"qwen2", LoadQwen2, kQwen2Families},
    {"qwen3", LoadQwen3, kQwen3Families},
    {"qwen3moe", LoadQwen3Moe, kQwen3MoeFamilies},
    {"chatglm", LoadChatGlm, kChatGlmFamilies},
    {"glm4", LoadGlm4, kGlm4Families},
    {"gemma3", LoadGemma3, kGemma3Families},
    {"olmo2", LoadOlmo2, kOlmo2Families},
    {"phi3", LoadPhi3, kPhi3Families},
    {"deepseek2", LoadDeepSeek2, kDeepSeek2Families},
}};

std::span<const HuggingFaceFamily> AllFamilies() {
  static const std::vector<HuggingFaceFamily> families = [] {
    std::vector<HuggingFaceFamily> all;
    for (const Architecture& architecture : kArchitectures) {
      all.insert(all.end(), architecture.huggingface.begin(), architecture.huggingface.end());
    }
    return all;
  }();
  return families;
}

Status CheckRoom(const ModelSource& source, const Backend& backend) {
  int64_t matrices = 0, vectors = 0;
  for (const ModelTensor& tensor : source.tensors()) {
    (tensor.rows > 1 ? matrices : vectors) += tensor.rows * tensor.cols;
  }
  return backend.CheckRoom(matrices, vectors, source.name());
}

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

Result<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path) {
  std::error_code ignored;
  if (path.ends_with(".safetensors") || std::filesystem::is_directory(path, ignored)) {
    return OpenSafetensorsSource(path, AllFamilies());
  }
  return OpenGgufSource(path);
}

Result<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Backend& backend) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == source.architecture()) {
      BGTQ_RETURN_IF_ERROR(CheckRoom(source, backend));
      return architecture.load(source, backend);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  return Status(ErrorCode::kUnsupported,
                fmt::format("{}: architecture '{}' is not supported by this build (known: {})", source.name(),
                            Printable(source.architecture()), known));
}

}  // namespace blockgtq
