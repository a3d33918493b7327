// See json_request.h.
#include "src/http/json_request.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/formats/json_fields.h"

namespace blockgtq::http {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{1} << 30;  // the connection's limit of a body is what counts
constexpr size_t kMaxItems = size_t{1} << 20;

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

/// The field, or null when it is absent or null.
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

template <typename T>
Status ReadSmallInt(const Json& object, const char* field, int64_t min, int64_t max, T* out) {
  int64_t value = *out;
  BGTQ_RETURN_IF_ERROR(ReadInt(object, field, min, max, &value));
  *out = static_cast<T>(value);
  return Status::Ok();
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

Status ReadStop(const Json& object, std::vector<std::string>* out) {
  const Json* value = Find(object, "stop");
  if (value == nullptr) return Status::Ok();
  if (value->is_string()) {
    out->push_back(value->get<std::string>());
  } else if (value->is_array() && value->size() <= 16) {
    for (const Json& item : *value) {
      if (!item.is_string()) return Bad("stop", "a string or a list of strings");
      out->push_back(item.get<std::string>());
    }
  } else {
    return Bad("stop", "a string or a list of up to 16 strings");
  }
  for (const std::string& stop : *out) {
    if (stop.empty() || stop.size() > 1024) return Bad("stop", "of strings of 1 to 1024 bytes");
  }
  return Status::Ok();
}

/// A field whose only honoured value is its neutral one.
Status Refuse(const Json& object, const char* field, const auto& neutral) {
  const Json* value = Find(object, field);
  if (value == nullptr || neutral(*value)) return Status::Ok();
  return Status(ErrorCode::kUnsupported, fmt::format("'{}' is not supported by this server", field));
}

Status RefuseUnsupported(const Json& object) {
  const auto zero = [](const Json& v) { return v.is_number() && v.get<double>() == 0; };
  const auto empty = [](const Json& v) { return v.empty(); };
  const auto never = [](const Json&) { return false; };
  BGTQ_RETURN_IF_ERROR(Refuse(object, "frequency_penalty", zero));
  BGTQ_RETURN_IF_ERROR(Refuse(object, "presence_penalty", zero));
  BGTQ_RETURN_IF_ERROR(Refuse(object, "logit_bias", empty));
  BGTQ_RETURN_IF_ERROR(Refuse(object, "tools", empty));
  BGTQ_RETURN_IF_ERROR(Refuse(object, "functions", empty));
  for (const char* field : {"suffix", "grammar", "json_schema", "audio"})
    BGTQ_RETURN_IF_ERROR(Refuse(object, field, never));
  return Refuse(object, "response_format",
                [](const Json& v) { return v.is_object() && v.contains("type") && v["type"] == "text"; });
}

Status ReadLength(const Json& object, GenerationSettings* out) {
  for (const char* field : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    int64_t tokens = -1;
    BGTQ_RETURN_IF_ERROR(ReadInt(object, field, -1, 1 << 30, &tokens));
    if (tokens == 0) return Bad(field, "at least 1 (or -1: as many as the context holds)");
    if (tokens > 0) out->max_tokens = tokens;
  }
  return Status::Ok();
}

Result<GenerationSettings> ReadSettings(const Json& object) {
  BGTQ_RETURN_IF_ERROR(RefuseUnsupported(object));
  GenerationSettings s;
  BGTQ_RETURN_IF_ERROR(ReadLength(object, &s));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "temperature", 0, 100, &s.sampler.temperature));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "top_p", 1e-6, 1, &s.sampler.top_p));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "min_p", 0, 1, &s.sampler.min_p));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "repeat_penalty", 1e-3, 1e3, &s.sampler.repeat_penalty));
  BGTQ_RETURN_IF_ERROR(ReadSmallInt(object, "top_k", 0, 1 << 30, &s.sampler.top_k));
  BGTQ_RETURN_IF_ERROR(ReadSmallInt(object, "repeat_last_n", 0, 1 << 30, &s.sampler.repeat_last_n));
  int64_t seed = -1;
  BGTQ_RETURN_IF_ERROR(ReadInt(object, "seed", -1, std::numeric_limits<int64_t>::max(), &seed));
  s.has_seed = seed >= 0;
  if (s.has_seed) s.sampler.seed = static_cast<uint64_t>(seed);
  BGTQ_RETURN_IF_ERROR(ReadSmallInt(object, "n", 1, kMaxChoices, &s.choices));
  BGTQ_RETURN_IF_ERROR(ReadStop(object, &s.stop));
  BGTQ_RETURN_IF_ERROR(ReadBool(object, "stream", &s.stream));
  if (const Json* options = Find(object, "stream_options")) {
    if (!options->is_object()) return Bad("stream_options", "an object");
    BGTQ_RETURN_IF_ERROR(ReadBool(*options, "include_usage", &s.usage_in_stream));
  }
  BGTQ_RETURN_IF_ERROR(ReadBool(object, "ignore_eos", &s.ignore_end));
  BGTQ_RETURN_IF_ERROR(ReadBool(object, "cache_prompt", &s.cache_prompt));
  BGTQ_RETURN_IF_ERROR(ReadSmallInt(object, "id_slot", -1, 1 << 20, &s.slot));
  if (s.slot >= 0 && s.choices > 1) return Bad("id_slot", "left out where n is above 1");
  return s;
}

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

