// Reading how a model rotates from its configuration: bases, partial rotation, and every scaling of
// core/rope_scaling.h, as GGUF keys and tensors or transformers' names have them.
#pragma once

#include "src/models/model.h"

namespace blockgtq {

/// Fills config.rope, config.window_rope and config.max_positions, and multiplies the attention scale of a
/// model with a latent by what YaRN's mscale_all_dim asks for; config's heads, pairing, windows and
/// context length are set. window_base: of the layers with a sliding window, where the model does not say; 0:
/// as the other layers. Errors: kCorruptFile naming key or tensor; kUnsupported (a scaling that this build
/// does not know).
Status ReadRope(const ModelSource& source, double window_base, ModelConfig& config);

}  // namespace blockgtq
