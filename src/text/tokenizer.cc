// Tokenizer: special tokens cut the text, the pre-tokenizer cuts what lies between, BPE merges each piece.
#include "src/text/tokenizer.h"

#include <fmt/format.h>

#include <unordered_map>

#include "src/text/pre_tokenizer.h"
#include "src/text/special_tokens.h"
#include "src/text/utf8.h"
#include "src/text/vocabulary.h"

namespace blockgtq {
namespace {

// Bounds of the pieces remembered within one Encode.
constexpr size_t kMaxSeenPieces = size_t{1} << 16;
constexpr size_t kMaxSeenBytes = 64;

Result<std::optional<int64_t>> OptionalInt(const GgufFile& file, std::string_view key) {
  if (file.FindValue(key) == nullptr) return std::optional<int64_t>();
  BGTQ_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
  return std::optional<int64_t>(value);
}

}  // namespace

struct Tokenizer::Impl {
  Impl(Vocabulary v, std::unique_ptr<PreTokenizer> p)
      : vocabulary(std::move(v)), pre_tokenizer(std::move(p)), specials(vocabulary) {}

  Vocabulary vocabulary;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  SpecialTokens specials;
  // Of normal tokens by their bytes; filled only for a pre-tokenizer with whole_piece_first.
  std::unordered_map<std::string_view, Token> whole_pieces;
  bool add_bos = false;
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  BGTQ_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2") {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: tokenizer.ggml.model \"{}\" is not supported; known: gpt2 (byte-level BPE)",
                    file.name(), model));
  }
  TokenizerVocab vocab;
  BGTQ_ASSIGN_OR_RETURN(vocab.pre, file.GetStringOr("tokenizer.ggml.pre", ""));
  BGTQ_ASSIGN_OR_RETURN(vocab.tokens, file.GetStrings("tokenizer.ggml.tokens"));
  BGTQ_ASSIGN_OR_RETURN(vocab.merges, file.GetStrings("tokenizer.ggml.merges"));
  if (file.FindValue("tokenizer.ggml.token_type") != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(vocab.types, file.GetInts("tokenizer.ggml.token_type"));
  }
  BGTQ_ASSIGN_OR_RETURN(vocab.bos, OptionalInt(file, "tokenizer.ggml.bos_token_id"));
  BGTQ_ASSIGN_OR_RETURN(vocab.eos, OptionalInt(file, "tokenizer.ggml.eos_token_id"));
  BGTQ_ASSIGN_OR_RETURN(vocab.eot, OptionalInt(file, "tokenizer.ggml.eot_token_id"));
  BGTQ_ASSIGN_OR_RETURN(vocab.eom, OptionalInt(file, "tokenizer.ggml.eom_token_id"));
  if (file.FindValue("tokenizer.ggml.add_bos_token") != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(const bool add_bos, file.GetBoolOr("tokenizer.ggml.add_bos_token", false));
    vocab.add_bos = add_bos;
  }
  auto result = FromVocab(vocab);
  if (!result.ok()) return result.status().WithContext(file.name());
  return result;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromVocab(const TokenizerVocab& vocab) {
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> pre_tokenizer, PreTokenizer::Create(vocab.pre));
  BGTQ_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Build(vocab));
  if (vocab.add_bos.value_or(false) && vocabulary.bos() < 0) {
    return Status(ErrorCode::kCorruptFile,
                  "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
  }
  std::unique_ptr<Tokenizer> result(new Tokenizer);
  result->impl_ = std::make_unique<Impl>(std::move(vocabulary), std::move(pre_tokenizer));
  Impl& impl = *result->impl_;
  impl.add_bos =
      vocab.add_bos.value_or(impl.vocabulary.bos() >= 0 && impl.pre_tokenizer->adds_bos_by_default());
  if (impl.pre_tokenizer->whole_piece_first()) {
    for (Token t = 0; t < impl.vocabulary.size(); ++t) {
      if (impl.vocabulary.type(t) == TokenType::kNormal)
        impl.whole_pieces.emplace(impl.vocabulary.Piece(t), t);
    }
  }
  return result;
}

std::vector<Token> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  std::vector<Token> out;
  PreTokenizer::Matcher matcher(*impl_->pre_tokenizer);
  BpeMerger merger(impl_->vocabulary.merges());
  const auto byte_tokens = impl_->vocabulary.byte_tokens();
  // Words come again: the tokens of a piece seen before are copied from where they stand in `out`.
  struct Range {
    size_t begin, count;
  };
  std::unordered_map<std::string_view, Range> seen;
  const auto append_piece = [&](std::string_view piece) {
    if (const auto before = seen.find(piece); before != seen.end()) {
      const auto [begin, count] = before->second;
      for (size_t i = 0; i < count; ++i) out.push_back(out[begin + i]);
      return;
    }
    const size_t begin = out.size();
    if (const auto whole = impl_->whole_pieces.find(piece); whole != impl_->whole_pieces.end()) {
      out.push_back(whole->second);
    } else {
      merger.Append(piece, byte_tokens, &out);
    }
    if (seen.size() < kMaxSeenPieces && piece.size() <= kMaxSeenBytes) {
      seen.emplace(piece, Range{begin, out.size() - begin});
    }
  };
  const auto append_plain = [&](std::string_view rest) {
    while (!rest.empty()) {
      const std::string_view valid = rest.substr(0, ValidUtf8Prefix(rest));
      for (size_t at = 0; at < valid.size();) {
        const size_t bytes = matcher.NextPiece(valid, at);
        append_piece(valid.substr(at, bytes));
        at += bytes;
      }
      rest.remove_prefix(valid.size());
      size_t invalid = 0;
      while (invalid < rest.size()) {
        const Utf8Unit unit = FirstUtf8Unit(rest.substr(invalid));
        if (unit.kind == Utf8Kind::kValid) break;
        invalid += unit.bytes;
      }
      if (invalid > 0) append_piece(rest.substr(0, invalid));
      rest.remove_prefix(invalid);
    }
  };
  for (const TextFragment& fragment : impl_->specials.Split(text, parse_special)) {
    if (fragment.token >= 0) {
      out.push_back(fragment.token);
    } else {
      append_plain(fragment.text);
    }
  }
  return out;
}

std::string_view Tokenizer::Piece(Token token) const {
  return token < 0 || token >= vocab_size() ? std::string_view() : impl_->vocabulary.Piece(token);
}

std::string Tokenizer::Decode(std::span<const Token> tokens) const {
  std::string out;
  for (const Token token : tokens) out.append(Piece(token));
  return out;
}

int Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }
Token Tokenizer::bos() const { return impl_->vocabulary.bos(); }
Token Tokenizer::eos() const { return impl_->vocabulary.eos(); }
bool Tokenizer::add_bos() const { return impl_->add_bos; }

bool Tokenizer::IsEndOfGeneration(Token token) const {
  return token >= 0 && token < vocab_size() && impl_->vocabulary.IsEndOfGeneration(token);
}

bool Tokenizer::IsControl(Token token) const {
  return token >= 0 && token < vocab_size() && impl_->vocabulary.type(token) == TokenType::kControl;
}

}  // namespace blockgtq
