// See gemma3.h.
#include "src/models/gemma3.h"

#include <cmath>

#include "src/models/dense_decoder.h"

namespace blockgtq {
namespace {

/// GGUF files do not state it: the 27B model, the one of 62 layers, scales by its width and not by head_dim.
float Scale(const ModelConfig& config) {
  if (config.layers != 62) return config.attention_scale;
  return 1.0f / std::sqrt(static_cast<float>(config.embedding) / static_cast<float>(config.heads));
}

}  // namespace

Result<std::unique_ptr<Model>> LoadGemma3(const ModelSource& source, Backend& backend) {
  return LoadDenseDecoder(source, backend,
                          {.config = {.pairing = RopePairing::kNeox,
                                      .gate = GateFunction::kGeluTanh,
                                      .window_pattern = 6,
                                      .window_base = 10000.0},
                           .qk_norm = QkNorm::kHead,
                           .norms_after = true,
                           .scaled_embedding = true,
                           .attention_scale = Scale});
}

}  // namespace blockgtq
