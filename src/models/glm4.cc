// See glm4.h.
#include "src/models/glm4.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadGlm4(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend,
                          {.qkv_bias = Presence::kOptional, .norms_after = true, .fused = true});
}

}  // namespace blockgtq
