// Tools in a chat: functions that the model is told of, and the calls that it makes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace blockgtq {

/// How a chat template writes tools; kNone: not at all, or in a way that is not known here.
enum class ToolForm {
  kNone,
  kQwen25,  // <tools> after the system message, <tool_call> with JSON, <tool_response> in a user's turn
  kQwen3,   // the same with other line breaks
};

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, as TemplateJson writes it
};

/// JSON as the filter tojson of chat templates writes it: Python's spaces, keys in their order, UTF-8 as it
/// is.
std::string TemplateJson(const nlohmann::ordered_json& value);

}  // namespace blockgtq
