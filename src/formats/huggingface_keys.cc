// See huggingface_keys.h.
#include "src/formats/huggingface_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/formats/message.h"

namespace blockgtq {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxLayers = 65536;  // bounds the list of windowed layers

Status Corrupt(const KeyFiller& filler, const std::string& what) {
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", filler.where(), what));
}

/// The member, or null when absent or null.
const Json* Member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

template <typename T>
bool IsListOf(const Json& list, bool (*is)(const Json&)) {
  for (const Json& item : list) {
    if (!is(item)) return false;
  }
  return true;
}

template <typename T>
std::vector<T> ListOf(const Json& list) {
  std::vector<T> out;
  for (const Json& item : list) out.push_back(item.get<T>());
  return out;
}

bool FitsInt(const Json& v) {
  return v.is_number_integer() && !(v.is_number_unsigned() && v.get<uint64_t>() > uint64_t{INT64_MAX});
}
bool IsNumber(const Json& v) { return v.is_number(); }
bool IsString(const Json& v) { return v.is_string(); }

}  // namespace

ModelValue ToModelValue(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (FitsInt(value)) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    if (IsListOf<int64_t>(value, FitsInt)) return ListOf<int64_t>(value);
    if (IsListOf<double>(value, IsNumber)) return ListOf<double>(value);
    if (IsListOf<std::string>(value, IsString)) return ListOf<std::string>(value);
    return std::string("(a mixed list)");
  }
  return value.empty() ? std::string() : std::string("(an object)");
}

Status KeyFiller::Put(std::string_view key, const Json& value, std::string_view json_name) {
  if (value.is_null()) return Status::Ok();
  return PutValue(key, ToModelValue(value), json_name);
}

Status KeyFiller::PutValue(std::string_view key, ModelValue value, std::string_view json_name) {
  const std::string spelled = fmt::format("'{}'", Printable(json_name));
  const ModelValue* present = keys_.Peek(key);
  if (present != nullptr && *present != value) {
    return keys_.Error(ErrorCode::kCorruptFile, key, fmt::format("and {} differ", spelled));
  }
  if (present == nullptr) keys_.Set(std::string(key), std::move(value), spelled);
  return Status::Ok();
}

