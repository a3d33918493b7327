// Reading a decoder's dimensions from a model's configuration, with every disagreement named. Shared by the
// architectures.
#pragma once

#include "src/models/model.h"

namespace blockgtq {

/// What a family's configuration means where the file does not say.
struct ConfigDefaults {
  RopePairing pairing = RopePairing::kNorm;  // in GGUF files
  GateFunction gate = GateFunction::kSilu;
  int window_pattern = 1;       // each such layer sees all, the others have the window; 1: all have it
  double window_base = 0;       // RoPE's base in windowed layers; 0: as the other layers
  bool experts = false;         // the family has mixtures of experts; otherwise they are refused
  bool renormalise = true;      // of experts' weights, in GGUF files
  bool shared_experts = false;  // some experts may be shared, the first layers dense
  bool latent = false;          // multi-head latent attention
};

/// The keys common to decoder families (block_count and so on), their windows, experts and RoPE. Errors:
/// kCorruptFile (missing or contradicting keys), kUnsupported (RoPE scalings, activations and routers that
/// this build does not know; per-layer head counts; head dimensions that do not fill whole units).
Result<ModelConfig> ReadModelConfig(const ModelSource& source, const ConfigDefaults& defaults);

/// After every key that the family has was read: kUnsupported naming one that nothing read.
Status CheckAllKeysRead(const ModelSource& source);

}  // namespace blockgtq
