// See llama.h.
#include "src/models/llama.h"

#include "src/models/dense_decoder.h"

namespace blockgtq {

Result<std::unique_ptr<Model>> LoadLlama(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend, {});
}

}  // namespace blockgtq
