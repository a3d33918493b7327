// Checked reading of JSON that came from a file: every access names the field that is wrong.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "blockgtq/status.h"

namespace blockgtq {

/// Parses text of bounded size and depth. Errors: kCorruptFile.
Result<nlohmann::json> ParseBoundedJson(std::string_view text, size_t max_bytes, int max_depth);

/// An object's fields. `where` starts the messages, e.g. "layer 3, KV head 0". Errors: kCorruptFile.
class JsonFields {
 public:
  static Result<JsonFields> Of(const nlohmann::json& value, std::string where);

  Result<int64_t> Int(const char* name, int64_t min, int64_t max) const;
  Result<double> Real(const char* name) const;
  Result<std::string> Text(const char* name) const;
  /// An array of at most max_size elements.
  Result<const nlohmann::json*> Array(const char* name, size_t max_size) const;
  Result<JsonFields> Object(const char* name) const;

 private:
  JsonFields(const nlohmann::json* object, std::string where) : object_(object), where_(std::move(where)) {}
  Result<const nlohmann::json*> Find(const char* name) const;
  Status Bad(const char* name, const std::string& wanted) const;

  const nlohmann::json* object_;
  std::string where_;
};

/// JsonFields::Int into an int, whose range holds min and max.
Status ReadInt(const JsonFields& fields, const char* name, int min, int max, int* out);

}  // namespace blockgtq
