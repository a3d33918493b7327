// Tokenizer::FromGguf: the metadata of a GGUF file.
#include <fmt/format.h>

#include "src/text/tokenizer.h"
#include "src/text/vocabulary.h"

namespace blockgtq {
namespace {

Result<std::optional<int64_t>> OptionalInt(const GgufFile& file, std::string_view key) {
  if (file.FindValue(key) == nullptr) return std::optional<int64_t>();
  BGTQ_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
  return std::optional<int64_t>(value);
}

// tokenizer.ggml.model "llama".
Status ReadSentencePiece(const GgufFile& file, TokenizerVocab* vocab) {
  vocab->text = TokenText::kMetaspace;
  vocab->model = TokenModel::kScores;
  BGTQ_ASSIGN_OR_RETURN(vocab->scores, file.GetFloats("tokenizer.ggml.scores"));
  BGTQ_ASSIGN_OR_RETURN(vocab->add_space_prefix, file.GetBoolOr("tokenizer.ggml.add_space_prefix", true));
  BGTQ_ASSIGN_OR_RETURN(vocab->unk, OptionalInt(file, "tokenizer.ggml.unknown_token_id"));
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  BGTQ_ASSIGN_OR_RETURN(const std::string_view model, file.GetString("tokenizer.ggml.model"));
  if (model != "gpt2" && model != "llama") {  // before anything is missed that other models have not
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: tokenizer.ggml.model \"{}\" is not supported; known: gpt2 (byte-level BPE), llama "
                    "(SentencePiece BPE)",
                    file.name(), model));
  }
  TokenizerVocab vocab;
  BGTQ_ASSIGN_OR_RETURN(vocab.tokens, file.GetStrings("tokenizer.ggml.tokens"));
  if (model == "gpt2") {
    BGTQ_ASSIGN_OR_RETURN(vocab.pre, file.GetStringOr("tokenizer.ggml.pre", ""));
    BGTQ_ASSIGN_OR_RETURN(vocab.merges, file.GetStrings("tokenizer.ggml.merges"));
  } else {
    BGTQ_RETURN_IF_ERROR(ReadSentencePiece(file, &vocab));
  }
  if (file.FindValue("tokenizer.ggml.token_type") != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(vocab.types, file.GetInts("tokenizer.ggml.token_type"));
  }
  BGTQ_ASSIGN_OR_RETURN(vocab.bos, OptionalInt(file, "tokenizer.ggml.bos_token_id"));
  BGTQ_ASSIGN_OR_RETURN(vocab.eos, OptionalInt(file, "tokenizer.ggml.eos_token_id"));
  BGTQ_ASSIGN_OR_RETURN(vocab.eot, OptionalInt(file, "tokenizer.ggml.eot_token_id"));
  BGTQ_ASSIGN_OR_RETURN(vocab.eom, OptionalInt(file, "tokenizer.ggml.eom_token_id"));
  if (file.FindValue("tokenizer.ggml.add_bos_token") != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(const bool add_bos, file.GetBoolOr("tokenizer.ggml.add_bos_token", false));
    vocab.add_bos = add_bos;
  }
  auto result = FromVocab(vocab);
  if (!result.ok()) return result.status().WithContext(file.name());
  return result;
}

}  // namespace blockgtq
