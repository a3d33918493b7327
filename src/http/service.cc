// See service.h.
#include "src/http/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <random>
#include <utility>

#include "src/http/json_request.h"
#include "src/http/page.h"
#include "src/http/responses.h"

namespace blockgtq::http {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBearer = "Bearer ";

/// One byte compared at a time, all of them, without a branch on what they hold.
bool SameBytes(std::string_view key, std::string_view given) {
  volatile unsigned char difference = key.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference = static_cast<unsigned char>(difference | (expected ^ given[i]));
  }
  return difference == 0;
}

/// BOS, where `wanted` or the tokenizer wants one, then the text's tokens.
std::vector<Token> EncodePrompt(const Tokenizer& tokenizer, const std::string& text, bool bos, bool special) {
  std::vector<Token> tokens;
  if ((bos || tokenizer.add_bos()) && tokenizer.bos() >= 0) tokens.push_back(tokenizer.bos());
  const std::vector<Token> ids = tokenizer.Encode(text, special);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  return tokens;
}

}  // namespace

bool IsKey(const std::vector<std::string>& keys, std::string_view given) {
  bool known = false;
  for (const std::string& key : keys) known |= SameBytes(key, given);
  return known;
}

Service::Service(boost::asio::io_context& io, const LoadedModel& model, serve::EngineThread& engine,
                 ServiceOptions options)
    : io_(io),
      model_(model),
      engine_(engine),
      options_(std::move(options)),
      workers_(1),
      files_(std::make_shared<boost::asio::thread_pool>(1)) {}

Service::~Service() {
  workers_.stop();
  files_->stop();
  workers_.join();
  files_->join();
}

const std::vector<Service::RouteInfo>& Service::Routes() {
  static const std::vector<RouteInfo> kRoutes = {
      {"GET", "/health", &Service::Health, true},
      {"GET", "/metrics", &Service::Metrics, false},
      {"GET", "/", &Service::Page, true},
      {"GET", "/page/", &Service::Page, true},
      {"GET", "/plan", &Service::PlanWidths, false},
      {"GET", "/props", &Service::Props, false},
      {"GET", "/slots", &Service::Slots, false},
      {"POST", "/slots/", &Service::SlotAction, false},
      {"GET", "/v1/models", &Service::Models, false},
      {"POST", "/v1/chat/completions", &Service::Chat, false},
      {"POST", "/v1/completions", &Service::Completions, false},
      {"POST", "/tokenize", &Service::Tokenize, false},
      {"POST", "/detokenize", &Service::Detokenize, false},
  };
  return kRoutes;
}

const Service::RouteInfo* Service::FindRoute(const HttpRequest& request, std::string* allowed) {
  for (const RouteInfo& route : Routes()) {
    const bool below =
        route.path.size() > 1 && route.path.back() == '/' && request.path.starts_with(route.path);
    if (!below && route.path != request.path) continue;
    if (route.method == request.method) return &route;
    *allowed += (allowed->empty() ? "" : ", ") + std::string(route.method);
  }
  return nullptr;
}

bool Service::Refuse(const HttpRequest& request, Response* response) {
  if (options_.hosts.has_value()) {
    const std::string why = options_.hosts->Refusal(request.host, request.origin);
    if (!why.empty()) {
      *response = ErrorResponse(403, why);
      return true;
    }
  }
  std::string allowed;
  const RouteInfo* route = FindRoute(request, &allowed);
  if ((route == nullptr || !route->open) && !options_.api_keys.empty()) {
    const std::string_view given = request.authorization;
    if (!given.starts_with(kBearer) || !IsKey(options_.api_keys, given.substr(kBearer.size()))) {
      *response = ErrorResponse(401, "a valid API key is needed: Authorization: Bearer KEY");
      return true;
    }
  }
  if (route != nullptr) return false;
  if (allowed.empty()) {
    *response = ErrorResponse(404, "there is nothing at this path");
  } else {
    *response = ErrorResponse(405, "this path takes " + allowed);
    response->headers.emplace_back("Allow", allowed);
  }
  return true;
}

void Service::Handle(HttpRequest request, std::shared_ptr<Reply> reply) {
  std::string allowed;
  if (const RouteInfo* route = FindRoute(request, &allowed)) (this->*route->handler)(request, reply);
}

void Service::Health(const HttpRequest&, const ReplyPtr& reply) {
  reply->Send(JsonResponse({{"status", "ok"}}));
}

void Service::Metrics(const HttpRequest&, const ReplyPtr& reply) {
  if (!options_.metrics) return reply->Send(ErrorResponse(501, "metrics are off (--no-metrics)"));
  Response response;
  response.body = MetricsText(engine_.stats());
  response.content_type = "text/plain; version=0.0.4";
  reply->Send(std::move(response));
}

void Service::Models(const HttpRequest&, const ReplyPtr& reply) {
  const ModelConfig& config = model_.config();
  Json meta = {{"architecture", config.architecture},
               {"n_vocab", config.vocabulary},
               {"n_ctx_train", config.context_length},
               {"n_ctx", engine_.sequence_limit()},
               {"n_embd", config.embedding}};
  Json entry = {{"id", options_.model_name},
                {"object", "model"},
                {"created", 0},
                {"owned_by", "blockgtq"},
                {"meta", std::move(meta)}};
  reply->Send(JsonResponse({{"object", "list"}, {"data", Json::array({std::move(entry)})}}));
}

void Service::Props(const HttpRequest&, const ReplyPtr& reply) {
  const SamplerOptions sampler;
  const Result<RecognizedTemplate> chat = model_.chat_template();
  reply->Send(JsonResponse({{"model", options_.model_name},
                            {"version", options_.version},
                            {"cache", options_.cache_name},
                            {"n_ctx", engine_.sequence_limit()},
                            {"total_slots", engine_.options().max_running},
                            {"prompt_chunk", engine_.options().chunk},
                            {"chat", chat.ok()},
                            {"chat_tools", chat.ok() && chat->tools != ToolForm::kNone},
                            {"default_generation_settings",
                             {{"temperature", sampler.temperature},
                              {"top_k", sampler.top_k},
                              {"top_p", sampler.top_p},
                              {"min_p", sampler.min_p},
                              {"repeat_penalty", sampler.repeat_penalty},
                              {"repeat_last_n", sampler.repeat_last_n},
                              {"frequency_penalty", sampler.frequency_penalty},
                              {"presence_penalty", sampler.presence_penalty}}}}));
}

void Service::Page(const HttpRequest& request, const ReplyPtr& reply) {
  const PageFile* file = FindPageFile(request.path);
  if (file == nullptr) return reply->Send(ErrorResponse(404, "there is nothing at this path"));
  Response response;
  response.body = std::string(file->content);
  response.content_type = std::string(file->content_type);
  response.headers = {
      // Files of this server alone, and no frame, plug-in, form target or inline script at all.
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cache-Control", "no-cache"},
  };
  reply->Send(std::move(response));
}

void Service::PlanWidths(const HttpRequest&, const ReplyPtr& reply) {
  if (options_.plan == nullptr)
    return reply->Send(ErrorResponse(404, "the cache has no plan: it is kept as " + options_.cache_name));
  reply->Send(JsonResponse(PlanJson(*options_.plan)));
}

void Service::Tokenize(const HttpRequest& request, const ReplyPtr& reply) {
  boost::asio::post(workers_, [this, body = request.body, reply] {
    const Result<TokenizeRequest> parsed = ParseTokenizeRequest(body);
    Response response;
    if (parsed.ok()) {
      const Tokenizer& tokenizer = model_.tokenizer();
      const std::vector<Token> tokens =
          parsed->add_special ? EncodePrompt(tokenizer, parsed->content, false, parsed->parse_special)
                              : tokenizer.Encode(parsed->content, parsed->parse_special);
      response = JsonResponse({{"tokens", tokens}});
    } else {
      response = ErrorResponse(parsed.status());
    }
    boost::asio::post(io_, [reply, response = std::move(response)] { reply->Send(response); });
  });
}

