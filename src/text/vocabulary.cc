// Checks and indexing of a vocabulary.
#include "src/text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "src/text/byte_alphabet.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

// Tokens that end a turn by their name, whatever their type in the file: conversions often mark them wrongly.
// The fill-in-the-middle padding, repository and file tokens are among them because a model that emits one
// has left its answer. The set is llama.cpp's (tests/data/llama_cpp).
constexpr std::string_view kEndOfGenerationNames[] = {
    "<|eot_id|>",    "<|im_end|>",    "<|end|>",         "<|return|>",    "<|call|>",
    "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",    "<end_of_utterance>",
    "</s>",          "<eos>",         "< EOT >",         "_< EOT >",      "[EOT]",
    "[EOS]",         "<EOT>",         "_<EOT>",          "<|fim_pad|>",   "<fim-pad>",
    "<fim_pad>",     "<PAD>",         "<|fim_repo|>",    "<|repo_name|>", "<fim-repo>",
    "<REPO>",        "<reponame>",    "<|file_sep|>",
};

using TokenIds = std::unordered_map<std::string_view, int32_t>;

Status Corrupt(std::string message) { return Status(ErrorCode::kCorruptFile, std::move(message)); }

// Token text in a message: printable, short.
std::string Shown(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text.size() > 40 ? out + "..." : out;
}

// Where the parts stand in the file.
const char* TokensName(const TokenizerVocab& vocab) {
  return vocab.source == VocabSource::kGguf ? "tokenizer.ggml.tokens" : "tokenizer.json: tokens";
}
const char* MergesName(const TokenizerVocab& vocab) {
  return vocab.source == VocabSource::kGguf ? "tokenizer.ggml.merges" : "tokenizer.json: model.merges";
}

Result<int32_t> CheckedId(const char* key, std::optional<int64_t> id, size_t tokens) {
  if (!id.has_value()) return -1;
  if (*id < 0 || static_cast<uint64_t>(*id) >= tokens) {
    return Corrupt(fmt::format("tokenizer.ggml.{}_token_id is {}, outside the vocabulary of {} tokens", key,
                               *id, tokens));
  }
  return static_cast<int32_t>(*id);
}

using TokenPair = std::pair<std::string_view, std::string_view>;

Result<TokenPair> MergeAt(const TokenizerVocab& vocab, size_t rank) {
  if (vocab.merges.empty()) return vocab.merge_pairs[rank];
  const std::string_view merge = vocab.merges[rank];
  const size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != std::string_view::npos) {
    return Corrupt(fmt::format("{}[{}] \"{}\" is not two tokens with a space between them", MergesName(vocab),
                               rank, Shown(merge)));
  }
  return TokenPair(merge.substr(0, space), merge.substr(space + 1));
}

Result<MergeTable> BuildMerges(const TokenizerVocab& vocab, const TokenIds& ids) {
  const size_t count = vocab.merges.empty() ? vocab.merge_pairs.size() : vocab.merges.size();
  MergeTable table(count);
  std::string joined;
  for (size_t i = 0; i < count; ++i) {
    // The first of two equal pairs stays in the table.
    const size_t rank = vocab.source == VocabSource::kGguf ? i : count - 1 - i;
    BGTQ_ASSIGN_OR_RETURN(const TokenPair merge, MergeAt(vocab, rank));
    const auto [left, right] = merge;
    joined.assign(left).append(right);
    const auto left_id = ids.find(left), right_id = ids.find(right), result = ids.find(joined);
    if (left_id == ids.end() || right_id == ids.end() || result == ids.end()) {
      const std::string_view missing = left_id == ids.end() ? left : right_id == ids.end() ? right : joined;
      return Corrupt(fmt::format("{}[{}] \"{} {}\" needs the token \"{}\", which is not in the vocabulary",
                                 MergesName(vocab), rank, Shown(left), Shown(right), Shown(missing)));
    }
    table.Add(left_id->second, right_id->second, {static_cast<int32_t>(rank), result->second});
  }
  return table;
}

// The byte of a token named <0x0A>.
std::optional<uint8_t> ByteOfName(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = digit(text[3]), low = digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

std::string WithSpaces(std::string_view text) {
  std::string out;
  for (size_t at; (at = text.find(kMetaspace)) != std::string_view::npos;
       text.remove_prefix(at + kMetaspace.size())) {
    out.append(text.substr(0, at)).push_back(' ');
  }
  return out.append(text);
}

}  // namespace