namespace {

struct RopeName {
  const char* json;
  const char* key;
};
constexpr RopeName kRopeNames[] = {
    {"rope_theta", "rope.freq_base"},
    {"factor", "rope.scaling.factor"},
    {"original_max_position_embeddings", "rope.scaling.original_context_length"},
    {"low_freq_factor", "rope.scaling.low_freq_factor"},
    {"high_freq_factor", "rope.scaling.high_freq_factor"},
    {"attention_factor", "rope.scaling.attn_factor"},
    {"beta_fast", "rope.scaling.yarn_beta_fast"},
    {"beta_slow", "rope.scaling.yarn_beta_slow"},
    {"mscale", "rope.scaling.mscale"},
    {"mscale_all_dim", "rope.scaling.mscale_all_dim"},
    {"truncate", "rope.scaling.truncate"},
    {"short_factor", "rope.scaling.short_factor"},
    {"long_factor", "rope.scaling.long_factor"},
};

/// The value of rope_type as GGUF would have it, where GGUF has a word for it.
std::string ScalingType(const std::string& type) {
  if (type == "default") return "none";
  if (type == "su") return "longrope";  // its name before transformers had one
  return type;
}

Status FillScaling(const Json& object, const char* object_name, KeyFiller& filler) {
  if (!object.is_object()) return Corrupt(filler, fmt::format("'{}' is not an object", object_name));
  bool typed = false;
  for (const auto& [name, value] : object.items()) {
    const std::string json_name = fmt::format("{}.{}", object_name, name);
    if (name == "rope_type" || name == "type") {
      if (!value.is_string()) return Corrupt(filler, fmt::format("'{}' is not a string", json_name));
      BGTQ_RETURN_IF_ERROR(
          filler.PutValue("rope.scaling.type", ScalingType(value.get<std::string>()), json_name));
      typed = true;
      continue;
    }
    if (name == "partial_rotary_factor") continue;  // FillShares
    std::string key = json_name;                    // unknown: refused by this name
    for (const RopeName& known : kRopeNames) {
      if (name == known.json) key = known.key;
    }
    BGTQ_RETURN_IF_ERROR(filler.Put(key, value, json_name));
  }
  if (!typed && Member(object, "factor") != nullptr) {
    return Corrupt(filler, fmt::format("'{}' has a factor and no rope_type", object_name));
  }
  return Status::Ok();
}

/// rope_parameters of one layer type of several: the windowed layers' may differ in the base only.
Status FillWindowedRope(const Json& object, KeyFiller& filler) {
  if (!object.is_object()) return Corrupt(filler, "'rope_parameters.sliding_attention' is not an object");
  for (const auto& [name, value] : object.items()) {
    const std::string json_name = "rope_parameters.sliding_attention." + name;
    if (name == "rope_theta") {
      BGTQ_RETURN_IF_ERROR(filler.Put("rope.freq_base_swa", value, json_name));
    } else if (name != "rope_type" || value != "default") {
      BGTQ_RETURN_IF_ERROR(filler.Put(json_name, value, json_name));  // unknown: refused by this name
    }
  }
  return Status::Ok();
}

/// What share of a head rotates, in transformers' rounding; two shares must agree.
Status FillRotaryDims(const Json& factor, const std::string& json_name, KeyFiller& filler) {
  const ModelValue* head_dim = filler.keys().Peek("attention.key_length");
  const ModelValue* width = filler.keys().Peek("embedding_length");
  const ModelValue* heads = filler.keys().Peek("attention.head_count");
  const auto integer = [](const ModelValue* value) {
    const auto* number = value == nullptr ? nullptr : std::get_if<int64_t>(value);
    return number == nullptr ? int64_t{0} : *number;
  };
  int64_t dims = integer(head_dim);
  if (dims == 0 && integer(heads) > 0) dims = integer(width) / integer(heads);
  const double share = factor.is_number() ? factor.get<double>() : 0;
  if (dims < 1 || dims > (int64_t{1} << 20)) return Status::Ok();  // refused where they are read
  if (!(share > 0) || share > 1) {
    return Corrupt(filler, fmt::format("'{}' is not a number in (0, 1]", json_name));
  }
  return filler.PutValue("rope.dimension_count", static_cast<int64_t>(static_cast<double>(dims) * share),
                         json_name);
}

/// partial_rotary_factor wherever it stands. Families that state the rotating channels themselves have it for
/// other software.
Status FillShares(const Json& config, double otherwise, KeyFiller& filler) {
  if (filler.keys().Peek("rope.dimension_count") != nullptr) return Status::Ok();
  std::vector<std::pair<std::string, const Json*>> places = {{"", &config}};
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* object = Member(config, name);
    if (object == nullptr) continue;
    places.emplace_back(fmt::format("{}.", name), object);
    if (const Json* full = Member(*object, "full_attention")) {
      places.emplace_back(fmt::format("{}.full_attention.", name), full);
    }
  }
  for (const auto& [prefix, object] : places) {
    const Json* share = Member(*object, "partial_rotary_factor");
    if (share == nullptr) continue;
    BGTQ_RETURN_IF_ERROR(FillRotaryDims(*share, prefix + "partial_rotary_factor", filler));
  }
  const bool whole = otherwise == 1 || filler.keys().Peek("rope.dimension_count") != nullptr;
  return whole ? Status::Ok() : FillRotaryDims(otherwise, "partial_rotary_factor", filler);
}

}  // namespace

std::string RopeJsonName(std::string_view key) {
  if (key == "rope.freq_base") return "rope_theta";
  for (const RopeName& name : kRopeNames) {
    if (key == name.key) return fmt::format("rope_scaling.{}", name.json);
  }
  return "";
}

