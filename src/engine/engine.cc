// The embedding API over contexts and generation: see include/blockgtq/engine.h.
#include "blockgtq/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "src/cache/session.h"
#include "src/engine/bundled_text.h"
#include "src/engine/context.h"
#include "src/engine/generator.h"
#include "src/engine/plan_source.h"

namespace blockgtq {
namespace {

struct Conversation {
  SequenceId sequence = 0;
  std::vector<Token> tokens;  // all of the text so far; the last one may not be in the cache yet
};

SamplerOptions SamplerOf(const GenerationConfig& config) {
  SamplerOptions options;
  options.temperature = config.temperature;
  options.top_k = config.top_k;
  options.top_p = config.top_p;
  options.min_p = config.min_p;
  options.repeat_penalty = config.repeat_penalty;
  options.seed = config.seed;
  return options;
}

}  // namespace

struct Engine::Impl {
  std::unique_ptr<LoadedModel> model;
  std::optional<Plan> plan;
  std::unique_ptr<Context> context;
  std::map<ConversationId, Conversation> conversations;
  ConversationId next_id = 1;

  Result<Conversation*> Find(ConversationId id) {
    const auto found = conversations.find(id);
    if (found == conversations.end()) {
      return Status(ErrorCode::kNotFound, fmt::format("conversation {} is not open", id));
    }
    return &found->second;
  }

  /// Appends `added` to the conversation's text and continues it. On failure the conversation is as it was.
  Result<Generation> Continue(Conversation& c, std::span<const Token> added, const GenerationConfig& config,
                              const std::function<void(std::string_view)>& on_piece) {
    if (config.max_new_tokens < 1) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("max_new_tokens {}: must be at least 1", config.max_new_tokens));
    }
    Utf8Stream stream;
    Generation generation;
    const auto emit = [&](const std::string& text) {
      if (on_piece && !text.empty()) on_piece(text);
      generation.text += text;
    };
    GenerateOptions options;
    options.max_new_tokens = config.max_new_tokens;
    options.sampler = SamplerOf(config);
    options.on_piece = [&](std::string_view piece) { emit(stream.Push(piece)); };
    // The last token that was drawn is not in the cache yet: it comes first.
    const int64_t stored = context->cache().state(c.sequence).length;
    std::vector<Token> prompt(c.tokens.begin() + stored, c.tokens.end());
    prompt.insert(prompt.end(), added.begin(), added.end());
    std::vector<Token> history(c.tokens.begin(), c.tokens.begin() + stored);
    KvCache& cache = context->cache();
    // Layers with a window forget what a longer sequence does not see: then a copy is what it goes back to.
    std::optional<SequenceId> before;
    if (cache.has_windows()) {
      BGTQ_ASSIGN_OR_RETURN(before, cache.ForkSequence(c.sequence, stored));
    }
    Result<GenerateResult> result = Generate(*context, c.sequence, history, prompt, options);
    if (!result.ok() && before.has_value()) std::swap(c.sequence, *before);
    if (before.has_value()) {
      cache.RemoveSequence(*before);
    } else if (!result.ok()) {
      BGTQ_RETURN_IF_ERROR(cache.Truncate(c.sequence, stored));
    }
    if (!result.ok()) return result.status();
    c.tokens = std::move(history);
    emit(stream.Finish());
    generation.prompt_tokens = result->prompt_tokens;
    generation.new_tokens = static_cast<int64_t>(result->tokens.size());
    generation.prompt_ms = result->prompt_ms;
    generation.decode_ms = result->decode_ms;
    generation.ended = result->reason == StopReason::kEnd;
    return generation;
  }
};

