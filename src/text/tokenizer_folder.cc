// See tokenizer_folder.h.
#include "src/text/tokenizer_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "src/formats/json_fields.h"
#include "src/formats/mapped_file.h"
#include "src/formats/message.h"
#include "src/text/tokenizer_json.h"

namespace blockgtq {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = size_t{1} << 24;
constexpr int kMaxDepth = 64;

// Classes of transformers that put BOS first by add_bos_token, whatever the post-processor says.
constexpr std::string_view kAddBosClasses[] = {"LlamaTokenizer",         "LlamaTokenizerFast",
                                               "CodeLlamaTokenizer",     "GemmaTokenizer",
                                               "CodeLlamaTokenizerFast", "GemmaTokenizerFast"};

Status Corrupt(std::string message) { return Status(ErrorCode::kCorruptFile, std::move(message)); }

const json& Member(const json& object, const char* name) {
  static const json kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

// An empty object for an empty text.
Result<json> ParseObject(std::string_view text, const char* name) {
  if (text.empty()) return json::object();
  auto parsed = ParseBoundedJson(text, kMaxConfigBytes, kMaxDepth);
  if (!parsed.ok()) return parsed.status().WithContext(name);
  if (!parsed->is_object()) return Corrupt(fmt::format("{}: not a JSON object", name));
  return parsed;
}

Result<std::optional<bool>> OptionalFlag(const json& config, const char* name) {
  const json& value = Member(config, name);
  if (value.is_null()) return std::optional<bool>();
  if (!value.is_boolean())
    return Corrupt(fmt::format("tokenizer_config.json: {} is not true or false", name));
  return std::optional<bool>(value.get<bool>());
}

// A token by its text, which stands as a string or in the content of an object. -1: none.
Result<int32_t> NamedToken(const json& config, const char* name, const TokenizerParts& parts) {
  const json* value = &Member(config, name);
  if (value->is_object()) value = &Member(*value, "content");
  if (value->is_null()) return -1;
  if (!value->is_string()) return Corrupt(fmt::format("tokenizer_config.json: {} is not a text", name));
  const std::string& text = value->get_ref<const std::string&>();
  const auto found = std::find(parts.tokens.begin(), parts.tokens.end(), text);
  if (text.empty() || found == parts.tokens.end()) {
    return Corrupt(
        fmt::format("tokenizer_config.json: {} \"{}\" is not in the vocabulary", name, Printable(text)));
  }
  return static_cast<int32_t>(found - parts.tokens.begin());
}

Status ReadAddedTokens(const json& config, TokenizerParts* parts) {
  const json& decoder = Member(config, "added_tokens_decoder");
  if (decoder.is_null()) return {};
  if (!decoder.is_object()) return Corrupt("tokenizer_config.json: added_tokens_decoder is not an object");
  std::vector<std::pair<int64_t, const json*>> entries;  // in the order of ids
  for (const auto& [key, entry] : decoder.items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return Corrupt(
          fmt::format("tokenizer_config.json: added_tokens_decoder[\"{}\"] is not an id", Printable(key)));
    }
    entries.emplace_back(id, &entry);
  }
  std::sort(entries.begin(), entries.end());
  const size_t tokens = parts->tokens.size() + entries.size();
  for (const auto& [id, entry] : entries) {
    const std::string where = fmt::format("tokenizer_config.json: added_tokens_decoder[\"{}\"]", id);
    BGTQ_RETURN_IF_ERROR(AddToken(*entry, id, tokens, where, parts));
  }
  return {};
}

Status ReadBosAndEos(const json& config, TokenizerParts* parts) {
  BGTQ_ASSIGN_OR_RETURN(parts->bos, NamedToken(config, "bos_token", *parts));
  BGTQ_ASSIGN_OR_RETURN(parts->eos, NamedToken(config, "eos_token", *parts));
  BGTQ_ASSIGN_OR_RETURN(const auto add_bos, OptionalFlag(config, "add_bos_token"));
  BGTQ_ASSIGN_OR_RETURN(const auto add_eos, OptionalFlag(config, "add_eos_token"));
  if (add_eos.value_or(false)) {
    return Status(ErrorCode::kUnsupported, "tokenizer_config.json: add_eos_token is not supported");
  }
  const json& name = Member(config, "tokenizer_class");
  const bool by_flag = name.is_string() && std::count(std::begin(kAddBosClasses), std::end(kAddBosClasses),
                                                      name.get_ref<const std::string&>()) != 0;
  if (by_flag) {
    parts->prompt_prefix.clear();
    if (add_bos.value_or(true)) {
      if (parts->bos < 0) return Corrupt("tokenizer_config.json: add_bos_token without a bos_token");
      parts->prompt_prefix = {parts->bos};
    }
  }
  if (parts->bos < 0 && parts->prompt_prefix.size() == 1) parts->bos = parts->prompt_prefix[0];
  return {};
}

// generation_config.json's, and where it names none config.json's, as transformers has it.
Status ReadEndOfGeneration(const json& generation, const json& model, TokenizerParts* parts) {
  const bool has_own = !Member(generation, "eos_token_id").is_null();
  const json& value = Member(has_own ? generation : model, "eos_token_id");
  if (value.is_null()) return {};
  const json ids = value.is_array() ? value : json::array({value});
  for (const json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= parts->tokens.size()) {
      return Corrupt(fmt::format("{}: eos_token_id {} is not in the vocabulary of {} tokens",
                                 has_own ? "generation_config.json" : "config.json", id.dump(),
                                 parts->tokens.size()));
    }
    parts->end_of_generation.push_back(id.get<int32_t>());
    if (parts->eos < 0) parts->eos = id.get<int32_t>();
  }
  return {};
}

