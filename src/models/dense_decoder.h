// The decoder that llama, qwen, mistral, gemma and their kin share: RMS norms, grouped-query attention with
// RoPE, a gated feed-forward or a mixture of experts, residuals. A family that differs only in its tensors
// and in what DenseDecoderTraits states is one file that calls this.
#pragma once

#include <memory>

#include "src/models/model.h"
#include "src/models/model_config.h"

namespace blockgtq {

enum class Presence { kAbsent, kOptional, kRequired };

/// RMS norms of q and k between their projections and RoPE (attn_q_norm, attn_k_norm).
enum class QkNorm {
  kNone,
  kHead,        // of each head; [head_dim] weights that all heads share
  kProjection,  // over all heads together; [heads * head_dim]
};

/// Where a family departs from the plainest form.
struct DenseDecoderTraits {
  ConfigDefaults config{};
  Presence qkv_bias = Presence::kAbsent;  // attn_{q,k,v}.bias, all three or none
  QkNorm qk_norm = QkNorm::kNone;
  bool norms_before = true;  // attn_norm, ffn_norm: of what enters attention and feed-forward
  bool norms_after = false;  // post_attention_norm, post_ffw_norm: of what they add to the residual
  bool fused = false;        // the file may hold attn_qkv instead of q, k and v, and gate's rows in ffn_up
  bool scaled_embedding = false;  // embeddings times sqrt(embedding length)
  /// What a GGUF file's attention scale is where it is not 1 / sqrt(head_dim); may be null.
  float (*attention_scale)(const ModelConfig& config) = nullptr;
};

/// Errors: those of ReadModelConfig; kCorruptFile (a tensor's shape), kUnsupported (a key or tensor that the
/// family does not have; an operation that the backend lacks).
Result<std::unique_ptr<Model>> LoadDenseDecoder(const ModelSource& source, Backend& backend,
                                                const DenseDecoderTraits& traits);

}  // namespace blockgtq
