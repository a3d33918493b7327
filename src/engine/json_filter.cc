// See json_filter.h.
#include "src/engine/json_filter.h"

#include <algorithm>

#include "src/text/utf8.h"

namespace blockgtq {
namespace {

/// Whole characters, none of which a string must escape.
bool IsPlain(std::string_view piece) {
  return ValidUtf8Prefix(piece) == piece.size() && std::ranges::none_of(piece, [](char c) {
           return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
         });
}

}  // namespace

JsonVocabulary::JsonVocabulary(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  uses_.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (Token token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string_view piece = tokenizer.Piece(token);
    const bool never = piece.empty() || tokenizer.IsControl(token) || tokenizer.IsEndOfGeneration(token);
    uses_.push_back(never ? Use::kNever : IsPlain(piece) ? Use::kPlain : Use::kByBytes);
  }
}

bool JsonFilter::Allows(Token token) const {
  if (token < 0 || static_cast<size_t>(token) >= vocabulary_->uses_.size()) return false;
  const JsonVocabulary::Use use = vocabulary_->uses_[static_cast<size_t>(token)];
  if (use == JsonVocabulary::Use::kNever) return false;
  if (use == JsonVocabulary::Use::kPlain && machine_.in_string()) return true;
  JsonMachine machine = machine_;
  return machine.Push(vocabulary_->tokenizer_.Piece(token));
}

void JsonFilter::Take(Token token) { machine_.Push(vocabulary_->tokenizer_.Piece(token)); }

}  // namespace blockgtq