Result<std::optional<std::string>> ReadTemplate(const json& config) {
  const json* value = &Member(config, "chat_template");
  if (value->is_array()) {
    const json* chosen = nullptr;
    for (const json& entry : *value) {
      if (entry.is_object() && Member(entry, "name") == "default") chosen = &Member(entry, "template");
    }
    if (chosen == nullptr)
      return Corrupt("tokenizer_config.json: chat_template is a list without a \"default\"");
    value = chosen;
  }
  if (value->is_null()) return std::optional<std::string>();
  if (!value->is_string()) return Corrupt("tokenizer_config.json: chat_template is not a text");
  return std::optional<std::string>(value->get<std::string>());
}

// Nothing when there is no such file.
Result<std::optional<MappedFile>> OpenIfThere(const std::string& path) {
  auto file = MappedFile::Open(path);
  if (!file.ok() && file.status().code() == ErrorCode::kNotFound) return std::optional<MappedFile>();
  if (!file.ok()) return file.status();
  return std::optional<MappedFile>(std::move(file).value());
}

std::string_view TextOf(const std::optional<MappedFile>& file) {
  if (!file.has_value()) return {};
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

}  // namespace

Result<FolderTokenizerParts> TokenizerPartsFromTexts(const TokenizerTexts& texts) {
  BGTQ_ASSIGN_OR_RETURN(const json config, ParseObject(texts.tokenizer_config, "tokenizer_config.json"));
  BGTQ_ASSIGN_OR_RETURN(const json generation,
                        ParseObject(texts.generation_config, "generation_config.json"));
  BGTQ_ASSIGN_OR_RETURN(const json model, ParseObject(texts.model_config, "config.json"));
  FolderTokenizerParts result;
  BGTQ_ASSIGN_OR_RETURN(result.parts, ParseTokenizerJson(texts.tokenizer));
  BGTQ_RETURN_IF_ERROR(ReadAddedTokens(config, &result.parts));
  BGTQ_RETURN_IF_ERROR(ReadBosAndEos(config, &result.parts));
  BGTQ_RETURN_IF_ERROR(ReadEndOfGeneration(generation, model, &result.parts));
  if (!texts.chat_template.empty()) {
    result.chat_template = std::string(texts.chat_template);
  } else {
    BGTQ_ASSIGN_OR_RETURN(result.chat_template, ReadTemplate(config));
  }
  return result;
}

Result<FolderTokenizer> TokenizerFromTexts(const TokenizerTexts& texts) {
  BGTQ_ASSIGN_OR_RETURN(FolderTokenizerParts read, TokenizerPartsFromTexts(texts));
  FolderTokenizer result;
  result.chat_template = std::move(read.chat_template);
  BGTQ_ASSIGN_OR_RETURN(result.tokenizer, Tokenizer::FromParts(std::move(read.parts)));
  return result;
}

Result<FolderTokenizerParts> LoadTokenizerParts(const std::string& folder) {
  BGTQ_ASSIGN_OR_RETURN(const auto tokenizer, OpenIfThere(folder + "/tokenizer.json"));
  if (!tokenizer.has_value()) {
    return Status(ErrorCode::kNotFound,
                  fmt::format("{}: has no tokenizer.json (SentencePiece's tokenizer.model is read "
                              "from GGUF files only)",
                              folder));
  }
  BGTQ_ASSIGN_OR_RETURN(const auto config, OpenIfThere(folder + "/tokenizer_config.json"));
  BGTQ_ASSIGN_OR_RETURN(const auto generation, OpenIfThere(folder + "/generation_config.json"));
  BGTQ_ASSIGN_OR_RETURN(const auto jinja, OpenIfThere(folder + "/chat_template.jinja"));
  BGTQ_ASSIGN_OR_RETURN(const auto model, OpenIfThere(folder + "/config.json"));
  auto result = TokenizerPartsFromTexts(
      {TextOf(tokenizer), TextOf(config), TextOf(generation), TextOf(jinja), TextOf(model)});
  if (!result.ok()) return result.status().WithContext(folder);
  return result;
}

Result<FolderTokenizer> LoadTokenizerFolder(const std::string& folder) {
  BGTQ_ASSIGN_OR_RETURN(FolderTokenizerParts read, LoadTokenizerParts(folder));
  FolderTokenizer result;
  result.chat_template = std::move(read.chat_template);
  auto tokenizer = Tokenizer::FromParts(std::move(read.parts));
  if (!tokenizer.ok()) return tokenizer.status().WithContext(folder);
  result.tokenizer = std::move(tokenizer).value();
  return result;
}

}  // namespace blockgtq
