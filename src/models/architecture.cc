// The architecture registry, and what is common to loading any of them.
#include <fmt/format.h>

#include <array>

#include "src/formats/gguf_source.h"
#include "src/formats/message.h"
#include "src/models/llama.h"
#include "src/models/model.h"
#include "src/models/qwen2.h"

namespace blockgtq {
namespace {

constexpr std::array<Architecture, 2> kArchitectures = {{
    {"llama", LoadLlama},
    {"qwen2", LoadQwen2},
}};

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

Result<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path) { return OpenGgufSource(path); }

Result<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Backend& backend) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == source.architecture()) return architecture.load(source, backend);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  return Status(ErrorCode::kUnsupported,
                fmt::format("{}: architecture '{}' is not supported by this build (known: {})", source.name(),
                            Printable(source.architecture()), known));
}

}  // namespace blockgtq
