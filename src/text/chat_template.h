// Chat templates: recognised by their text and rendered by our own code, or refused. No template language is
// run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"
#include "src/text/chat_tools.h"

namespace blockgtq {

struct ChatMessage {
  std::string role;  // system, user, assistant; tool, with the result of a call, where the template has tools
  std::string content;
  std::vector<ToolCall> tool_calls = {};  // of an assistant
};

enum class ChatTemplate {
  kChatMl,
  kQwen3,  // ChatML; where thinking is stripped, answers before the last question lose it
  kLlama3,
  kMistral,
  kMistralV3,  // spaces inside the marks
  kGlm4,
  kGlm4Sorted,  // 0414: system messages first
  kDeepSeek2,
  kDeepSeekR1,
  kGemma,
  kPhi3,
  kPhi3NoSystem,
  kPhi4Mini,
  kTulu,
};

/// Which known template a model's is, with what varies between models.
struct RecognizedTemplate {
  ChatTemplate kind = ChatTemplate::kChatMl;
  std::string default_system;   // the system message when the first message is none; empty: no system turn
  std::string system_preamble;  // opens the system turn, which is then always there (Llama 3.1); may be empty
  std::string generation;       // opens the assistant's turn, for kQwen3, kGlm4, kGlm4Sorted and kDeepSeekR1
  std::string eos_token;        // the text of the model's token
  bool begins_with_bos = false;
  bool strips_thinking = false;  // drops what stands before </think> in answers
  ToolForm tools = ToolForm::kNone;
};
/// jinja: tokenizer.chat_template, or of tokenizer_config.json. eos_token: the text of the model's end token,
/// empty when it has none. The whole template is compared with the known ones, after removing what does not
/// change its output (spaces in tags, kinds of quotes, comments). Parts that only tools reach may differ;
/// `tools` is then kNone. Errors: kUnsupported: says that the template is unknown and that --no-chat runs the
/// model without one; kCorruptFile when it needs a missing eos_token.
Result<RecognizedTemplate> RecognizeTemplate(std::string_view jinja, std::string_view eos_token);

/// The prompt for `messages` with the assistant's turn opened, special tokens as text (encode with
/// parse_special). The templates' `bos_token` is left out: prepend Tokenizer::bos() when add_bos() says so.
/// tools: what the model is told it can call, each as TemplateJson writes it.
/// Errors: kInvalidArgument for an unknown role, no message, or an order of roles that the template refuses;
/// kUnsupported for tools, calls or their results where the template's tool form is kNone.
Result<std::string> RenderChat(const RecognizedTemplate& chat_template, std::span<const ChatMessage> messages,
                               std::span<const std::string> tools = {});

/// What follows an assistant's answer in a chat that goes on: the end of its turn, the user's `message`, the
/// opening of the assistant's next turn.
Result<std::string> RenderNextTurn(const RecognizedTemplate& chat_template, std::string_view message);

/// True when the template itself puts BOS first (Llama 3, say), whatever the tokenizer says of adding it.
bool BeginsWithBos(const RecognizedTemplate& chat_template);

}  // namespace blockgtq
