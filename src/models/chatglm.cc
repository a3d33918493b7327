// See chatglm.h.
#include "src/models/chatglm.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadChatGlm(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend, {.qkv_bias = Presence::kOptional, .fused = true});
}

}  // namespace blockgtq
