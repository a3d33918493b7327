// The halves of reading config.json that share a destination: values of JSON, and RoPE's settings.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "blockgtq/status.h"
#include "src/formats/huggingface_family.h"
#include "src/formats/model_keys.h"

namespace blockgtq {

/// A JSON value as a key's value; what has no such form (an object, a mixed list) becomes a text that says
/// so.
ModelValue ToModelValue(const nlohmann::json& value);

/// Fills keys from JSON and refuses two different values for one.
class KeyFiller {
 public:
  KeyFiller(ModelKeys& keys, std::string where) : keys_(keys), where_(std::move(where)) {}
  /// json_name: for messages. Null values are absent ones. Errors: kCorruptFile when key has another value
  /// already.
  Status Put(std::string_view key, const nlohmann::json& value, std::string_view json_name);
  Status PutValue(std::string_view key, ModelValue value, std::string_view json_name);
  const ModelKeys& keys() const { return keys_; }
  const std::string& where() const { return where_; }

 private:
  ModelKeys& keys_;
  std::string where_;
};

/// Where a setting of RoPE stands in most files, "rope_scaling.factor"; empty for other keys.
std::string RopeJsonName(std::string_view key);
/// rope_theta, rope_scaling, rope_parameters, rope_local_base_freq, partial_rotary_factor; where absent, the
/// family's defaults.
Status FillRope(const nlohmann::json& config, const HuggingFaceFamily& family, KeyFiller& filler);
/// sliding_window and what says which layers have it.
Status FillWindow(const nlohmann::json& config, bool needs_flag, KeyFiller& filler);

}  // namespace blockgtq
