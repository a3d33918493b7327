// Checks and indexing of a vocabulary.
#include "src/text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
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

Result<int32_t> CheckedId(const char* key, std::optional<int64_t> id, size_t tokens) {
  if (!id.has_value()) return -1;
  if (*id < 0 || static_cast<uint64_t>(*id) >= tokens) {
    return Corrupt(fmt::format("tokenizer.ggml.{}_token_id is {}, outside the vocabulary of {} tokens", key,
                               *id, tokens));
  }
  return static_cast<int32_t>(*id);
}

Result<MergeTable> BuildMerges(std::span<const std::string_view> merges, const TokenIds& ids) {
  MergeTable table(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string_view::npos) {
      return Corrupt(
          fmt::format("tokenizer.ggml.merges[{}] \"{}\" is not two tokens with a space between them", rank,
                      Shown(merge)));
    }
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    joined.assign(left).append(right);
    const auto left_id = ids.find(left), right_id = ids.find(right), result = ids.find(joined);
    if (left_id == ids.end() || right_id == ids.end() || result == ids.end()) {
      const std::string_view missing = left_id == ids.end() ? left : right_id == ids.end() ? right : joined;
      return Corrupt(fmt::format(
          "tokenizer.ggml.merges[{}] \"{}\" needs the token \"{}\", which is not in the vocabulary", rank,
          Shown(merge), Shown(missing)));
    }
    table.Add(left_id->second, right_id->second, {static_cast<int32_t>(rank), result->second});
  }
  return table;
}

}  // namespace

std::string_view Vocabulary::Piece(int32_t token) const {
  return std::string_view(bytes_).substr(offset_[token], offset_[token + 1] - offset_[token]);
}

Result<Vocabulary> Vocabulary::Build(const TokenizerVocab& vocab) {
  constexpr size_t kMaxCount = std::numeric_limits<int32_t>::max() / 2;
  const size_t count = vocab.tokens.size();
  if (count == 0) return Corrupt("tokenizer.ggml.tokens is empty");
  if (count > kMaxCount || vocab.merges.size() > kMaxCount) {
    return Corrupt(fmt::format("the tokenizer has {} tokens and {} merges, more than {}", count,
                               vocab.merges.size(), kMaxCount));
  }
  if (!vocab.types.empty() && vocab.types.size() != count) {
    return Corrupt(
        fmt::format("tokenizer.ggml.token_type has {} entries for {} tokens", vocab.types.size(), count));
  }

  Vocabulary result;
  result.types_.assign(count, TokenType::kNormal);
  result.ends_generation_.assign(count, 0);
  TokenIds ids;
  ids.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (!vocab.types.empty()) {
      if (vocab.types[i] < 0 || vocab.types[i] > static_cast<int64_t>(TokenType::kByte)) {
        return Corrupt(fmt::format("tokenizer.ggml.token_type[{}] is {}, not 0 to 6", i, vocab.types[i]));
      }
      result.types_[i] = static_cast<TokenType>(vocab.types[i]);
    }
    const std::string_view text = vocab.tokens[i];
    if (ValidUtf8Prefix(text) != text.size()) {
      return Corrupt(fmt::format("tokenizer.ggml.tokens[{}] \"{}\" is not valid UTF-8", i, Shown(text)));
    }
    const bool unused = result.types_[i] == TokenType::kUnused || text.empty();
    const auto [earlier, inserted] =
        unused ? std::pair(ids.end(), true) : ids.emplace(text, static_cast<int32_t>(i));
    if (!inserted) {
      return Corrupt(fmt::format("tokenizer.ggml.tokens has \"{}\" twice, as {} and {}", Shown(text),
                                 earlier->second, i));
    }
  }

  for (const std::string_view name : kEndOfGenerationNames) {
    if (const auto found = ids.find(name); found != ids.end()) {
      result.types_[found->second] = TokenType::kControl;
      result.ends_generation_[found->second] = 1;
    }
  }
  BGTQ_ASSIGN_OR_RETURN(result.bos_, CheckedId("bos", vocab.bos, count));
  BGTQ_ASSIGN_OR_RETURN(result.eos_, CheckedId("eos", vocab.eos, count));
  BGTQ_ASSIGN_OR_RETURN(const int32_t eot, CheckedId("eot", vocab.eot, count));
  BGTQ_ASSIGN_OR_RETURN(const int32_t eom, CheckedId("eom", vocab.eom, count));
  for (const int32_t id : {result.eos_, eot, eom}) {
    if (id >= 0) result.ends_generation_[id] = 1;
  }

  result.offset_.reserve(count + 1);
  for (size_t i = 0; i < count; ++i) {
    result.offset_.push_back(result.bytes_.size());
    const std::string_view text = vocab.tokens[i];
    switch (result.types_[i]) {
      case TokenType::kNormal:
        // A token added by hand may hold characters outside the alphabet (a space, say): its text is its
        // bytes.
        result.bytes_.append(AlphabetToBytes(text).value_or(std::string(text)));
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kUserDefined:
        if (text.size() > kMaxSpecialTokenBytes) {
          return Status(
              ErrorCode::kUnsupported,
              fmt::format(
                  "tokenizer.ggml.tokens[{}] \"{}\" is a special token of {} bytes; at most {} are supported",
                  i, Shown(text), text.size(), kMaxSpecialTokenBytes));
        }
        result.bytes_.append(text);
        if (!text.empty()) result.special_tokens_.push_back(static_cast<int32_t>(i));
        break;
      case TokenType::kUndefined:
      case TokenType::kUnused:
      case TokenType::kByte:  // <0x0A>: of SentencePiece vocabularies, never produced here
        break;
    }
  }
  result.offset_.push_back(result.bytes_.size());

  result.byte_tokens_.assign(256, -1);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(ByteToAlphabet(static_cast<uint8_t>(byte)));
    if (found != ids.end()) result.byte_tokens_[byte] = found->second;
  }
  if (std::all_of(result.byte_tokens_.begin(), result.byte_tokens_.end(),
                  [](int32_t id) { return id < 0; })) {
    return Corrupt(
        "tokenizer.ggml.tokens has no token for a single byte: this is not a byte-level vocabulary");
  }
  BGTQ_ASSIGN_OR_RETURN(result.merges_, BuildMerges(vocab.merges, ids));
  return result;
}

}  // namespace blockgtq
