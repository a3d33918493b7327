// A tokenizer of tokenizer.json as the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/formats/gguf_writer.h"
#include "src/text/tokenizer_parts.h"

namespace blockgtq {

struct GgufTokenizer {
  GgufMetadata metadata;
  /// One line each: what GGUF files have no words for, so that readers of the file do otherwise.
  std::vector<std::string> differences;
};

/// tokens: of the embedding table; those that the tokenizer lacks become unused ones, as readers want a token
/// a row. preferred_pre: the name for tokenizer.ggml.pre where several mean the same. Byte-level BPE alone:
/// GGUF's SentencePiece vocabulary needs scores, which tokenizer.json does not have. Errors: kUnsupported
/// naming what no GGUF file can say; kCorruptFile for parts that contradict each other.
Result<GgufTokenizer> TokenizerToGguf(const TokenizerParts& parts,
                                      const std::optional<std::string>& chat_template, int64_t tokens,
                                      std::string_view preferred_pre);

}  // namespace blockgtq
