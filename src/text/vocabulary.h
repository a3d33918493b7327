// A tokenizer's vocabulary as read from a file, and the same checked and indexed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blockgtq/status.h"
#include "src/text/bpe.h"

namespace blockgtq {

/// tokenizer.ggml.token_type.
enum class TokenType : uint8_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// How the text of a token stands for bytes.
enum class TokenText {
  kByteLevel,  // GPT-2's alphabet (src/text/byte_alphabet.h)
  kMetaspace,  // U+2581 is a space, <0x0A> the byte
};

/// How pieces become tokens.
enum class TokenModel {
  kMerges,  // BPE: ranked merges
  kScores,  // SentencePiece's BPE: of the neighbours whose union is a token, those with the highest score
};

/// Which rules hold where files of the two kinds differ.
enum class VocabSource {
  kGguf,  // tokens that end a turn by their name are special whatever their type; the first of two equal
          // merges counts
  kTokenizerJson,  // only added tokens are special; the last one counts
};

/// What a file says of a tokenizer; views are only read during construction.
struct TokenizerVocab {
  VocabSource source = VocabSource::kGguf;
  TokenText text = TokenText::kByteLevel;
  TokenModel model = TokenModel::kMerges;
  std::span<const std::string_view> tokens;  // index: token id
  std::span<const int64_t> types;            // TokenType of each; empty: all normal
  std::span<const double> scores;            // kScores: of each token
  std::span<const std::string_view> merges;  // "left right", lowest rank first
  std::span<const std::pair<std::string_view, std::string_view>>
      merge_pairs;       // the same, when merges is empty
  std::string_view pre;  // kByteLevel of GGUF: name of the pre-tokenizer
  std::optional<int64_t> bos, eos, eot, eom, unk;
  std::optional<bool> add_bos;
  bool byte_fallback = true;  // kMetaspace: characters without a token become <0x..> tokens
  bool fuse_unk = false;      // kMetaspace with merges: one unknown token for neighbouring unknown characters
  bool add_space_prefix = true;  // kScores: a space before every text
};

/// Bounds the work of looking for special tokens in text.
inline constexpr size_t kMaxSpecialTokenBytes = 1024;

/// Whether GGUF readers take a token of this text for one that ends a turn, whatever the file says of it.
bool EndsTurnByName(std::string_view text);

class Vocabulary {
 public:
  /// Errors: kCorruptFile when the parts contradict each other; kUnsupported for a special token longer than
  /// kMaxSpecialTokenBytes.
  static Result<Vocabulary> Build(const TokenizerVocab& vocab);

  int size() const { return static_cast<int>(types_.size()); }
  /// The bytes a token stands for; its text for special and user-defined tokens; nothing for unused ones.
  std::string_view Piece(int32_t token) const;
  TokenType type(int32_t token) const { return types_[token]; }
  bool IsEndOfGeneration(int32_t token) const { return ends_generation_[token] != 0; }
  void SetEndOfGeneration(int32_t token) { ends_generation_[token] = 1; }
  /// Of each byte, -1: none. kMetaspace: all -1 without byte_fallback.
  std::span<const int32_t, 256> byte_tokens() const { return std::span<const int32_t, 256>(byte_tokens_); }
  const MergeTable& merges() const { return merges_; }
  float score(int32_t token) const { return scores_[token]; }
  /// Tokens that may be written in text: control, unknown and user-defined ones.
  const std::vector<int32_t>& special_tokens() const { return special_tokens_; }

  VocabSource source() const { return source_; }
  TokenText text() const { return text_; }
  TokenModel model() const { return model_; }
  bool fuse_unk() const { return fuse_unk_; }

  /// The token, neither control nor unused, that a piece is as a whole; -1: none. The piece as the
  /// pre-tokenizer leaves it: bytes for kByteLevel, text with U+2581 for kMetaspace. Needs IndexTexts().
  int32_t Find(std::string_view piece) const;
  void IndexTexts(std::span<const std::string_view> tokens);
  size_t longest_text() const { return longest_text_; }

  int32_t bos() const { return bos_; }  // -1: none
  int32_t eos() const { return eos_; }
  int32_t unk() const { return unk_; }

 private:
  Vocabulary() : merges_(0) {}
  Status ReadTypes(const TokenizerVocab& vocab, std::unordered_map<std::string_view, int32_t>* ids);
  Status ReadPieces(const TokenizerVocab& vocab);
  Status ReadByteTokens(const TokenizerVocab& vocab,
                        const std::unordered_map<std::string_view, int32_t>& ids);

  VocabSource source_ = VocabSource::kGguf;
  TokenText text_ = TokenText::kByteLevel;
  TokenModel model_ = TokenModel::kMerges;
  bool fuse_unk_ = false;
  std::string bytes_;             // all pieces, joined
  std::vector<uint64_t> offset_;  // [size + 1], of each piece in bytes_
  std::vector<TokenType> types_;
  std::vector<float> scores_;
  std::vector<uint8_t> ends_generation_;
  std::vector<int32_t> byte_tokens_;  // [256]
  std::vector<int32_t> special_tokens_;
  MergeTable merges_;
  // The texts of Find; behind a pointer, so that views into them stay when this object moves.
  std::unique_ptr<const std::string> texts_;
  std::unordered_map<std::string_view, int32_t> by_text_;
  size_t longest_text_ = 0;
  int32_t bos_ = -1, eos_ = -1, unk_ = -1;
};

}  // namespace blockgtq
