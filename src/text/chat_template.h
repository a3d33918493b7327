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

/// Which known template `jinja` (tokenizer.chat_template) is, with its default system message where it has
/// one.
struct RecognizedTemplate {
  ChatTemplate kind;
  std::string default_system;  // put first when the messages have no system message; may be empty
};
/// Errors: kUnsupported: says that the template is unknown and that --no-chat runs the model without one.
Result<RecognizedTemplate> RecognizeTemplate(std::string_view jinja);

/// The prompt for `messages` with the assistant's turn opened, special tokens as text (encode with
/// parse_special). Errors: kInvalidArgument for an unknown role.
Result<std::string> RenderChat(const RecognizedTemplate& chat_template,
                               std::span<const ChatMessage> messages);

}  // namespace blockgtq
