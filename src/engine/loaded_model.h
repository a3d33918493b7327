// A model opened from disk with everything needed to run it: file, tokenizer, backend, weights.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/backend/backend.h"
#include "src/formats/model_source.h"
#include "src/models/model.h"
#include "src/text/chat_template.h"
#include "src/text/tokenizer.h"

namespace blockgtq {

/// Whether a model without a tokenizer that this build reads will do.
enum class TokenizerUse {
  kNeeded,
  kIfThere,  // for work on token ids; has_tokenizer() says whether tokenizer() may be called
};

class LoadedModel {
 public:
  /// rope_context: see ModelSource::SetRopeContext. Errors: those of OpenModelSource, CreateBackend,
  /// LoadModel, Tokenizer::FromGguf and LoadTokenizerFolder.
  static Result<std::unique_ptr<LoadedModel>> Open(const std::string& path, const BackendOptions& backend,
                                                   TokenizerUse use = TokenizerUse::kNeeded,
                                                   int64_t rope_context = 0);

  const std::string& path() const { return path_; }
  const ModelSource& source() const { return *source_; }
  const ModelConfig& config() const { return model_->config(); }
  const ModelFingerprint& fingerprint() const { return fingerprint_; }
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  Tokenizer& tokenizer() const { return *tokenizer_; }
  Backend& backend() const { return *backend_; }
  Model& model() const { return *model_; }

  /// The model's chat template. Errors: kUnsupported when it has none or an unknown one; the message names
  /// --no-chat.
  Result<RecognizedTemplate> chat_template() const;
  /// The tokens before a prompt: before one that `chat` rendered, BOS or nothing; before plain text (null),
  /// what the tokenizer puts there. Needs a tokenizer.
  std::vector<Token> PromptStart(const RecognizedTemplate* chat) const;

 private:
  std::string path_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<std::string> chat_template_;  // Jinja
  std::unique_ptr<Model> model_;
  ModelFingerprint fingerprint_;
};

}  // namespace blockgtq