Engine::Engine() : impl_(std::make_unique<Impl>()) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Open(const EngineConfig& config) {
  auto engine = std::unique_ptr<Engine>(new Engine());
  Impl& m = *engine->impl_;
  if (config.context_tokens < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("context_tokens {}: must be >= 0", config.context_tokens));
  }
  BGTQ_ASSIGN_OR_RETURN(m.model, LoadedModel::Open(config.model_path, {config.device, config.threads}));
  CacheChoice choice;
  choice.recipe = config.recipe;
  choice.k_bits = config.k_bits;
  choice.v_bits = config.v_bits;
  choice.plan_file = config.plan_path;
  choice.sinks = config.sinks;
  choice.recent = config.recent;
  const auto log = [&](const std::string& line) {
    if (config.log) config.log(line);
  };
  const Result<const Recipe*> recipe = FindRecipe(choice.recipe);
  if (choice.plan_file.empty() && recipe.ok() && (*recipe)->kind == CacheKind::kSimulated) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("recipe {} is simulated, for comparisons on the command line: name a packed or an "
                    "uncompressed one",
                    choice.recipe));
  }
  BGTQ_ASSIGN_OR_RETURN(m.plan, ObtainPlan(*m.model, choice, BundledCalibrationText(), log, {}));
  if (m.plan.has_value()) choice.recipe = m.plan->recipe;
  int64_t tokens = config.context_tokens > 0 ? config.context_tokens : m.model->config().context_length;
  if (m.model->config().window > 0)
    tokens += choice.recent + 2 * kPageTokens;  // the copy that Continue makes
  BGTQ_ASSIGN_OR_RETURN(const CacheOptions cache, CacheOptionsFor(choice, tokens));
  BGTQ_ASSIGN_OR_RETURN(m.context, Context::Create(*m.model, cache, m.plan.has_value() ? &*m.plan : nullptr));
  return engine;
}

Result<ConversationId> Engine::NewConversation() {
  Conversation conversation;
  BGTQ_ASSIGN_OR_RETURN(conversation.sequence, impl_->context->cache().AddSequence());
  const ConversationId id = impl_->next_id++;
  impl_->conversations.emplace(id, std::move(conversation));
  return id;
}

Status Engine::EndConversation(ConversationId conversation) {
  BGTQ_ASSIGN_OR_RETURN(const Conversation* c, impl_->Find(conversation));
  impl_->context->cache().RemoveSequence(c->sequence);
  impl_->conversations.erase(conversation);
  return Status::Ok();
}

Result<Generation> Engine::Complete(ConversationId conversation, std::string_view text,
                                    const GenerationConfig& config,
                                    const std::function<void(std::string_view)>& on_piece) {
  BGTQ_ASSIGN_OR_RETURN(Conversation * c, impl_->Find(conversation));
  if (text.empty())
    return Status(ErrorCode::kInvalidArgument, "the text is empty: there is nothing to continue");
  std::vector<Token> added = c->tokens.empty() ? impl_->model->PromptStart(nullptr) : std::vector<Token>();
  const std::vector<Token> ids = impl_->model->tokenizer().Encode(text, false);
  added.insert(added.end(), ids.begin(), ids.end());
  return impl_->Continue(*c, added, config, on_piece);
}

Result<Generation> Engine::Chat(ConversationId conversation, std::string_view message,
                                const GenerationConfig& config,
                                const std::function<void(std::string_view)>& on_piece) {
  BGTQ_ASSIGN_OR_RETURN(Conversation * c, impl_->Find(conversation));
  BGTQ_ASSIGN_OR_RETURN(const RecognizedTemplate chat, impl_->model->chat_template());
  std::vector<Token> added;
  std::string rendered;
  if (c->tokens.empty()) {
    std::vector<ChatMessage> messages;
    if (!config.system.empty()) messages.push_back({"system", config.system});
    messages.push_back({"user", std::string(message)});
    BGTQ_ASSIGN_OR_RETURN(rendered, RenderChat(chat, messages));
    added = impl_->model->PromptStart(&chat);
  } else {
    BGTQ_ASSIGN_OR_RETURN(rendered, RenderNextTurn(chat, message));
  }
  const std::vector<Token> ids = impl_->model->tokenizer().Encode(rendered, true);
  added.insert(added.end(), ids.begin(), ids.end());
  return impl_->Continue(*c, added, config, on_piece);
}

Result<CacheUse> Engine::Use(ConversationId conversation) const {
  BGTQ_ASSIGN_OR_RETURN(const Conversation* c, impl_->Find(conversation));
  const KvCache& cache = impl_->context->cache();
  const int64_t length = cache.state(c->sequence).length;
  return CacheUse{length, cache.SequenceBytes(c->sequence), cache.HalfBytes(length)};
}

Status Engine::Save(ConversationId conversation, const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(Conversation * c, impl_->Find(conversation));
  BGTQ_RETURN_IF_ERROR(StorePending(*impl_->context, c->sequence, c->tokens));
  return SaveSession(impl_->context->cache(), c->sequence, c->tokens, path);
}

Result<ConversationId> Engine::Load(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(LoadedSession loaded, LoadSession(impl_->context->cache(), path));
  const ConversationId id = impl_->next_id++;
  impl_->conversations.emplace(id, Conversation{loaded.sequence, std::move(loaded.tokens)});
  return id;
}

}  // namespace blockgtq
