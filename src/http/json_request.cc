// See json_request.h.
#include "src/http/json_request.h"

#include <charconv>
#include <limits>
#include <utility>

#include "src/http/request_fields.h"

namespace blockgtq::http {
namespace {

using Json = nlohmann::json;

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

Status RefuseUnsupported(const Json& object) {
  const auto empty = [](const Json& v) { return v.empty(); };
  const auto never = [](const Json&) { return false; };
  BGTQ_RETURN_IF_ERROR(Refuse(object, "functions", empty));
  for (const char* field : {"suffix", "grammar", "json_schema", "audio"})
    BGTQ_RETURN_IF_ERROR(Refuse(object, field, never));
  return Status::Ok();
}

Status ReadResponseFormat(const Json& object, bool* json_object) {
  const Json* value = Find(object, "response_format");
  if (value == nullptr) return Status::Ok();
  const Json* type = value->is_object() ? Find(*value, "type") : nullptr;
  if (type == nullptr || !type->is_string()) return Bad("response_format", "an object with a 'type'");
  *json_object = *type == "json_object";
  if (*json_object || *type == "text") return Status::Ok();
  return Status(ErrorCode::kUnsupported,
                "'response_format': this server knows the types text and json_object");
}

/// {"TOKEN ID": bias, ...}
Status ReadLogitBias(const Json& object, std::vector<std::pair<Token, float>>* out) {
  const Json* value = Find(object, "logit_bias");
  if (value == nullptr) return Status::Ok();
  const std::string wanted = "an object of token ids and numbers from -100 to 100, at most 1024";
  if (!value->is_object() || value->size() > 1024) return Bad("logit_bias", wanted);
  for (const auto& [key, bias] : value->items()) {
    Token token = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    if (!whole || token < 0 || !bias.is_number()) return Bad("logit_bias", wanted);
    const double number = bias.get<double>();
    if (!(number >= -100 && number <= 100)) return Bad("logit_bias", wanted);
    if (number != 0) out->emplace_back(token, static_cast<float>(number));
  }
  return Status::Ok();
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

Result<GenerationSettings> ReadSettings(const Json& object) {
  BGTQ_RETURN_IF_ERROR(RefuseUnsupported(object));
  GenerationSettings s;
  BGTQ_RETURN_IF_ERROR(ReadLength(object, &s));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "temperature", 0, 100, &s.sampler.temperature));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "top_p", 1e-6, 1, &s.sampler.top_p));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "min_p", 0, 1, &s.sampler.min_p));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "repeat_penalty", 1e-3, 1e3, &s.sampler.repeat_penalty));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "frequency_penalty", -2, 2, &s.sampler.frequency_penalty));
  BGTQ_RETURN_IF_ERROR(ReadFloat(object, "presence_penalty", -2, 2, &s.sampler.presence_penalty));
  BGTQ_RETURN_IF_ERROR(ReadLogitBias(object, &s.sampler.logit_bias));
  BGTQ_RETURN_IF_ERROR(ReadResponseFormat(object, &s.json_object));
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
