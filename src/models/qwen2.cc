// See qwen2.h.
#include "src/models/qwen2.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadQwen2(const GgufFile& file, Backend& backend) {
  return LoadDenseDecoder(file, backend, {.pairing = RopePairing::kNeox, .qkv_bias = true});
}

}  // namespace blockgtq
