// See qwen3moe.h.
#include "src/models/qwen3moe.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadQwen3Moe(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(
      source, backend,
      {.config = {.pairing = RopePairing::kNeox, .experts = true}, .qk_norm = QkNorm::kHead});
}

}  // namespace blockgtq
