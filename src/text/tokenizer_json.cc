// The file as a whole, its model and its added tokens.
#include "src/text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/formats/json_fields.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{1} << 28;
constexpr int kMaxDepth = 64;

Status Corrupt(std::string message) { return Status(ErrorCode::kCorruptFile, std::move(message)); }
Status Unsupported(std::string message) { return Status(ErrorCode::kUnsupported, std::move(message)); }

const json& Member(const json& object, const char* name) {
  static const json kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

Result<bool> Flag(const json& object, const char* name, const std::string& where) {
  const json& value = Member(object, name);
  if (value.is_null()) return false;
  if (!value.is_boolean()) return Corrupt(fmt::format("{}{} is not true or false", where, name));
  return value.get<bool>();
}

// Ids may leave gaps, but not many more than there are tokens: the table below is indexed by id.
Status CheckId(int64_t id, size_t tokens, std::string_view text) {
  if (id >= 0 && static_cast<uint64_t>(id) < 2 * tokens + 1024) return {};
  return Corrupt(
      fmt::format("tokenizer.json: token \"{}\" has the id {} among {} tokens", Printable(text), id, tokens));
}

Status SetText(int64_t id, std::string_view text, TokenizerParts* parts) {
  const size_t index = static_cast<size_t>(id);
  if (index >= parts->tokens.size()) {
    parts->tokens.resize(index + 1);
    parts->types.resize(index + 1, static_cast<int64_t>(TokenType::kUnused));
  }
  if (!parts->tokens[index].empty() && parts->tokens[index] != text) {
    return Corrupt(fmt::format("tokenizer.json: tokens \"{}\" and \"{}\" have the same id {}",
                               Printable(parts->tokens[index]), Printable(text), id));
  }
  parts->tokens[index] = text;
  return {};
}

Status ReadVocab(const json& model, size_t added, TokenizerParts* parts) {
  const json& vocab = Member(model, "vocab");
  if (!vocab.is_object()) return Corrupt("tokenizer.json: model.vocab is not an object of ids");
  const size_t count = vocab.size() + added;
  for (const auto& [text, id] : vocab.items()) {
    if (!id.is_number_integer()) {
      return Corrupt(fmt::format("tokenizer.json: model.vocab[\"{}\"] is not an id", Printable(text)));
    }
    const int64_t value = id.get<int64_t>();
    BGTQ_RETURN_IF_ERROR(CheckId(value, count, text));
    BGTQ_RETURN_IF_ERROR(SetText(value, text, parts));
    parts->types[value] = static_cast<int64_t>(TokenType::kNormal);
  }
  return {};
}

Status ReadMerges(const json& model, TokenizerParts* parts) {
  const json& merges = Member(model, "merges");
  if (!merges.is_array()) return Corrupt("tokenizer.json: model.merges is not an array");
  for (size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      parts->merges.emplace_back(merge[0].get_ref<const std::string&>(),
                                 merge[1].get_ref<const std::string&>());
      continue;
    }
    const std::string* text = merge.get_ptr<const std::string*>();
    const size_t space = text == nullptr ? std::string::npos : text->find(' ');
    if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) {
      return Corrupt(fmt::format("tokenizer.json: model.merges[{}] is not two tokens", i));
    }
    parts->merges.emplace_back(text->substr(0, space), text->substr(space + 1));
  }
  return {};
}

Status ReadModel(const json& model, size_t added, TokenizerParts* parts) {
  if (!model.is_object()) return Corrupt("tokenizer.json: there is no model");
  const json& type = Member(model, "type");
  if (!type.is_null() && type != "BPE") {
    return Unsupported(
        fmt::format("tokenizer.json: model.type {} is not supported; known: BPE", type.dump()));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"}) {
    const json& value = Member(model, name);
    if (!value.is_null() && !(value.is_string() && value.get_ref<const json::string_t&>().empty()) &&
        value != 0.0) {
      return Unsupported(fmt::format("tokenizer.json: model.{} {} is not supported", name, value.dump()));
    }
  }
  const std::string where = "tokenizer.json: model.";
  BGTQ_ASSIGN_OR_RETURN(parts->byte_fallback, Flag(model, "byte_fallback", where));
  BGTQ_ASSIGN_OR_RETURN(parts->fuse_unk, Flag(model, "fuse_unk", where));
  BGTQ_ASSIGN_OR_RETURN(parts->whole_piece_first, Flag(model, "ignore_merges", where));
  BGTQ_RETURN_IF_ERROR(ReadVocab(model, added, parts));
  BGTQ_RETURN_IF_ERROR(ReadMerges(model, parts));
  const json& unk = Member(model, "unk_token");
  if (unk.is_null()) return {};
  const auto found =
      std::find(parts->tokens.begin(), parts->tokens.end(), unk.is_string() ? unk.get<std::string>() : "");
  if (!unk.is_string() || found == parts->tokens.end() || found->empty()) {
    return Corrupt(fmt::format("tokenizer.json: model.unk_token {} is not in the vocabulary", unk.dump()));
  }
  parts->unk = static_cast<int32_t>(found - parts->tokens.begin());
  return {};
}

}  // namespace

