// See fingerprint_json.h.
#include "src/formats/fingerprint_json.h"

namespace blockgtq {

nlohmann::ordered_json FingerprintJson(const ModelFingerprint& model) {
  return {{"architecture", model.architecture},
          {"layers", model.layers},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"rope_freq_base", model.rope_freq_base},
          {"rotary_dims", model.rotary_dims},
          {"rope_pairing", model.rope_pairing},
          {"rope_scaling_hash", model.rope_scaling_hash},
          {"key_weights_hash", model.key_weights_hash}};
}

Result<ModelFingerprint> ReadFingerprint(const JsonFields& fields) {
  ModelFingerprint model;
  BGTQ_ASSIGN_OR_RETURN(model.architecture, fields.Text("architecture"));
  BGTQ_RETURN_IF_ERROR(ReadInt(fields, "layers", 1, kMaxFingerprintLayers, &model.layers));
  BGTQ_RETURN_IF_ERROR(ReadInt(fields, "heads", 1, kMaxFingerprintLayers, &model.heads));
  BGTQ_RETURN_IF_ERROR(ReadInt(fields, "kv_heads", 1, kMaxFingerprintLayers, &model.kv_heads));
  BGTQ_RETURN_IF_ERROR(ReadInt(fields, "head_dim", 2, kMaxFingerprintDim, &model.head_dim));
  BGTQ_RETURN_IF_ERROR(ReadInt(fields, "rotary_dims", 0, kMaxFingerprintDim, &model.rotary_dims));
  BGTQ_ASSIGN_OR_RETURN(model.rope_freq_base, fields.Real("rope_freq_base"));
  BGTQ_ASSIGN_OR_RETURN(model.rope_pairing, fields.Text("rope_pairing"));
  BGTQ_ASSIGN_OR_RETURN(model.rope_scaling_hash, fields.Text("rope_scaling_hash"));
  BGTQ_ASSIGN_OR_RETURN(model.key_weights_hash, fields.Text("key_weights_hash"));
  return model;
}

}  // namespace blockgtq