void Service::Detokenize(const HttpRequest& request, const ReplyPtr& reply) {
  const Result<std::vector<Token>> tokens = ParseDetokenizeRequest(request.body);
  if (!tokens.ok()) return reply->Send(ErrorResponse(tokens.status()));
  reply->Send(JsonResponse({{"content", model_.tokenizer().Decode(*tokens)}}));
}

void Service::Chat(const HttpRequest& request, const ReplyPtr& reply) {
  Generate(reply, [this, body = request.body] { return ChatJob(body); });
}

void Service::Completions(const HttpRequest& request, const ReplyPtr& reply) {
  Generate(reply, [this, body = request.body] { return CompletionsJob(body); });
}

void Service::Generate(const ReplyPtr& reply, std::function<Result<GenerationJob>()> make) {
  boost::asio::post(workers_, [this, reply, make = std::move(make)] {
    auto job = std::make_shared<Result<GenerationJob>>(make());
    boost::asio::post(io_, [this, reply, job] {
      if (!job->ok()) return reply->Send(ErrorResponse(job->status()));
      const int64_t limit = engine_.sequence_limit();
      for (const serve::Request& request : (*job)->requests) {
        const int64_t prompt = static_cast<int64_t>(request.prompt.size());
        if (prompt < limit) continue;
        return reply->Send(ErrorResponse(
            400,
            fmt::format("the prompt has {} tokens; prompt and answer may have {} together", prompt, limit),
            "exceed_context_size_error"));
      }
      std::make_shared<Completion>(std::move(**job), options_.model_name, reply, model_.tokenizer())
          ->Start(io_, engine_);
    });
  });
}

namespace {

/// A request for each prompt and choice, in that order.
void AddRequests(std::vector<Token> prompt, const std::string& echo, int64_t limit, GenerationJob* job) {
  const GenerationSettings& settings = job->settings;
  serve::Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = settings.max_tokens.value_or(limit);
  request.sampler = settings.sampler;
  request.stop = settings.stop;
  request.top_logprobs = settings.top_logprobs;
  request.ignore_end = settings.ignore_end;
  request.json_object = settings.json_object;
  request.use_prefix_cache = settings.cache_prompt;
  request.slot = settings.slot;
  if (!settings.has_seed) {
    std::random_device device;
    request.sampler.seed = (static_cast<uint64_t>(device()) << 32) | device();
  }
  for (int i = 0; i < settings.choices; ++i) {
    job->requests.push_back(request);
    job->requests.back().sampler.seed += static_cast<uint64_t>(i);
    job->echoes.push_back(echo);
  }
}

}  // namespace

Result<GenerationJob> Service::ChatJob(const std::string& body) const {
  BGTQ_ASSIGN_OR_RETURN(ChatRequest parsed, ParseChatRequest(body));
  const Result<RecognizedTemplate> chat = model_.chat_template();
  if (!chat.ok()) {
    return Status(ErrorCode::kUnsupported,
                  "this model has no chat template that the server knows: use /v1/completions");
  }
  BGTQ_ASSIGN_OR_RETURN(const std::string rendered, RenderChat(*chat, parsed.messages, parsed.tools));
  GenerationJob job;
  job.chat = true;
  job.tools = std::move(parsed.tool_names);
  job.settings = std::move(parsed.settings);
  AddRequests(EncodePrompt(model_.tokenizer(), rendered, BeginsWithBos(*chat), true), "",
              engine_.sequence_limit(), &job);
  return job;
}

Result<GenerationJob> Service::CompletionsJob(const std::string& body) const {
  BGTQ_ASSIGN_OR_RETURN(CompletionRequest parsed, ParseCompletionRequest(body));
  GenerationJob job;
  job.settings = std::move(parsed.settings);
  for (Prompt& prompt : parsed.prompts) {
    const std::string* text = std::get_if<std::string>(&prompt);
    std::vector<Token> tokens = text != nullptr ? EncodePrompt(model_.tokenizer(), *text, false, false)
                                                : std::get<std::vector<Token>>(prompt);
    std::string echo;
    if (parsed.echo) echo = text != nullptr ? *text : model_.tokenizer().Decode(tokens);
    AddRequests(std::move(tokens), echo, engine_.sequence_limit(), &job);
  }
  return job;
}

}  // namespace blockgtq::http