bool EndsTurnByName(std::string_view text) {
  return std::find(std::begin(kEndOfGenerationNames), std::end(kEndOfGenerationNames), text) !=
         std::end(kEndOfGenerationNames);
}

std::string_view Vocabulary::Piece(int32_t token) const {
  return std::string_view(bytes_).substr(offset_[token], offset_[token + 1] - offset_[token]);
}

Status Vocabulary::ReadTypes(const TokenizerVocab& vocab, TokenIds* ids) {
  const size_t count = vocab.tokens.size();
  types_.assign(count, TokenType::kNormal);
  ends_generation_.assign(count, 0);
  ids->reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (!vocab.types.empty()) {
      if (vocab.types[i] < 0 || vocab.types[i] > static_cast<int64_t>(TokenType::kByte)) {
        return Corrupt(fmt::format("tokenizer.ggml.token_type[{}] is {}, not 0 to 6", i, vocab.types[i]));
      }
      types_[i] = static_cast<TokenType>(vocab.types[i]);
    }
    const std::string_view text = vocab.tokens[i];
    if (ValidUtf8Prefix(text) != text.size()) {
      return Corrupt(fmt::format("{}[{}] \"{}\" is not valid UTF-8", TokensName(vocab), i, Shown(text)));
    }
    if (types_[i] == TokenType::kUnused || text.empty()) continue;
    const auto [earlier, inserted] = ids->emplace(text, static_cast<int32_t>(i));
    if (!inserted) {
      return Corrupt(fmt::format("{} has \"{}\" twice, as {} and {}", TokensName(vocab), Shown(text),
                                 earlier->second, i));
    }
  }
  for (const std::string_view name : kEndOfGenerationNames) {
    const auto found = ids->find(name);
    if (found == ids->end()) continue;
    TokenType& type = types_[found->second];
    if (vocab.source == VocabSource::kGguf) type = TokenType::kControl;
    if (type == TokenType::kControl || type == TokenType::kUserDefined) ends_generation_[found->second] = 1;
  }
  return {};
}

Status Vocabulary::ReadPieces(const TokenizerVocab& vocab) {
  offset_.reserve(vocab.tokens.size() + 1);
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    offset_.push_back(bytes_.size());
    const std::string_view text = vocab.tokens[i];
    switch (types_[i]) {
      case TokenType::kNormal:
        if (text_ == TokenText::kByteLevel) {
          // A token added by hand may hold characters outside the alphabet (a space, say): its text is its
          // bytes.
          bytes_.append(AlphabetToBytes(text).value_or(std::string(text)));
        } else if (const auto byte = ByteOfName(text); byte.has_value() && vocab.byte_fallback) {
          bytes_.push_back(static_cast<char>(*byte));
        } else {
          bytes_.append(WithSpaces(text));
        }
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kUserDefined:
        if (text.size() > kMaxSpecialTokenBytes) {
          return Status(ErrorCode::kUnsupported,
                        fmt::format("{}[{}] \"{}\" is a special token of {} bytes; at most {} are supported",
                                    TokensName(vocab), i, Shown(text), text.size(), kMaxSpecialTokenBytes));
        }
        bytes_.append(text);
        if (!text.empty()) special_tokens_.push_back(static_cast<int32_t>(i));
        break;
      case TokenType::kByte:
        if (const auto byte = ByteOfName(text); byte.has_value() && text_ == TokenText::kMetaspace) {
          bytes_.push_back(static_cast<char>(*byte));
        }
        break;
      case TokenType::kUndefined:
      case TokenType::kUnused:
        break;
    }
  }
  offset_.push_back(bytes_.size());
  return {};
}

Status Vocabulary::ReadByteTokens(const TokenizerVocab& vocab, const TokenIds& ids) {
  byte_tokens_.assign(256, -1);
  if (text_ == TokenText::kMetaspace && !vocab.byte_fallback) return {};
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = text_ == TokenText::kByteLevel ? ByteToAlphabet(static_cast<uint8_t>(byte))
                                                            : fmt::format("<0x{:02X}>", byte);
    const auto found = ids.find(name);
    if (found != ids.end()) byte_tokens_[byte] = found->second;
  }
  if (text_ == TokenText::kByteLevel &&
      std::all_of(byte_tokens_.begin(), byte_tokens_.end(), [](int32_t id) { return id < 0; })) {
    return Corrupt(fmt::format("{} has no token for a single byte: this is not a byte-level vocabulary",
                               TokensName(vocab)));
  }
  return {};
}

