// Bodies of chat requests (json_request.h): messages, and the tools that they may call.
#include <algorithm>
#include <utility>

#include "src/formats/json_fields.h"
#include "src/http/request_fields.h"

namespace blockgtq::http {
namespace {

using Json = nlohmann::json;

/// A message's content: a string, or a list of {"type": "text", "text": ...}.
Result<std::string> ReadContent(const Json& message) {
  const Json* content = Find(message, "content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) return Bad("content", "a string or a list of text parts");
  std::string text;
  for (const Json& part : *content) {
    const Json* type = part.is_object() ? Find(part, "type") : nullptr;
    const Json* value = part.is_object() ? Find(part, "text") : nullptr;
    if (type == nullptr || *type != "text") {
      return Status(ErrorCode::kUnsupported, "'content' has a part that is not text: only text is supported");
    }
    if (value == nullptr || !value->is_string()) return Bad("text", "a string");
    text += value->get<std::string>();
  }
  return text;
}

/// A function's name as it stands in a prompt, within quotes.
bool IsFunctionName(const Json* name) {
  if (name == nullptr || !name->is_string()) return false;
  const std::string& text = name->get_ref<const std::string&>();
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

constexpr const char* kNameWanted = "1 to 64 letters, digits, '_', '-' or '.'";

/// body: the text of `object`.
Status ReadTools(const Json& object, std::string_view body, ChatRequest* out) {
  BGTQ_RETURN_IF_ERROR(Refuse(object, "parallel_tool_calls", [](const Json& v) { return v == true; }));
  bool none = false;
  if (const Json* choice = Find(object, "tool_choice")) {
    none = *choice == "none";
    if (!none && *choice != "auto") {
      return Status(ErrorCode::kUnsupported, "'tool_choice': this server knows \"auto\" and \"none\"");
    }
  }
  const Json* tools = Find(object, "tools");
  if (tools == nullptr) return Status::Ok();
  if (!tools->is_array() || tools->size() > 128) return Bad("tools", "a list of up to 128 functions");
  for (const Json& tool : *tools) {
    const Json* type = tool.is_object() ? Find(tool, "type") : nullptr;
    const Json* function = tool.is_object() ? Find(tool, "function") : nullptr;
    if (type == nullptr || *type != "function" || function == nullptr || !function->is_object())
      return Bad("tools", "a list of {\"type\": \"function\", \"function\": {...}}");
    if (!IsFunctionName(Find(*function, "name")))
      return Bad("tools", std::string("functions with a name of ") + kNameWanted);
  }
  if (none || tools->empty()) return Status::Ok();
  // Keys in the client's order, as the model is to read them. The first parse has checked sizes and depth.
  const auto ordered = nlohmann::ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  for (const auto& tool : ordered["tools"]) {
    out->tools.push_back(TemplateJson(tool));
    out->tool_names.push_back(tool["function"]["name"].get<std::string>());
  }
  return Status::Ok();
}

/// The calls of an earlier answer, given back.
Status ReadToolCalls(const Json& message, std::vector<ToolCall>* out) {
  const Json* calls = Find(message, "tool_calls");
  if (calls == nullptr) return Status::Ok();
  if (!calls->is_array() || calls->size() > 128) return Bad("tool_calls", "a list of up to 128 calls");
  for (const Json& call : *calls) {
    const Json* function = call.is_object() ? Find(call, "function") : nullptr;
    if (function == nullptr || !function->is_object())
      return Bad("tool_calls", "a list of calls of functions");
    const Json* name = Find(*function, "name");
    if (!IsFunctionName(name)) return Bad("name", std::string("in tool_calls, ") + kNameWanted);
    const Json* arguments = Find(*function, "arguments");
    const char* wanted = "in tool_calls, a string with a JSON object";
    if (arguments == nullptr || !arguments->is_string()) return Bad("arguments", wanted);
    const std::string& text = arguments->get_ref<const std::string&>();
    const Result<Json> bounded = ParseBoundedJson(text, kMaxJsonBytes, kMaxJsonDepth);
    if (!bounded.ok() || !bounded->is_object()) return Bad("arguments", wanted);
    out->push_back(
        {name->get<std::string>(), TemplateJson(nlohmann::ordered_json::parse(text, nullptr, false))});
  }
  return Status::Ok();
}

}  // namespace

Result<ChatRequest> ParseChatRequest(std::string_view body) {
  BGTQ_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ChatRequest request;
  BGTQ_RETURN_IF_ERROR(ReadTools(json, body, &request));
  BGTQ_ASSIGN_OR_RETURN(request.settings, ReadSettings(json));
  const Json* messages = Find(json, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() || messages->size() > kMaxItems)
    return Bad("messages", "a list of at least one message");
  for (const Json& message : *messages) {
    if (!message.is_object()) return Bad("messages", "a list of objects");
    const Json* role = Find(message, "role");
    if (role == nullptr || !role->is_string()) return Bad("role", "a string, in every message");
    BGTQ_ASSIGN_OR_RETURN(std::string content, ReadContent(message));
    request.messages.push_back({role->get<std::string>(), std::move(content)});
    BGTQ_RETURN_IF_ERROR(ReadToolCalls(message, &request.messages.back().tool_calls));
  }
  bool logprobs = false;
  int64_t top = 0;
  BGTQ_RETURN_IF_ERROR(ReadBool(json, "logprobs", &logprobs));
  BGTQ_RETURN_IF_ERROR(ReadInt(json, "top_logprobs", 0, 20, &top));
  if (top > 0 && !logprobs) return Bad("logprobs", "true where top_logprobs is given");
  if (logprobs) request.settings.top_logprobs = static_cast<int>(top);
  return request;
}

}  // namespace blockgtq::http