Status FillRope(const Json& config, const HuggingFaceFamily& family, KeyFiller& filler) {
  if (const Json* theta = Member(config, "rope_theta")) {
    BGTQ_RETURN_IF_ERROR(filler.Put("rope.freq_base", *theta, "rope_theta"));
  }
  if (const Json* theta = Member(config, "rope_local_base_freq")) {
    BGTQ_RETURN_IF_ERROR(filler.Put("rope.freq_base_swa", *theta, "rope_local_base_freq"));
  }
  if (const Json* scaling = Member(config, "rope_scaling")) {
    BGTQ_RETURN_IF_ERROR(FillScaling(*scaling, "rope_scaling", filler));
  }
  if (const Json* parameters = Member(config, "rope_parameters")) {
    if (!parameters->is_object()) return Corrupt(filler, "'rope_parameters' is not an object");
    const Json* full = Member(*parameters, "full_attention");
    const Json* windowed = Member(*parameters, "sliding_attention");
    if (full != nullptr || windowed != nullptr) {  // one set a layer type
      for (const auto& [name, value] : parameters->items()) {
        if (name == "full_attention") {
          BGTQ_RETURN_IF_ERROR(FillScaling(value, "rope_parameters.full_attention", filler));
        } else if (name == "sliding_attention") {
          BGTQ_RETURN_IF_ERROR(FillWindowedRope(value, filler));
        } else {
          BGTQ_RETURN_IF_ERROR(filler.Put("rope_parameters." + name, value, "rope_parameters." + name));
        }
      }
    } else {
      BGTQ_RETURN_IF_ERROR(FillScaling(*parameters, "rope_parameters", filler));
    }
  }
  if (filler.keys().Peek("rope.freq_base") == nullptr) {
    BGTQ_RETURN_IF_ERROR(filler.PutValue("rope.freq_base", family.rope_theta, "rope_theta"));
  }
  return FillShares(config, family.rotary_share, filler);
}

Status FillWindow(const Json& config, bool needs_flag, KeyFiller& filler) {
  const Json* window = Member(config, "sliding_window");
  const Json* flag = Member(config, "use_sliding_window");
  if (flag != nullptr && !flag->is_boolean()) return Corrupt(filler, "'use_sliding_window' is not a bool");
  const bool used = flag != nullptr ? flag->get<bool>() : !needs_flag;
  if (!used) window = nullptr;

  const ModelValue* count = filler.keys().Peek("block_count");
  const auto* layers = count == nullptr ? nullptr : std::get_if<int64_t>(count);
  if (layers == nullptr || *layers < 1 || *layers > kMaxLayers) {
    return window == nullptr ? Status::Ok() : Corrupt(filler, "'num_hidden_layers' is missing or impossible");
  }
  std::vector<int64_t> windowed(static_cast<size_t>(*layers), 1);  // by layer
  const Json* every = Member(config, "sliding_window_pattern");
  if (every == nullptr) every = Member(config, "_sliding_window_pattern");
  if (const Json* types = Member(config, "layer_types")) {
    if (!types->is_array() || types->size() != windowed.size()) {
      return Corrupt(filler, fmt::format("'layer_types' is not a list of {} types", *layers));
    }
    for (size_t l = 0; l < windowed.size(); ++l) {
      const Json& type = (*types)[l];
      if (type != "full_attention" && type != "sliding_attention") {
        return Status(
            ErrorCode::kUnsupported,
            fmt::format("{}: layer {} is of type '{}', which this build does not support", filler.where(), l,
                        Printable(type.is_string() ? type.get<std::string>() : "(not a string)")));
      }
      windowed[l] = type == "sliding_attention" ? 1 : 0;
      if (windowed[l] == 1 && window == nullptr) {
        return Corrupt(filler, fmt::format("layer {} has sliding attention, but there is no window", l));
      }
    }
  } else if (every != nullptr) {  // each every-th layer sees all
    if (!FitsInt(*every) || every->get<int64_t>() < 1) {
      return Corrupt(filler, "'sliding_window_pattern' is not a number above 0");
    }
    for (size_t l = 0; l < windowed.size(); ++l) {
      windowed[l] = static_cast<int64_t>(l + 1) % every->get<int64_t>() != 0 ? 1 : 0;
    }
  } else if (const Json* first = Member(config, "max_window_layers"); first != nullptr && needs_flag) {
    if (!FitsInt(*first)) return Corrupt(filler, "'max_window_layers' is not an integer");
    for (size_t l = 0; l < windowed.size(); ++l) {
      windowed[l] = static_cast<int64_t>(l) >= first->get<int64_t>() ? 1 : 0;
    }
  }
  const bool none = std::find(windowed.begin(), windowed.end(), 1) == windowed.end();
  if (window == nullptr || none) return Status::Ok();
  BGTQ_RETURN_IF_ERROR(filler.Put("attention.sliding_window", *window, "sliding_window"));
  const bool all = std::find(windowed.begin(), windowed.end(), 0) == windowed.end();
  return all ? Status::Ok()
             : filler.PutValue("attention.sliding_window_pattern", std::move(windowed), "layer_types");
}

}  // namespace blockgtq