Result<std::vector<Token>> ReadTokens(const Json& list, const char* field) {
  std::vector<Token> tokens;
  if (!list.is_array() || list.size() > kMaxItems) return Bad(field, "a list of token ids");
  for (const Json& item : list) {
    if (!item.is_number_integer()) return Bad(field, "a list of token ids");
    const int64_t id = item.get<int64_t>();
    if (id < 0 || id > std::numeric_limits<Token>::max()) return Bad(field, "a list of token ids");
    tokens.push_back(static_cast<Token>(id));
  }
  return tokens;
}

}  // namespace

Result<ChatRequest> ParseChatRequest(std::string_view body) {
  BGTQ_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ChatRequest request;
  BGTQ_ASSIGN_OR_RETURN(request.settings, ReadSettings(json));
  const Json* messages = Find(json, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty() || messages->size() > kMaxItems)
    return Bad("messages", "a list of at least one message");
  for (const Json& message : *messages) {
    if (!message.is_object()) return Bad("messages", "a list of objects");
    const Json* role = Find(message, "role");
    if (role == nullptr || !role->is_string()) return Bad("role", "a string, in every message");
    BGTQ_RETURN_IF_ERROR(Refuse(message, "tool_calls", [](const Json& v) { return v.empty(); }));
    BGTQ_ASSIGN_OR_RETURN(std::string content, ReadContent(message));
    request.messages.push_back({role->get<std::string>(), std::move(content)});
  }
  bool logprobs = false;
  int64_t top = 0;
  BGTQ_RETURN_IF_ERROR(ReadBool(json, "logprobs", &logprobs));
  BGTQ_RETURN_IF_ERROR(ReadInt(json, "top_logprobs", 0, 20, &top));
  if (top > 0 && !logprobs) return Bad("logprobs", "true where top_logprobs is given");
  if (logprobs) request.settings.top_logprobs = static_cast<int>(top);
  return request;
}

Result<CompletionRequest> ParseCompletionRequest(std::string_view body) {
  BGTQ_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  CompletionRequest request;
  BGTQ_ASSIGN_OR_RETURN(request.settings, ReadSettings(json));
  BGTQ_RETURN_IF_ERROR(ReadBool(json, "echo", &request.echo));
  BGTQ_RETURN_IF_ERROR(ReadSmallInt(json, "logprobs", 0, 20, &request.settings.top_logprobs));
  const Json* prompt = Find(json, "prompt");
  const char* wanted = "a string, a list of token ids, or a list of up to 16 of either";
  if (prompt == nullptr) return Bad("prompt", wanted);
  if (prompt->is_string()) {
    request.prompts.emplace_back(prompt->get<std::string>());
  } else if (prompt->is_array() && !prompt->empty() && prompt->front().is_number()) {
    BGTQ_ASSIGN_OR_RETURN(std::vector<Token> tokens, ReadTokens(*prompt, "prompt"));
    request.prompts.emplace_back(std::move(tokens));
  } else if (prompt->is_array() && !prompt->empty() && prompt->size() <= kMaxChoices) {
    for (const Json& item : *prompt) {
      if (item.is_string()) {
        request.prompts.emplace_back(item.get<std::string>());
        continue;
      }
      BGTQ_ASSIGN_OR_RETURN(std::vector<Token> tokens, ReadTokens(item, "prompt"));
      request.prompts.emplace_back(std::move(tokens));
    }
  } else {
    return Bad("prompt", wanted);
  }
  if (request.settings.slot >= 0 && request.prompts.size() > 1)
    return Bad("id_slot", "left out where there are several prompts");
  if (request.prompts.size() * static_cast<size_t>(request.settings.choices) > kMaxChoices)
    return Bad("n", fmt::format("such that there are at most {} answers in all", kMaxChoices));
  return request;
}

Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body) {
  BGTQ_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  TokenizeRequest request;
  const Json* content = Find(json, "content");
  if (content == nullptr || !content->is_string()) return Bad("content", "a string");
  request.content = content->get<std::string>();
  BGTQ_RETURN_IF_ERROR(ReadBool(json, "add_special", &request.add_special));
  BGTQ_RETURN_IF_ERROR(ReadBool(json, "parse_special", &request.parse_special));
  return request;
}

Result<std::vector<Token>> ParseDetokenizeRequest(std::string_view body) {
  BGTQ_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  const Json* tokens = Find(json, "tokens");
  if (tokens == nullptr) return Bad("tokens", "a list of token ids");
  return ReadTokens(*tokens, "tokens");
}

Result<std::string> ParseSlotFileName(std::string_view body) {
  BGTQ_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  const char* wanted = "1 to 128 letters, digits, '.', '_' or '-', not beginning with '.'";
  const Json* value = Find(json, "filename");
  if (value == nullptr || !value->is_string()) return Bad("filename", wanted);
  std::string name = value->get<std::string>();
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  bool good = !name.empty() && name.size() <= 128 && name.front() != '.';
  for (const char c : name) good = good && allowed(c);
  if (!good) return Bad("filename", wanted);
  return name;
}

}  // namespace blockgtq::http
