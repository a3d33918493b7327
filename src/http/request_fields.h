// Reading the fields of a request's body, one checked read each.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "blockgtq/status.h"
#include "src/http/json_request.h"

namespace blockgtq::http {

inline constexpr size_t kMaxJsonBytes = size_t{1} << 30;  // the connection's limit of a body is what counts
inline constexpr size_t kMaxItems = size_t{1} << 20;

/// kInvalidArgument: "'field' must be wanted".
Status Bad(const char* field, const std::string& wanted);

Result<nlohmann::json> ParseObject(std::string_view body);

/// The field, or null when it is absent or null.
const nlohmann::json* Find(const nlohmann::json& object, const char* field);

// Each leaves *out as it is where the field is absent. Errors: kInvalidArgument naming the field.
Status ReadInt(const nlohmann::json& object, const char* field, int64_t min, int64_t max, int64_t* out);
Status ReadFloat(const nlohmann::json& object, const char* field, double min, double max, float* out);
Status ReadBool(const nlohmann::json& object, const char* field, bool* out);
template <typename T>
Status ReadSmallInt(const nlohmann::json& object, const char* field, int64_t min, int64_t max, T* out) {
  int64_t value = *out;
  BGTQ_RETURN_IF_ERROR(ReadInt(object, field, min, max, &value));
  *out = static_cast<T>(value);
  return Status::Ok();
}

/// A field whose only honoured value is its neutral one.
Status Refuse(const nlohmann::json& object, const char* field, const auto& neutral) {
  const nlohmann::json* value = Find(object, field);
  if (value == nullptr || neutral(*value)) return Status::Ok();
  return Status(ErrorCode::kUnsupported, fmt::format("'{}' is not supported by this server", field));
}

/// What chats and completions share.
Result<GenerationSettings> ReadSettings(const nlohmann::json& object);

}  // namespace blockgtq::http
