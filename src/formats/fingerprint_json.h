// A model's fingerprint as JSON, in the files that are made for one model: plans and moments.
#pragma once

#include <nlohmann/json.hpp>

#include "src/codec/plan.h"
#include "src/formats/json_fields.h"

namespace blockgtq {

inline constexpr int kMaxFingerprintDim = 1024;        // of a head
inline constexpr int kMaxFingerprintLayers = 1 << 16;  // also of heads

nlohmann::ordered_json FingerprintJson(const ModelFingerprint& model);
/// Errors: kCorruptFile naming the field that is missing, of another type, or out of range.
Result<ModelFingerprint> ReadFingerprint(const JsonFields& fields);

}  // namespace blockgtq
