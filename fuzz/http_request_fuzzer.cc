// Request bodies of the server, and the names in its headers: parsing either refuses with a message or gives
// settings within their ranges.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/http/host_rule.h"
#include "src/http/json_request.h"
#include "src/http/tool_call_parser.h"

namespace {

using namespace blockgtq;        // NOLINT: a fuzzer's file
using namespace blockgtq::http;  // NOLINT

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckSettings(const GenerationSettings& settings) {
  Require(settings.sampler.Validate().ok());
  Require(settings.choices >= 1 && settings.choices <= kMaxChoices);
  Require(!settings.max_tokens.has_value() || *settings.max_tokens >= 1);
  Require(settings.top_logprobs >= -1 && settings.top_logprobs <= 20);
  Require(settings.stop.size() <= 16);
}

/// The same is told of an answer whatever pieces it comes in.
void CheckToolCalls(std::string_view answer) {
  const size_t pieces[2] = {7, answer.size() + 1};
  std::string told[2];
  for (int i = 0; i < 2; ++i) {
    ToolCallParser parser;
    const size_t piece = pieces[i];
    std::string& text = told[i];
    std::string calls;
    const auto add = [&](const ToolCallParser::Parts& parts) {
      text += parts.content;
      for (const ToolCall& call : parts.calls) calls += call.name + call.arguments;
    };
    for (size_t at = 0; at < answer.size(); at += piece) add(parser.Push(answer.substr(at, piece)));
    add(parser.Finish());
    text += calls;
  }
  Require(told[0] == told[1]);
}

/// Only names and addresses of this machine pass a rule that allows no others.
void CheckHosts(std::string_view text) {
  static const HostRule rule = HostRule::Create("127.0.0.1", {}).value();
  const std::string name = HostOfAuthority(text);
  if (!text.empty() && rule.Refusal(text, "").empty()) {
    Require(name == "localhost" || name.ends_with(".localhost") || name.starts_with("127.") ||
            name.starts_with("["));
  }
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string_view origin = text.substr(std::min(line + 1, text.size()));
  if (rule.Refusal(text.substr(0, line), origin).empty()) {
    Require(rule.Refusal(text.substr(0, line), "").empty());
    Require(origin.empty() || origin.find("://") != std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto chat = ParseChatRequest(body);
  if (chat.ok()) CheckSettings(chat->settings);
  const auto completion = ParseCompletionRequest(body);
  if (completion.ok()) {
    CheckSettings(completion->settings);
    Require(!completion->prompts.empty());
  }
  CheckToolCalls(body);
  CheckHosts(body);
  (void)ParseTokenizeRequest(body).ok();
  const auto tokens = ParseDetokenizeRequest(body);
  if (tokens.ok()) {
    for (const Token token : *tokens) Require(token >= 0);
  }
  const auto name = ParseSlotFileName(body);
  if (name.ok()) Require(name->find('/') == std::string::npos && name->front() != '.' && !name->empty());
  return 0;
}