Result<Vocabulary> Vocabulary::Build(const TokenizerVocab& vocab) {
  constexpr size_t kMaxCount = std::numeric_limits<int32_t>::max() / 2;
  const size_t count = vocab.tokens.size();
  const size_t merges = std::max(vocab.merges.size(), vocab.merge_pairs.size());
  if (count == 0) return Corrupt(fmt::format("{} is empty", TokensName(vocab)));
  if (count > kMaxCount || merges > kMaxCount) {
    return Corrupt(
        fmt::format("the tokenizer has {} tokens and {} merges, more than {}", count, merges, kMaxCount));
  }
  if (!vocab.types.empty() && vocab.types.size() != count) {
    return Corrupt(
        fmt::format("tokenizer.ggml.token_type has {} entries for {} tokens", vocab.types.size(), count));
  }
  if (vocab.model == TokenModel::kScores && vocab.scores.size() != count) {
    return Corrupt(
        fmt::format("tokenizer.ggml.scores has {} entries for {} tokens", vocab.scores.size(), count));
  }

  Vocabulary result;
  result.source_ = vocab.source;
  result.text_ = vocab.text;
  result.model_ = vocab.model;
  result.fuse_unk_ = vocab.fuse_unk;
  for (size_t i = 0; i < vocab.scores.size(); ++i) {
    if (!std::isfinite(vocab.scores[i])) {
      return Corrupt(fmt::format("tokenizer.ggml.scores[{}] is not a finite number", i));
    }
    result.scores_.push_back(static_cast<float>(vocab.scores[i]));
  }
  TokenIds ids;
  BGTQ_RETURN_IF_ERROR(result.ReadTypes(vocab, &ids));
  BGTQ_ASSIGN_OR_RETURN(result.bos_, CheckedId("bos", vocab.bos, count));
  BGTQ_ASSIGN_OR_RETURN(result.eos_, CheckedId("eos", vocab.eos, count));
  BGTQ_ASSIGN_OR_RETURN(result.unk_, CheckedId("unknown", vocab.unk, count));
  BGTQ_ASSIGN_OR_RETURN(const int32_t eot, CheckedId("eot", vocab.eot, count));
  BGTQ_ASSIGN_OR_RETURN(const int32_t eom, CheckedId("eom", vocab.eom, count));
  for (const int32_t id : {result.eos_, eot, eom}) {
    if (id >= 0) result.ends_generation_[id] = 1;
  }
  BGTQ_RETURN_IF_ERROR(result.ReadPieces(vocab));
  BGTQ_RETURN_IF_ERROR(result.ReadByteTokens(vocab, ids));
  BGTQ_ASSIGN_OR_RETURN(result.merges_, BuildMerges(vocab, ids));
  return result;
}

void Vocabulary::IndexTexts(std::span<const std::string_view> tokens) {
  std::string texts;
  std::vector<size_t> offset;
  for (int32_t t = 0; t < size(); ++t) {
    offset.push_back(texts.size());
    texts.append(text_ == TokenText::kByteLevel ? Piece(t) : tokens[t]);
  }
  offset.push_back(texts.size());
  texts_ = std::make_unique<const std::string>(std::move(texts));
  by_text_.reserve(size());
  for (int32_t t = 0; t < size(); ++t) {
    const std::string_view text = std::string_view(*texts_).substr(offset[t], offset[t + 1] - offset[t]);
    const bool usable = types_[t] == TokenType::kNormal || types_[t] == TokenType::kUserDefined;
    if (!usable || text.empty()) continue;
    by_text_.emplace(text, t);
    longest_text_ = std::max(longest_text_, text.size());
  }
}

int32_t Vocabulary::Find(std::string_view piece) const {
  if (piece.size() > longest_text_) return -1;
  const auto found = by_text_.find(piece);
  return found == by_text_.end() ? -1 : found->second;
}

}  // namespace blockgtq
