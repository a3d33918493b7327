// Chat templates: recognised by their text and rendered by our own code, or refused. No template language is
// run.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "blockgtq/status.h"

namespace blockgtq {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

enum class ChatTemplate { kChatMl, kLlama3 };

/// Which known template `jinja` (tokenizer.chat_template) is, with what it puts before the messages.
struct RecognizedTemplate {
  ChatTemplate kind;
  std::string default_system;   // the system message when the first message is none; empty: no system turn
  std::string system_preamble;  // opens the system turn, which is then always there (Llama 3.1); may be empty
};
/// The whole template is compared with the known ones, after removing what does not change its output (spaces
/// in tags, kinds of quotes, comments). Parts that only tools reach may differ. Errors: kUnsupported: says
/// that the template is unknown and that --no-chat runs the model without one.
Result<RecognizedTemplate> RecognizeTemplate(std::string_view jinja);

/// The prompt for `messages` with the assistant's turn opened, special tokens as text (encode with
/// parse_special). The templates' `bos_token` is left out: prepend Tokenizer::bos() when add_bos() says so.
/// Errors: kInvalidArgument for an unknown role or no message.
Result<std::string> RenderChat(const RecognizedTemplate& chat_template,
                               std::span<const ChatMessage> messages);

/// What follows an assistant's answer in a chat that goes on: the end of its turn, the user's `message`, the
/// opening of the assistant's next turn.
Result<std::string> RenderNextTurn(const RecognizedTemplate& chat_template, std::string_view message);

/// True when the template itself puts BOS first (Llama 3), whatever the tokenizer says of adding it.
bool BeginsWithBos(const RecognizedTemplate& chat_template);

}  // namespace blockgtq
