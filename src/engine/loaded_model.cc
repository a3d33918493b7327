// See loaded_model.h.
#include "src/engine/loaded_model.h"

#include <fmt/format.h>

#include "src/engine/backends.h"

namespace blockgtq {
namespace {

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const ModelSource& source) {
  if (source.gguf() != nullptr) return Tokenizer::FromGguf(*source.gguf());
  return Status(ErrorCode::kUnsupported,
                source.name() +
                    ": tokenizers of safetensors models are not supported by this build; give "
                    "token ids");
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::Open(const std::string& path, const BackendOptions& backend,
                                                       TokenizerUse use) {
  auto loaded = std::make_unique<LoadedModel>();
  loaded->path_ = path;
  BGTQ_ASSIGN_OR_RETURN(loaded->source_, OpenModelSource(path));
  BGTQ_ASSIGN_OR_RETURN(loaded->backend_, CreateBackend(backend));
  BGTQ_ASSIGN_OR_RETURN(loaded->model_, LoadModel(*loaded->source_, *loaded->backend_));
  Result<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(*loaded->source_);
  const bool lacks = tokenizer.status().code() == ErrorCode::kUnsupported ||
                     tokenizer.status().code() == ErrorCode::kNotFound;
  if (!tokenizer.ok() && !(lacks && use == TokenizerUse::kIfThere)) return tokenizer.status();
  if (tokenizer.ok()) loaded->tokenizer_ = std::move(tokenizer).value();
  if (loaded->has_tokenizer() && loaded->tokenizer_->vocab_size() > loaded->config().vocabulary) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: the tokenizer has {} tokens, the embedding table {}", path,
                              loaded->tokenizer_->vocab_size(), loaded->config().vocabulary));
  }
  loaded->fingerprint_ = FingerprintOf(loaded->config(), *loaded->source_);
  return loaded;
}

Result<RecognizedTemplate> LoadedModel::chat_template() const {
  const GgufFile* file = source_->gguf();
  if (file == nullptr || file->FindValue("tokenizer.chat_template") == nullptr) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: has no chat template; pass --no-chat to continue the text as it is", path_));
  }
  BGTQ_ASSIGN_OR_RETURN(const std::string_view jinja, file->GetString("tokenizer.chat_template"));
  return RecognizeTemplate(jinja);
}

}  // namespace blockgtq
