// OpenAI-style request bodies: JSON from anyone, checked field by field into what the server acts on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "blockgtq/status.h"
#include "src/engine/sampler.h"
#include "src/text/chat_template.h"

namespace blockgtq::http {

struct GenerationSettings {
  std::optional<int64_t> max_tokens;  // absent: as many as the context holds
  SamplerOptions sampler;
  bool has_seed = false;
  int choices = 1;
  std::vector<std::string> stop;
  int top_logprobs = -1;  // -1: none asked for
  bool stream = false;
  bool usage_in_stream = false;  // stream_options.include_usage
  bool ignore_end = false;
  bool json_object = false;  // response_format
  bool cache_prompt = true;
  int slot = -1;
};

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::vector<std::string> tools;  // each as TemplateJson writes it; empty too where tool_choice is "none"
  std::vector<std::string> tool_names;
  GenerationSettings settings;
};

/// A prompt as text, or as token ids.
using Prompt = std::variant<std::string, std::vector<Token>>;
struct CompletionRequest {
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  GenerationSettings settings;
};

struct TokenizeRequest {
  std::string content;
  bool add_special = false;    // BOS where the model wants one
  bool parse_special = false;  // special tokens in the text become their ids
};

inline constexpr int kMaxJsonDepth = 32;
inline constexpr int kMaxChoices = 16;

// Errors of each: kInvalidArgument naming the field and what it must be; kUnsupported for a field that asks
// for what this server does not do. Unknown fields are ignored, as OpenAI's clients send ever more of them.
Result<ChatRequest> ParseChatRequest(std::string_view body);
Result<CompletionRequest> ParseCompletionRequest(std::string_view body);
Result<TokenizeRequest> ParseTokenizeRequest(std::string_view body);
Result<std::vector<Token>> ParseDetokenizeRequest(std::string_view body);
/// {"filename": NAME}: a plain name, which cannot leave the folder of slot files.
Result<std::string> ParseSlotFileName(std::string_view body);

}  // namespace blockgtq::http
