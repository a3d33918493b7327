// See phi3.h.
#include "src/models/phi3.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadPhi3(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend, {.config = {.pairing = RopePairing::kNeox}, .fused = true});
}

}  // namespace blockgtq
