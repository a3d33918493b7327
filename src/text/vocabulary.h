// A tokenizer's vocabulary as read from a file, and the same checked and indexed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

/// What GGUF metadata says of a byte-level BPE tokenizer; views are only read during construction.
struct TokenizerVocab {
  std::span<const std::string_view> tokens;  // index: token id
  std::span<const int64_t> types;            // TokenType of each; empty: all normal
  std::span<const std::string_view> merges;  // "left right", lowest rank first
  std::string_view pre;                      // name of the pre-tokenizer
  std::optional<int64_t> bos, eos, eot, eom;
  std::optional<bool> add_bos;
};

/// Bounds the work of looking for special tokens in text.
inline constexpr size_t kMaxSpecialTokenBytes = 1024;

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
  std::span<const int32_t, 256> byte_tokens() const { return std::span<const int32_t, 256>(byte_tokens_); }
  const MergeTable& merges() const { return merges_; }
  /// Tokens that may be written in text: control, unknown and user-defined ones.
  const std::vector<int32_t>& special_tokens() const { return special_tokens_; }

  int32_t bos() const { return bos_; }  // -1: none
  int32_t eos() const { return eos_; }

 private:
  Vocabulary() : merges_(0) {}

  std::string bytes_;             // all pieces, joined
  std::vector<uint64_t> offset_;  // [size + 1], of each piece in bytes_
  std::vector<TokenType> types_;
  std::vector<uint8_t> ends_generation_;
  std::vector<int32_t> byte_tokens_;  // [256], -1: the byte has no token
  std::vector<int32_t> special_tokens_;
  MergeTable merges_;
  int32_t bos_ = -1, eos_ = -1;
};

}  // namespace blockgtq
