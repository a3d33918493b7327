// The tokens that can come next where an answer must be a JSON object.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/engine/json_machine.h"
#include "src/engine/sampler.h"
#include "src/text/tokenizer.h"

namespace blockgtq {

/// What is the same for every answer of a tokenizer.
class JsonVocabulary {
 public:
  /// tokenizer outlives this.
  explicit JsonVocabulary(const Tokenizer& tokenizer);

 private:
  friend class JsonFilter;
  enum class Use : uint8_t {
    kNever,    // control tokens and those without bytes
    kPlain,    // can stand in a string wherever a character can
    kByBytes,  // may come where each of its bytes may
  };
  const Tokenizer& tokenizer_;
  std::vector<Use> uses_;  // [vocabulary]
};

/// One answer. Control tokens, those that end a turn among them, are never allowed: the answer ends with the
/// object.
class JsonFilter : public TokenFilter {
 public:
  explicit JsonFilter(std::shared_ptr<const JsonVocabulary> vocabulary)
      : vocabulary_(std::move(vocabulary)) {}

  bool Allows(Token token) const override;
  /// The answer goes on with an allowed token.
  void Take(Token token);
  /// The object is closed.
  bool done() const { return machine_.done(); }

 private:
  std::shared_ptr<const JsonVocabulary> vocabulary_;
  JsonMachine machine_;
};

}  // namespace blockgtq
