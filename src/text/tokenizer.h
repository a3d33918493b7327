// Byte-level BPE tokenizers, read from GGUF metadata.
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

class Tokenizer {
 public:
  /// Models: tokenizer.ggml.model "gpt2"; pre: smollm, qwen2, llama-bpe, gpt-2 (a table; one line a
  /// pre-tokenizer). Errors: kUnsupported naming the model or pre and the known ones; kCorruptFile for a
  /// vocabulary that contradicts itself.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  ~Tokenizer();

  /// UTF-8 (or any bytes: invalid sequences are encoded byte by byte). Special tokens written in the text
  /// become their id only when parse_special. Never adds BOS or EOS. Bytes without a token in the vocabulary
  /// are dropped.
  std::vector<Token> Encode(std::string_view text, bool parse_special) const;
  /// The bytes of one token (special tokens: their text). Empty for an id out of range.
  std::string_view Piece(Token token) const;
  std::string Decode(std::span<const Token> tokens) const;

  int vocab_size() const;
  Token bos() const;  // -1 when the model has none
  Token eos() const;
  bool add_bos() const;
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
  /// What can be shown now; incomplete trailing bytes are kept back. Invalid bytes become U+FFFD.
  std::string Push(std::string_view piece);
  /// The rest (incomplete bytes as U+FFFD).
  std::string Finish();

 private:
  std::string pending_;
};

}  // namespace blockgtq
