// See qwen3.h.
#include "src/models/qwen3.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadQwen3(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend,
                          {.config = {.pairing = RopePairing::kNeox}, .qk_norm = QkNorm::kHead});
}

}  // namespace blockgtq
