// Pre-tokenizers: the patterns that cut text into the pieces inside which BPE merges.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "blockgtq/status.h"

namespace blockgtq {

class PreTokenizer {
 public:
  /// name: tokenizer.ggml.pre. Errors: kUnsupported naming the known ones.
  static Result<std::unique_ptr<PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();

  /// A piece that is a token as a whole is that token, whatever the merges say (Llama 3).
  bool whole_piece_first() const;
  /// Whether BOS is added when the metadata does not say.
  bool adds_bos_by_default() const;

  /// Cuts one text. A matcher belongs to one thread; the PreTokenizer may be shared.
  class Matcher {
   public:
    explicit Matcher(const PreTokenizer& pre_tokenizer);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    /// Bytes of the piece at the start of text[offset..]; at least 1. `text` is valid UTF-8 and offset is
    /// inside it, on a character; what follows the piece is seen by lookahead, text before it is not.
    size_t NextPiece(std::string_view text, size_t offset);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  PreTokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockgtq
