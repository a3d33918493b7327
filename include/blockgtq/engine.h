// The embedding API: open a model with a packed KV cache, keep conversations in it, generate text.
//
//   blockgtq::EngineConfig config;
//   config.model_path = "model.gguf";
//   auto engine = blockgtq::Engine::Open(config);
//   if (!engine.ok()) return Fail(engine.status().message());
//   auto conversation = (*engine)->NewConversation();
//   auto answer = (*engine)->Chat(*conversation, "Why is the sky blue?", {}, print_piece);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "blockgtq/status.h"

namespace blockgtq {

struct EngineConfig {
  std::string model_path;          // a GGUF file, or a folder with safetensors and config.json
  std::string device;              // "cpu"; empty: the best that works here
  int threads = 0;                 // 0: one a core
  std::string recipe = "aligned";  // aligned, paper, uniform, fp16, fp32
  double k_bits = 3, v_bits = 3;   // code bits a dimension; ignored with plan_path and by fp16 / fp32
  std::string plan_path;           // empty: the plan beside the model, made (and saved there) when absent
  int sinks = 4, recent = 64;      // tokens kept in fp16: the first, and at least this many of the last
  int64_t context_tokens = 0;      // over all conversations; 0: the model's context length
  std::function<void(const std::string&)> log;  // lines for a person; may be empty
};

struct GenerationConfig {
  int64_t max_new_tokens = 128;
  float temperature = 0.8f;  // 0: greedy
  int top_k = 40;            // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  float repeat_penalty = 1.0f;
  uint64_t seed = 1;
  std::string system;  // system message; used by the Chat that begins a conversation, ignored later
};

struct Generation {
  std::string text;  // whole UTF-8
  int64_t prompt_tokens = 0, new_tokens = 0;
  double prompt_ms = 0, decode_ms = 0;
  bool ended = false;  // the model ended its turn (rather than reaching a limit)
};

struct CacheUse {
  int64_t tokens = 0;
  int64_t bytes = 0;       // of the packed cache: codes, norms, and the tokens kept in fp16
  int64_t bytes_fp16 = 0;  // what an fp16 cache would take for these tokens
};

using ConversationId = int;

/// Not thread-safe: one call at a time.
class Engine {
 public:
  /// Errors: kNotFound, kCorruptFile, kUnsupported, kInvalidArgument, kMismatch, kOutOfMemory, each saying
  /// what and where.
  static Result<std::unique_ptr<Engine>> Open(const EngineConfig& config);
  ~Engine();

  Result<ConversationId> NewConversation();
  /// Errors: kNotFound for an id that is not open; so in every call below.
  Status EndConversation(ConversationId conversation);

  /// Appends `text` as it is and continues it. on_piece (may be empty) receives whole UTF-8 as it comes.
  /// Errors: kInvalidArgument (empty text, parameters), kOutOfMemory (the cache is full).
  Result<Generation> Complete(ConversationId conversation, std::string_view text,
                              const GenerationConfig& config,
                              const std::function<void(std::string_view)>& on_piece);
  /// The same with the model's chat template around a user's message. Errors: also kUnsupported (unknown
  /// template).
  Result<Generation> Chat(ConversationId conversation, std::string_view message,
                          const GenerationConfig& config,
                          const std::function<void(std::string_view)>& on_piece);

  Result<CacheUse> Use(ConversationId conversation) const;

  /// A conversation on disk: packed bytes, tokens, the plan's fingerprint, a checksum.
  /// Errors: kIo; loading: kNotFound, kCorruptFile, kMismatch, kOutOfMemory.
  Status Save(ConversationId conversation, const std::string& path);
  Result<ConversationId> Load(const std::string& path);

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockgtq
