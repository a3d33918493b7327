// See loaded_model.h.
#include "src/engine/loaded_model.h"

#include <fmt/format.h>

#include "src/engine/backends.h"
#include "src/text/tokenizer_folder.h"

namespace blockgtq {
namespace {

Result<FolderTokenizer> OpenTokenizer(const ModelSource& source) {
  if (source.gguf() == nullptr) return LoadTokenizerFolder(source.folder());
  FolderTokenizer result;
  BGTQ_ASSIGN_OR_RETURN(result.tokenizer, Tokenizer::FromGguf(*source.gguf()));
  if (source.gguf()->FindValue("tokenizer.chat_template") != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(const std::string_view jinja, source.gguf()->GetString("tokenizer.chat_template"));
    result.chat_template = std::string(jinja);
  }
  return result;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::Open(const std::string& path, const BackendOptions& backend,
                                                       TokenizerUse use, int64_t rope_context) {
  auto loaded = std::make_unique<LoadedModel>();
  loaded->path_ = path;
  BGTQ_ASSIGN_OR_RETURN(loaded->source_, OpenModelSource(path));
  loaded->source_->SetRopeContext(rope_context);
  BGTQ_ASSIGN_OR_RETURN(loaded->backend_, CreateBackend(backend));
  BGTQ_ASSIGN_OR_RETURN(loaded->model_, LoadModel(*loaded->source_, *loaded->backend_));
  Result<FolderTokenizer> tokenizer = OpenTokenizer(*loaded->source_);
  const bool lacks = tokenizer.status().code() == ErrorCode::kUnsupported ||
                     tokenizer.status().code() == ErrorCode::kNotFound;
  if (!tokenizer.ok() && !(lacks && use == TokenizerUse::kIfThere)) return tokenizer.status();
  if (tokenizer.ok()) {
    loaded->tokenizer_ = std::move(tokenizer->tokenizer);
    loaded->chat_template_ = std::move(tokenizer->chat_template);
  }
  if (loaded->has_tokenizer() && loaded->tokenizer_->vocab_size() > loaded->config().vocabulary) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: the tokenizer has {} tokens, the embedding table {}", path,
                              loaded->tokenizer_->vocab_size(), loaded->config().vocabulary));
  }
  loaded->fingerprint_ = FingerprintOf(loaded->config(), *loaded->source_);
  return loaded;
}

Result<RecognizedTemplate> LoadedModel::chat_template() const {
  if (!chat_template_.has_value()) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: has no chat template; pass --no-chat to continue the text as it is", path_));
  }
  return RecognizeTemplate(*chat_template_, tokenizer_->Piece(tokenizer_->eos()));
}

std::vector<Token> LoadedModel::PromptStart(const RecognizedTemplate* chat) const {
  if (chat == nullptr) return {tokenizer_->prompt_prefix().begin(), tokenizer_->prompt_prefix().end()};
  const bool bos = (BeginsWithBos(*chat) || tokenizer_->add_bos()) && tokenizer_->bos() >= 0;
  return bos ? std::vector<Token>{tokenizer_->bos()} : std::vector<Token>();
}

}  // namespace blockgtq
