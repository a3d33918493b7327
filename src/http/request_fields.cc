// See request_fields.h.
#include "src/http/request_fields.h"

#include <limits>

#include "src/formats/json_fields.h"

namespace blockgtq::http {

using Json = nlohmann::json;

Status Bad(const char* field, const std::string& wanted) {
  return Status(ErrorCode::kInvalidArgument, fmt::format("'{}' must be {}", field, wanted));
}

Result<Json> ParseObject(std::string_view body) {
  Result<Json> json = ParseBoundedJson(body, kMaxJsonBytes, kMaxJsonDepth);
  if (!json.ok()) return Status(ErrorCode::kInvalidArgument, "the request body: " + json.status().message());
  if (!json->is_object())
    return Status(ErrorCode::kInvalidArgument, "the request body: must be a JSON object");
  return json;
}

const Json* Find(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Status ReadInt(const Json& object, const char* field, int64_t min, int64_t max, int64_t* out) {
  const Json* value = Find(object, field);
  if (value == nullptr) return Status::Ok();
  const std::string wanted = fmt::format("a whole number from {} to {}", min, max);
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return Bad(field, wanted);
    *out = static_cast<int64_t>(number);
  } else if (value->is_number_integer()) {
    *out = value->get<int64_t>();
  } else {
    return Bad(field, wanted);
  }
  return *out >= min && *out <= max ? Status::Ok() : Bad(field, wanted);
}

Status ReadFloat(const Json& object, const char* field, double min, double max, float* out) {
  const Json* value = Find(object, field);
  if (value == nullptr) return Status::Ok();
  if (!value->is_number()) return Bad(field, "a number");
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) return Bad(field, fmt::format("from {} to {}", min, max));
  *out = static_cast<float>(number);
  return Status::Ok();
}

Status ReadBool(const Json& object, const char* field, bool* out) {
  const Json* value = Find(object, field);
  if (value == nullptr) return Status::Ok();
  if (!value->is_boolean()) return Bad(field, "true or false");
  *out = value->get<bool>();
  return Status::Ok();
}

}  // namespace blockgtq::http
