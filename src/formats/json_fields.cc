// Bounded JSON parsing and typed field access.
#include "src/formats/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "src/formats/message.h"

namespace blockgtq {
namespace {

// Deepest nesting of brackets outside strings; an upper bound of the parsed document's depth.
int NestingDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

/// Finds where a text ceases to be JSON.
class ErrorFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  size_t position() const { return position_; }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    position_ = position;
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }

 private:
  size_t position_ = 0;
};

}  // namespace

Result<nlohmann::json> ParseBoundedJson(std::string_view text, size_t max_bytes, int max_depth) {
  if (text.size() > max_bytes) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{} bytes of JSON; {} are allowed", Grouped(text.size()), Grouped(max_bytes)));
  }
  if (NestingDepth(text) > max_depth) {
    return Status(ErrorCode::kCorruptFile, fmt::format("JSON nested deeper than {}", max_depth));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    ErrorFinder finder;
    nlohmann::json::sax_parse(text, &finder);
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("not valid JSON at byte {}", Grouped(finder.position())));
  }
  return json;
}

Result<JsonFields> JsonFields::Of(const nlohmann::json& value, std::string where) {
  if (!value.is_object()) return Status(ErrorCode::kCorruptFile, where + ": not a JSON object");
  return JsonFields(&value, std::move(where));
}

Status JsonFields::Bad(const char* name, const std::string& wanted) const {
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: '{}' is not {}", where_, name, wanted));
}

Result<const nlohmann::json*> JsonFields::Find(const char* name) const {
  const auto found = object_->find(name);
  if (found == object_->end()) {
    return Status(ErrorCode::kCorruptFile, fmt::format("{}: '{}' is missing", where_, name));
  }
  return &*found;
}

Result<int64_t> JsonFields::Int(const char* name, int64_t min, int64_t max) const {
  BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* value, Find(name));
  const bool huge = value->is_number_unsigned() &&
                    value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value->is_number_integer() || huge || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return Bad(name, fmt::format("an integer from {} to {}", min, max));
  }
  return value->get<int64_t>();
}

Result<double> JsonFields::Real(const char* name) const {
  BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* value, Find(name));
  if (!value->is_number()) return Bad(name, "a number");
  return value->get<double>();
}

Result<std::string> JsonFields::Text(const char* name) const {
  BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* value, Find(name));
  if (!value->is_string()) return Bad(name, "a string");
  return value->get<std::string>();
}

Result<const nlohmann::json*> JsonFields::Array(const char* name, size_t max_size) const {
  BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* value, Find(name));
  if (!value->is_array() || value->size() > max_size) {
    return Bad(name, fmt::format("an array of up to {} elements", Grouped(max_size)));
  }
  return value;
}

Result<JsonFields> JsonFields::Object(const char* name) const {
  BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* value, Find(name));
  return Of(*value, fmt::format("{}: '{}'", where_, name));
}

Status ReadInt(const JsonFields& fields, const char* name, int min, int max, int* out) {
  BGTQ_ASSIGN_OR_RETURN(const int64_t value, fields.Int(name, min, max));
  *out = static_cast<int>(value);
  return Status::Ok();
}

}  // namespace blockgtq
