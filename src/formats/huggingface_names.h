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

}  // namespace blockgtq
