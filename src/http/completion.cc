// See completion.h.
#include "src/http/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <random>
#include <utility>

#include "src/http/responses.h"

namespace blockgtq::http {
namespace {

using Json = nlohmann::json;

std::string RandomId(const char* kind) {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}{:08x}", kind, device(), device(), device());
}

}  // namespace

Completion::Completion(GenerationJob job, std::string model_name, std::shared_ptr<Reply> reply,
                       const Tokenizer& tokenizer)
    : job_(std::move(job)),
      model_name_(std::move(model_name)),
      reply_(std::move(reply)),
      tokenizer_(tokenizer),
      id_(RandomId(job_.chat ? "chatcmpl-" : "cmpl-")),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      choices_(job_.requests.size()) {
  for (Choice& choice : choices_) choice.parser = ToolCallParser(job_.tools);
}

void Completion::Start(boost::asio::io_context& io, serve::EngineThread& engine) {
  auto ids =
      engine.Submit(std::move(job_.requests), [&io, self = shared_from_this()](const serve::Event& event) {
        boost::asio::post(io, [self, event] { self->OnEvent(event); });
      });
  if (!ids.ok()) {
    over_ = true;
    const bool full = ids.status().code() == ErrorCode::kOutOfMemory;
    return reply_->Send(full ? ErrorResponse(503, ids.status().message()) : ErrorResponse(ids.status()));
  }
  ids_ = std::move(*ids);
  reply_->OnGone([self = shared_from_this(), &engine] {
    self->over_ = true;
    for (const serve::RequestId id : self->ids_) engine.Cancel(id);
  });
  if (!job_.settings.stream) return;
  reply_->BeginStream("text/event-stream");
  for (size_t i = 0; i < choices_.size(); ++i) {
    Json choice = {{"index", i}, {"finish_reason", nullptr}};
    if (job_.chat) {
      choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    } else if (!job_.echoes[i].empty()) {
      choice["text"] = job_.echoes[i];
    } else {
      continue;
    }
    Json frame = Frame("chat.completion.chunk");
    frame["choices"] = Json::array({std::move(choice)});
    Emit(frame);
  }
}

Json Completion::Frame(const char* chat_object) const {
  return {{"id", id_},
          {"object", job_.chat ? chat_object : "text_completion"},
          {"created", created_},
          {"model", model_name_}};
}

void Completion::Emit(const Json& value) { reply_->Write("data: " + Dump(value) + "\n\n"); }

Json Completion::Logprobs(const std::vector<serve::NewToken>& tokens, size_t offset) const {
  if (job_.settings.top_logprobs < 0) return nullptr;
  return job_.chat ? ChatLogprobs(tokens, tokenizer_) : CompletionLogprobs(tokens, tokenizer_, offset);
}

void Completion::OnEvent(const serve::Event& event) {
  if (over_) return;
  const size_t index = static_cast<size_t>(std::ranges::find(ids_, event.request) - ids_.begin());
  if (event.finished == serve::FinishReason::kFailed) return Fail(event.status);
  if (event.finished == serve::FinishReason::kCancelled)
    return Fail(Status(ErrorCode::kCancelled, "the server is shutting down"));
  Choice& choice = choices_[index];
  choice.usage = event.usage;
  const Added added = Add(choice, event);
  if (event.finished.has_value()) {
    const bool called = !choice.calls.empty() && event.finished == serve::FinishReason::kEnd;
    choice.finish = called ? "tool_calls" : FinishName(*event.finished);
    ++finished_;
  }
  if (job_.settings.stream) {
    StreamEvent(index, event, added);
    choice.text += added.text;
    if (finished_ == choices_.size()) FinishStream();
    return;
  }
  choice.text += added.text;
  if (event.token.has_value()) choice.tokens.push_back(*event.token);
  if (finished_ == choices_.size()) FinishWhole();
}

Completion::Added Completion::Add(Choice& choice, const serve::Event& event) const {
  if (job_.tools.empty()) return {event.text, Json::array()};
  Added added;
  const auto take = [&](const ToolCallParser::Parts& parts) {
    added.text += parts.content;
    for (const ToolCall& call : parts.calls) {
      Json entry = {{"id", RandomId("call_")},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
      choice.calls.push_back(entry);
      entry["index"] = choice.calls.size() - 1;
      added.calls.push_back(std::move(entry));
    }
  };
  take(choice.parser.Push(event.text));
  if (event.finished.has_value()) take(choice.parser.Finish());
  return added;
}

void Completion::StreamEvent(size_t index, const serve::Event& event, const Added& added) {
  const bool with_token = event.token.has_value() && job_.settings.top_logprobs >= 0;
  const bool says = !added.text.empty() || !added.calls.empty();
  if (!says && !with_token && !event.finished.has_value()) return;
  Json choice = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (job_.chat) {
    choice["delta"] = Json::object();
    if (!added.text.empty()) choice["delta"]["content"] = added.text;
    if (!added.calls.empty()) choice["delta"]["tool_calls"] = added.calls;
  } else {
    choice["text"] = added.text;
  }
  if (with_token)
    choice["logprobs"] = Logprobs({*event.token}, job_.echoes[index].size() + choices_[index].text.size());
  Json frame = Frame("chat.completion.chunk");
  if (event.finished.has_value()) {
    choice["finish_reason"] = choices_[index].finish;
    frame["timings"] = TimingsJson(event.usage);
  }
  frame["choices"] = Json::array({std::move(choice)});
  Emit(frame);
}

serve::Usage Completion::Total() const {
  serve::Usage total = choices_[0].usage;
  for (size_t i = 1; i < choices_.size(); ++i) {
    total.new_tokens += choices_[i].usage.new_tokens;
    // Several prompts count each; several answers to one prompt count it once.
    if (i % static_cast<size_t>(job_.settings.choices) == 0) {
      total.prompt_tokens += choices_[i].usage.prompt_tokens;
      total.cached_tokens += choices_[i].usage.cached_tokens;
    }
    total.prompt_ms = std::max(total.prompt_ms, choices_[i].usage.prompt_ms);
    total.decode_ms = std::max(total.decode_ms, choices_[i].usage.decode_ms);
  }
  return total;
}

void Completion::FinishStream() {
  over_ = true;
  if (job_.settings.usage_in_stream) {
    Json frame = Frame("chat.completion.chunk");
    frame["choices"] = Json::array();
    frame["usage"] = UsageJson(Total());
    Emit(frame);
  }
  reply_->Write("data: [DONE]\n\n");
  reply_->EndStream();
}

void Completion::FinishWhole() {
  over_ = true;
  Json body = Frame("chat.completion");
  body["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Json entry = {{"index", i},
                  {"finish_reason", choice.finish},
                  {"logprobs", Logprobs(choice.tokens, job_.echoes[i].size())}};
    if (job_.chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}};
      if (!choice.calls.empty()) {
        entry["message"]["tool_calls"] = choice.calls;
        if (choice.text.empty()) entry["message"]["content"] = nullptr;
      }
    } else {
      entry["text"] = job_.echoes[i] + choice.text;
    }
    body["choices"].push_back(std::move(entry));
  }
  body["usage"] = UsageJson(Total());
  body["timings"] = TimingsJson(Total());
  reply_->Send(JsonResponse(body));
}

void Completion::Fail(const Status& status) {
  const Response response = ErrorResponse(status);
  if (job_.settings.stream) {
    reply_->Write("data: " + response.body + "\n\n");
    reply_->EndStream();
  } else {
    reply_->Send(response);
  }
  over_ = true;
}

}  // namespace blockgtq::http
