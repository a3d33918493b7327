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
  std::vector<ChatMessage> messages;
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

  /// Makes the conversation's text `wanted`, reusing what the cache shares with it, and continues from there.
  Result<Generation> Continue(Conversation& c, const std::vector<Token>& wanted,
                              const GenerationConfig& config,
                              const std::function<void(std::string_view)>& on_piece) {
    const int64_t stored = context->cache().state(c.sequence).length;
    const size_t limit = std::min({static_cast<size_t>(stored), c.tokens.size(), wanted.size()});
    size_t shared = 0;
    while (shared < limit && c.tokens[shared] == wanted[shared]) ++shared;
    if (shared == wanted.size() && shared > 0) --shared;  // the last token runs again: its logits are needed
    BGTQ_RETURN_IF_ERROR(context->cache().Truncate(c.sequence, static_cast<int64_t>(shared)));
    c.tokens.assign(wanted.begin(), wanted.begin() + static_cast<int64_t>(shared));

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
    const std::span<const Token> prompt = std::span<const Token>(wanted).subspan(shared);
    BGTQ_ASSIGN_OR_RETURN(const GenerateResult result,
                          Generate(*context, c.sequence, c.tokens, prompt, options));
    emit(stream.Finish());
    generation.prompt_tokens = result.prompt_tokens;
    generation.new_tokens = static_cast<int64_t>(result.tokens.size());
    generation.prompt_ms = result.prompt_ms;
    generation.decode_ms = result.decode_ms;
    generation.ended = result.reason == StopReason::kEnd;
    return generation;
  }

  std::vector<Token> Beginning() const {
    const Tokenizer& tokenizer = model->tokenizer();
    if (tokenizer.add_bos() && tokenizer.bos() >= 0) return {tokenizer.bos()};
    return {};
  }
};

Engine::Engine() : impl_(std::make_unique<Impl>()) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::Open(const EngineConfig& config) {
  auto engine = std::unique_ptr<Engine>(new Engine());
  Impl& m = *engine->impl_;
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
  BGTQ_ASSIGN_OR_RETURN(m.plan, ObtainPlan(*m.model, choice, BundledCalibrationText(), log, {}));
  if (m.plan.has_value()) choice.recipe = m.plan->recipe;
  const int64_t tokens = config.context_tokens > 0 ? config.context_tokens : m.model->config().context_length;
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
  std::vector<Token> wanted = c->tokens.empty() ? impl_->Beginning() : c->tokens;
  const std::vector<Token> added = impl_->model->tokenizer().Encode(text, false);
  wanted.insert(wanted.end(), added.begin(), added.end());
  return impl_->Continue(*c, wanted, config, on_piece);
}

Result<Generation> Engine::Chat(ConversationId conversation, std::string_view message,
                                const GenerationConfig& config,
                                const std::function<void(std::string_view)>& on_piece) {
  BGTQ_ASSIGN_OR_RETURN(Conversation * c, impl_->Find(conversation));
  BGTQ_ASSIGN_OR_RETURN(const RecognizedTemplate chat, impl_->model->chat_template());
  std::vector<ChatMessage> messages = c->messages;
  if (messages.empty() && !config.system.empty()) messages.push_back({"system", config.system});
  messages.push_back({"user", std::string(message)});
  BGTQ_ASSIGN_OR_RETURN(const std::string rendered, RenderChat(chat, messages));
  std::vector<Token> wanted = impl_->Beginning();
  const std::vector<Token> ids = impl_->model->tokenizer().Encode(rendered, true);
  wanted.insert(wanted.end(), ids.begin(), ids.end());
  BGTQ_ASSIGN_OR_RETURN(Generation generation, impl_->Continue(*c, wanted, config, on_piece));
  messages.push_back({"assistant", generation.text});
  c->messages = std::move(messages);
  return generation;
}

Result<CacheUse> Engine::Use(ConversationId conversation) const {
  BGTQ_ASSIGN_OR_RETURN(const Conversation* c, impl_->Find(conversation));
  const KvCache& cache = impl_->context->cache();
  const int64_t length = cache.state(c->sequence).length;
  return CacheUse{length, cache.SequenceBytes(c->sequence), cache.HalfBytes(length)};
}

Status Engine::Save(ConversationId conversation, const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const Conversation* c, impl_->Find(conversation));
  BGTQ_RETURN_IF_ERROR(StorePending(*impl_->context, c->sequence, c->tokens));
  return SaveSession(impl_->context->cache(), c->sequence, c->tokens, path);
}

Result<ConversationId> Engine::Load(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(LoadedSession loaded, LoadSession(impl_->context->cache(), path));
  const ConversationId id = impl_->next_id++;
  impl_->conversations.emplace(id, Conversation{loaded.sequence, std::move(loaded.tokens), {}});
  return id;
}

}  // namespace blockgtq
