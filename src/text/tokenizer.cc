// Tokenizer: special tokens cut the text, what lies between is normalised and cut by the pre-tokenizer, and
// the vocabulary's model makes tokens of each piece.
#include "src/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>

#include "src/text/added_tokens.h"
#include "src/text/normalizer.h"
#include "src/text/piece_encoder.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/special_tokens.h"
#include "src/text/tokenizer_parts.h"
#include "src/text/vocabulary.h"

namespace blockgtq {
namespace {

// Bounds of the pieces remembered within one Encode.
constexpr size_t kMaxSeenPieces = size_t{1} << 16;
constexpr size_t kMaxSeenBytes = 64;

constexpr std::string_view kMetaspace = "\xE2\x96\x81";

// Tokens of the pieces of one Encode call. Words come again: the tokens of a piece seen before are copied
// from where they stand in the output.
class PieceAppender {
 public:
  PieceAppender(const Vocabulary& vocabulary, bool whole_piece_first)
      : vocabulary_(vocabulary),
        whole_piece_first_(whole_piece_first),
        encoder_(MakePieceEncoder(vocabulary)) {}

  // Views must live as long as this object.
  void Append(std::string_view piece, std::vector<Token>* out) {
    if (const auto before = seen_.find(piece); before != seen_.end()) {
      const auto [begin, count] = before->second;
      for (size_t i = 0; i < count; ++i) out->push_back((*out)[begin + i]);
      return;
    }
    const size_t begin = out->size();
    if (const Token whole = whole_piece_first_ ? vocabulary_.Find(piece) : -1; whole >= 0) {
      out->push_back(whole);
    } else {
      encoder_->Append(piece, out);
    }
    if (seen_.size() < kMaxSeenPieces && piece.size() <= kMaxSeenBytes) {
      seen_.emplace(piece, Range{begin, out->size() - begin});
    }
  }

 private:
  struct Range {
    size_t begin, count;
  };
  const Vocabulary& vocabulary_;
  const bool whole_piece_first_;
  std::unique_ptr<PieceEncoder> encoder_;
  std::unordered_map<std::string_view, Range> seen_;
};

}  // namespace

struct Tokenizer::Impl {
  Impl(Vocabulary v, std::unique_ptr<PreTokenizer> p)
      : vocabulary(std::move(v)), pre_tokenizer(std::move(p)) {}

  Vocabulary vocabulary;
  std::vector<NormalizerStep> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  bool whole_piece_first = false;
  // Of GGUF files, or of tokenizer.json: tokens looked for in the text as it is, and in the normalised text.
  std::optional<SpecialTokens> specials;
  std::optional<AddedTokenMatcher> added, added_normalized;
  int strip_spaces = 0;
  bool no_space_in_first = false;
  bool add_bos = false;
  std::vector<Token> prompt_prefix;
};

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromVocab(const TokenizerVocab& vocab) {
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  if (vocab.text == TokenText::kByteLevel) {
    BGTQ_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::Create(vocab.pre));
  } else {
    pre_tokenizer = std::make_unique<PreTokenizer>(std::vector<PreTokenizerStep>());
  }
  BGTQ_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Build(vocab));
  if (vocab.add_bos.value_or(false) && vocabulary.bos() < 0) {
    return Status(ErrorCode::kCorruptFile,
                  "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
  }
  std::unique_ptr<Tokenizer> result(new Tokenizer);
  result->impl_ = std::make_unique<Impl>(std::move(vocabulary), std::move(pre_tokenizer));
  Impl& impl = *result->impl_;
  impl.specials.emplace(impl.vocabulary);
  const bool scores = vocab.model == TokenModel::kScores;
  impl.add_bos = vocab.add_bos.value_or(impl.vocabulary.bos() >= 0 &&
                                        (scores || impl.pre_tokenizer->adds_bos_by_default()));
  if (impl.add_bos) impl.prompt_prefix = {impl.vocabulary.bos()};
  impl.whole_piece_first = impl.pre_tokenizer->whole_piece_first();
  if (scores) {
    if (vocab.add_space_prefix) impl.normalizer.emplace_back(PrependStep{std::string(kMetaspace)});
    impl.normalizer.emplace_back(ReplaceStep{" ", std::string(kMetaspace)});
    impl.strip_spaces = vocab.add_space_prefix ? 1 : 0;
  }
  if (scores || impl.whole_piece_first) impl.vocabulary.IndexTexts(vocab.tokens);
  return result;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromParts(TokenizerParts parts) {
  const std::vector<std::string_view> tokens(parts.tokens.begin(), parts.tokens.end());
  const std::vector<std::pair<std::string_view, std::string_view>> merges(parts.merges.begin(),
                                                                          parts.merges.end());
  const auto id = [](int32_t token) {
    return token < 0 ? std::optional<int64_t>() : std::optional<int64_t>(token);
  };
  TokenizerVocab vocab;
  vocab.source = VocabSource::kTokenizerJson;
  vocab.text = parts.text;
  vocab.tokens = tokens;
  vocab.types = parts.types;
  vocab.merge_pairs = merges;
  vocab.bos = id(parts.bos);
  vocab.eos = id(parts.eos);
  vocab.unk = id(parts.unk);
  vocab.byte_fallback = parts.byte_fallback;
  vocab.fuse_unk = parts.fuse_unk;
  BGTQ_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Build(vocab));
  for (const int32_t token : parts.end_of_generation) vocabulary.SetEndOfGeneration(token);

  std::unique_ptr<Tokenizer> result(new Tokenizer);
  result->impl_ = std::make_unique<Impl>(std::move(vocabulary),
                                         std::make_unique<PreTokenizer>(std::move(parts.pre_tokenizer)));
  Impl& impl = *result->impl_;
  impl.normalizer = std::move(parts.normalizer);
  std::vector<AddedToken> as_is, normalized;
  for (AddedToken& token : parts.added) {
    if (token.normalized) token.text = Normalize(impl.normalizer, token.text);
    (token.normalized ? normalized : as_is).push_back(std::move(token));
  }
  impl.added.emplace(std::move(as_is));
  impl.added_normalized.emplace(std::move(normalized));
  impl.whole_piece_first = parts.whole_piece_first;
  if (parts.whole_piece_first || parts.text == TokenText::kMetaspace) impl.vocabulary.IndexTexts(tokens);
  impl.strip_spaces = parts.strip_spaces;
  impl.no_space_in_first = parts.no_space_in_first;
  impl.prompt_prefix.assign(parts.prompt_prefix.begin(), parts.prompt_prefix.end());
  impl.add_bos = parts.bos >= 0 && impl.prompt_prefix == std::vector<Token>{parts.bos};
  return result;
}

