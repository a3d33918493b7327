// Request bodies of the server: parsing either refuses with a message or gives settings within their ranges.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/http/json_request.h"

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
  (void)ParseTokenizeRequest(body).ok();
  const auto tokens = ParseDetokenizeRequest(body);
  if (tokens.ok()) {
    for (const Token token : *tokens) Require(token >= 0);
  }
  const auto name = ParseSlotFileName(body);
  if (name.ok()) Require(name->find('/') == std::string::npos && name->front() != '.' && !name->empty());
  return 0;
}
