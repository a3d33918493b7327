// See olmo2.h.
#include "src/models/olmo2.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadOlmo2(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend,
                          {.config = {.pairing = RopePairing::kNeox},
                           .qk_norm = QkNorm::kProjection,
                           .norms_before = false,
                           .norms_after = true});
}

}  // namespace blockgtq
