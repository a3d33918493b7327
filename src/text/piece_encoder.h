// From a piece of text to tokens, by the model of the vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "src/text/vocabulary.h"

namespace blockgtq {

/// Holds scratch memory: one a thread. The vocabulary must outlive it.
class PieceEncoder {
 public:
  virtual ~PieceEncoder() = default;
  /// Appends the tokens of `piece`; bytes that have no token are dropped.
  virtual void Append(std::string_view piece, std::vector<int32_t>* out) = 0;
};

/// kScores and kMetaspace need vocabulary.IndexTexts().
std::unique_ptr<PieceEncoder> MakePieceEncoder(const Vocabulary& vocabulary);

/// SentencePiece's BPE as llama.cpp has it (spm_encoder.cc).
std::unique_ptr<PieceEncoder> MakeSpmEncoder(const Vocabulary& vocabulary);

}  // namespace blockgtq
