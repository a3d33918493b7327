// What tokenizer.json says, read and checked part by part: the input of Tokenizer::FromParts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/text/added_tokens.h"
#include "src/text/normalizer.h"
#include "src/text/pre_tokenizer.h"
#include "src/text/vocabulary.h"

namespace blockgtq {

struct TokenizerParts {
  std::vector<std::string> tokens;  // index: token id; "": no such token
  std::vector<int64_t> types;       // TokenType of each
  std::vector<std::pair<std::string, std::string>> merges;
  TokenText text = TokenText::kByteLevel;
  bool byte_fallback = false, fuse_unk = false;
  bool whole_piece_first = false;  // ignore_merges
  int32_t unk = -1;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  int strip_spaces = 0;            // Decode takes up to so many spaces from the start of the text
  bool no_space_in_first = false;  // Decode takes all spaces out of the first token
  std::vector<int32_t> prompt_prefix;
  int32_t bos = -1, eos = -1;
  std::vector<int32_t> end_of_generation;  // beside eos and the tokens known by their names
};

}  // namespace blockgtq
