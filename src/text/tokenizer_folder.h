// The tokenizer of a model's folder: tokenizer.json, tokenizer_config.json, generation_config.json,
// chat_template.jinja, and what config.json says of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "blockgtq/status.h"
#include "src/text/tokenizer.h"
#include "src/text/tokenizer_parts.h"

namespace blockgtq {

struct FolderTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<std::string> chat_template;  // Jinja; none when no file has one
};

/// The files' contents; empty: there is no such file.
struct TokenizerTexts {
  std::string_view tokenizer;  // tokenizer.json
  std::string_view
      tokenizer_config;  // tokenizer_config.json: bos_token, eos_token, add_bos_token, tokenizer_class,
                         // added_tokens_decoder (which wins over tokenizer.json), chat_template
  std::string_view generation_config;  // generation_config.json: eos_token_id, more tokens that end a turn
  std::string_view chat_template;  // chat_template.jinja, which wins over chat_template of the configuration
  std::string_view model_config;   // config.json: eos_token_id, where generation_config.json has none
};

/// The same before it becomes a Tokenizer.
struct FolderTokenizerParts {
  TokenizerParts parts;
  std::optional<std::string> chat_template;
};
Result<FolderTokenizerParts> TokenizerPartsFromTexts(const TokenizerTexts& texts);

/// Whether BOS is added: for the classes of Llama and Gemma add_bos_token says so (as transformers has it,
/// true when absent), for others the post-processor. Errors: as ParseTokenizerJson; kUnsupported for
/// add_eos_token.
Result<FolderTokenizer> TokenizerFromTexts(const TokenizerTexts& texts);

/// Errors: also kNotFound when the folder has no tokenizer.json, kIo.
Result<FolderTokenizer> LoadTokenizerFolder(const std::string& folder);
Result<FolderTokenizerParts> LoadTokenizerParts(const std::string& folder);

}  // namespace blockgtq
