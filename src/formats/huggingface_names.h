// Tensor names of Hugging Face models as GGUF's.
#pragma once

#include <string>
#include <string_view>

#include "src/formats/huggingface_family.h"

namespace blockgtq {

struct GgufTensorName {
  std::string name;
  int expert = -1;  // >= 0: the tensor is this expert's part of the tensor `name`
};

/// A name that has no rule stays as it is: whoever reads the model will not ask for it, and it is refused.
GgufTensorName ToGgufName(const HuggingFaceFamily& family, std::string_view stored);

/// The names that ToGgufName would take for `gguf`, joined by " or ", of experts the first's; `gguf` itself
/// where there is none. For messages.
std::string StoredNames(const HuggingFaceFamily& family, std::string_view gguf);

}  // namespace blockgtq
