// Tokenizers: byte-level BPE, BPE of characters with bytes to fall back on, and SentencePiece's BPE.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/formats/gguf.h"

namespace blockgtq {

using Token = int32_t;
struct TokenizerVocab;
struct TokenizerParts;

class Tokenizer {
 public:
  /// Models: tokenizer.ggml.model "gpt2" with a known tokenizer.ggml.pre (a table; one line a pre-tokenizer),
  /// and "llama" (SentencePiece). Errors: kUnsupported naming the model or pre and the known ones;
  /// kCorruptFile for a vocabulary that contradicts itself.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  /// The same from the parts (src/text/vocabulary.h), without a file.
  static Result<std::unique_ptr<Tokenizer>> FromVocab(const TokenizerVocab& vocab);
  /// From what tokenizer.json says (src/text/tokenizer_parts.h).
  static Result<std::unique_ptr<Tokenizer>> FromParts(TokenizerParts parts);
  ~Tokenizer();

  /// UTF-8, or any bytes: a run of invalid ones is a piece of its own, so Decode gives them back. Special
  /// tokens written in the text become their id only when parse_special; user-defined ones (`<tool_call>`)
  /// always. Text is normalised as tokenizer.json says (NFC, say), with GGUF files not at all. Never adds BOS
  /// or EOS. Bytes without a token in the vocabulary are dropped. Safe from several threads.
  std::vector<Token> Encode(std::string_view text, bool parse_special) const;
  /// The bytes of one token (special tokens: their text). Empty for unused tokens and ids out of range.
  std::string_view Piece(Token token) const;
  /// The pieces joined, without the space that Encode puts before a text (SentencePiece). Bytes that are no
  /// UTF-8 stay as they are.
  std::string Decode(std::span<const Token> tokens) const;

  int vocab_size() const;
  Token bos() const;  // -1 when the model has none
  Token eos() const;
  /// Whether a prompt starts with bos(): the file's word, else the pre-tokenizer's habit.
  bool add_bos() const;
  /// What a prompt that no chat template rendered starts with: nothing, bos(), or several tokens (GLM-4).
  std::span<const Token> prompt_prefix() const;
  /// True for every token that ends a turn (eos, eot, eom and their kin).
  bool IsEndOfGeneration(Token token) const;
  bool IsControl(Token token) const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Joins pieces to whole UTF-8: bytes of an unfinished character wait for the next piece.
class Utf8Stream {
 public:
  /// What can be shown now; incomplete trailing bytes are kept back. Each maximal part of invalid bytes
  /// becomes one U+FFFD (Unicode 3.9), however the bytes are cut into pieces.
  std::string Push(std::string_view piece);
  /// The rest (an incomplete character as U+FFFD).
  std::string Finish();

 private:
  std::string pending_;
};

}  // namespace blockgtq
