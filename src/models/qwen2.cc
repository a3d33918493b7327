// See qwen2.h.
#include "src/models/qwen2.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadQwen2(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend,
                          {.config = {.pairing = RopePairing::kNeox}, .qkv_bias = Presence::kRequired});
}

}  // namespace blockgtq
