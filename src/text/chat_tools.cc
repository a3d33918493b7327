// See chat_tools.h.
#include "src/text/chat_tools.h"

#include <nlohmann/json.hpp>

namespace blockgtq {
namespace {

using Json = nlohmann::ordered_json;

std::string Scalar(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void Append(const Json& value, std::string* out) {
  if (!value.is_structured()) {
    *out += Scalar(value);
    return;
  }
  *out += value.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) *out += ", ";
    first = false;
    if (value.is_object()) *out += Scalar(key) + ": ";
    Append(item, out);
  }
  *out += value.is_object() ? '}' : ']';
}

}  // namespace

std::string TemplateJson(const Json& value) {
  std::string out;
  Append(value, &out);
  return out;
}

}  // namespace blockgtq