std::vector<Token> Tokenizer::Encode(std::string_view text, bool parse_special) const {
  std::vector<Token> out;
  PieceAppender appender(impl_->vocabulary, impl_->whole_piece_first);
  PreTokenizer::Splitter splitter(*impl_->pre_tokenizer);
  std::deque<std::string> normalized;
  const auto append_text = [&](std::string_view plain, bool at_start) {
    for (const std::string_view piece : splitter.Split(plain, at_start)) appender.Append(piece, &out);
  };
  const auto normalize = [&](std::string_view plain) -> std::string_view {
    return impl_->normalizer.empty() ? plain : normalized.emplace_back(Normalize(impl_->normalizer, plain));
  };
  if (impl_->specials.has_value()) {
    for (const TextFragment& fragment : impl_->specials->Split(text, parse_special)) {
      if (fragment.token >= 0) {
        out.push_back(fragment.token);
      } else {
        append_text(normalize(fragment.text), fragment.text.data() == text.data());
      }
    }
    return out;
  }
  for (const AddedFragment& outer : impl_->added->Split(text, parse_special)) {
    if (outer.token >= 0) {
      out.push_back(outer.token);
      continue;
    }
    const std::string_view plain = normalize(text.substr(outer.begin, outer.end - outer.begin));
    for (const AddedFragment& inner : impl_->added_normalized->Split(plain, parse_special)) {
      if (inner.token >= 0) {
        out.push_back(inner.token);
      } else {
        append_text(plain.substr(inner.begin, inner.end - inner.begin), outer.begin == 0 && inner.begin == 0);
      }
    }
  }
  return out;
}

std::string_view Tokenizer::Piece(Token token) const {
  return token < 0 || token >= vocab_size() ? std::string_view() : impl_->vocabulary.Piece(token);
}

std::string Tokenizer::Decode(std::span<const Token> tokens) const {
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    out.append(Piece(tokens[i]));
    if (i == 0 && impl_->no_space_in_first) std::erase(out, ' ');
  }
  const size_t spaces = std::min(out.find_first_not_of(' '), out.size());
  return out.erase(0, std::min<size_t>(spaces, impl_->strip_spaces));
}

int Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }
Token Tokenizer::bos() const { return impl_->vocabulary.bos(); }
Token Tokenizer::eos() const { return impl_->vocabulary.eos(); }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
std::span<const Token> Tokenizer::prompt_prefix() const { return impl_->prompt_prefix; }

bool Tokenizer::IsEndOfGeneration(Token token) const {
  return token >= 0 && token < vocab_size() && impl_->vocabulary.IsEndOfGeneration(token);
}

bool Tokenizer::IsControl(Token token) const {
  return token >= 0 && token < vocab_size() && impl_->vocabulary.type(token) == TokenType::kControl;
}

}  // namespace blockgtq