Status AddToken(const json& entry, int64_t id, size_t tokens, const std::string& where,
                TokenizerParts* parts) {
  const json* content = entry.is_object() ? &Member(entry, "content") : nullptr;
  if (content == nullptr || !content->is_string()) return Corrupt(where + " has no content");
  AddedToken token{};
  token.text = content->get<std::string>();
  BGTQ_ASSIGN_OR_RETURN(token.special, Flag(entry, "special", where + "."));
  BGTQ_ASSIGN_OR_RETURN(token.strip_left, Flag(entry, "lstrip", where + "."));
  BGTQ_ASSIGN_OR_RETURN(token.strip_right, Flag(entry, "rstrip", where + "."));
  BGTQ_ASSIGN_OR_RETURN(token.normalized, Flag(entry, "normalized", where + "."));
  BGTQ_ASSIGN_OR_RETURN(const bool single_word, Flag(entry, "single_word", where + "."));
  if (single_word) {
    return Unsupported(fmt::format("{} \"{}\": single_word is not supported", where, Printable(token.text)));
  }
  if (token.text.empty()) return {};  // never found, as in Hugging Face's tokenizers
  BGTQ_RETURN_IF_ERROR(CheckId(id, tokens, token.text));
  BGTQ_RETURN_IF_ERROR(SetText(id, token.text, parts));
  token.token = static_cast<int32_t>(id);
  parts->types[id] = static_cast<int64_t>(token.special ? TokenType::kControl : TokenType::kUserDefined);
  const auto same = std::find_if(parts->added.begin(), parts->added.end(),
                                 [&](const AddedToken& other) { return other.token == token.token; });
  if (same != parts->added.end()) {
    *same = std::move(token);
  } else {
    parts->added.push_back(std::move(token));
  }
  return {};
}

Result<TokenizerParts> ParseTokenizerJson(std::string_view text) {
  auto parsed = ParseBoundedJson(text, kMaxFileBytes, kMaxDepth);
  if (!parsed.ok()) return parsed.status().WithContext("tokenizer.json");
  const json& root = *parsed;
  if (!root.is_object()) return Corrupt("tokenizer.json: not a JSON object");
  const json& added = Member(root, "added_tokens");
  if (!added.is_array() && !added.is_null()) return Corrupt("tokenizer.json: added_tokens is not an array");

  TokenizerParts parts;
  BGTQ_RETURN_IF_ERROR(ReadModel(Member(root, "model"), added.size(), &parts));
  const size_t tokens = parts.tokens.size() + added.size();
  for (size_t i = 0; i < added.size(); ++i) {
    const std::string where = fmt::format("tokenizer.json: added_tokens[{}]", i);
    const json* id = added[i].is_object() ? &Member(added[i], "id") : nullptr;
    if (id == nullptr || !id->is_number_integer()) return Corrupt(where + " has no id");
    BGTQ_RETURN_IF_ERROR(AddToken(added[i], id->get<int64_t>(), tokens, where, &parts));
  }
  BGTQ_RETURN_IF_ERROR(ParseNormalizer(Member(root, "normalizer"), &parts.normalizer));
  bool byte_level = false;
  BGTQ_RETURN_IF_ERROR(ParsePreTokenizer(Member(root, "pre_tokenizer"), &parts.pre_tokenizer, &byte_level));
  parts.text = byte_level ? TokenText::kByteLevel : TokenText::kMetaspace;
  BGTQ_RETURN_IF_ERROR(ParseDecoder(Member(root, "decoder"), &parts));
  BGTQ_RETURN_IF_ERROR(ParsePostProcessor(Member(root, "post_processor"), &parts));
  return parts;
}

}  // namespace blockgtq
