// tokenizer.json of Hugging Face's tokenizers: BPE models with the steps that the supported families use.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/text/tokenizer_parts.h"

namespace blockgtq {

/// Model BPE (byte-level, or characters with byte fallback), with
///   normalizers      Sequence, NFC, Replace (of a string), Prepend
///   pre-tokenizers   Sequence, Split (patterns: src/text/split_pattern.h), Digits, ByteLevel, Metaspace
///   decoders         ByteLevel; Sequence of Replace, ByteFallback, Fuse, Strip; Metaspace
///   post-processors  Sequence, ByteLevel, TemplateProcessing with tokens before the text
/// and added tokens. `truncation` and `padding` are not used: they concern batches. bos and eos stay unset:
/// they are no part of the file. Errors: kUnsupported naming what is not known; kCorruptFile for what
/// contradicts itself.
Result<TokenizerParts> ParseTokenizerJson(std::string_view text);

/// Puts tokens of the form that tokenizer.json and tokenizer_config.json share into parts->added, replacing
/// those of the same id, and their texts into parts->tokens. tokens: how many there are with all that are
/// added, which bounds the ids. where: for messages.
Status AddToken(const nlohmann::json& entry, int64_t id, size_t tokens, const std::string& where,
                TokenizerParts* parts);

/// The sections of the file but for the model (tokenizer_json_steps.cc); each may be null.
Status ParseNormalizer(const nlohmann::json& section, std::vector<NormalizerStep>* steps);
/// byte_level: set when the last step is ByteLevel.
Status ParsePreTokenizer(const nlohmann::json& section, std::vector<PreTokenizerStep>* steps,
                         bool* byte_level);
/// Needs parts->text and byte_fallback; sets what Decode does.
Status ParseDecoder(const nlohmann::json& section, TokenizerParts* parts);
/// Sets parts->prompt_prefix.
Status ParsePostProcessor(const nlohmann::json& section, TokenizerParts* parts);

}  // namespace blockgtq
