// Reading a decoder's dimensions from a model's configuration, with every disagreement named. Shared by the
// architectures.
#pragma once

#include "src/models/model.h"

namespace blockgtq {

/// The keys common to decoder families (block_count and so on) and their RoPE scaling. `gguf_pairing` is the
/// family's in GGUF files. Errors: kCorruptFile (missing or contradicting keys), kUnsupported (RoPE scaling
/// types other than none, linear and Llama 3's; activations other than silu; per-layer head counts; a sliding
/// window).
Result<ModelConfig> ReadModelConfig(const ModelSource& source, RopePairing gguf_pairing);

/// After every key that the family has was read: kUnsupported naming one that nothing read.
Status CheckAllKeysRead(const ModelSource& source);

}  // namespace blockgtq
