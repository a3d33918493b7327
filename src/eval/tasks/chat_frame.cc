// See chat_frame.h.
#include "src/eval/tasks/chat_frame.h"

#include <string>

namespace blockgtq {
namespace {

void AppendTokens(std::vector<Token>& to, const std::vector<Token>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

std::vector<Token> ChatFrame::Wrap(std::span<const Token> message) const {
  std::vector<Token> all;
  all.reserve(before.size() + message.size() + after.size());
  AppendTokens(all, before);
  all.insert(all.end(), message.begin(), message.end());
  AppendTokens(all, after);
  return all;
}

ChatFrame MakePlainFrame(const LoadedModel& model, std::string_view answer_start) {
  const Tokenizer& tokenizer = model.tokenizer();
  ChatFrame frame;
  frame.before = model.PromptStart(nullptr);
  frame.after = tokenizer.Encode(answer_start, false);
  return frame;
}

Result<ChatFrame> MakeChatFrame(const LoadedModel& model, std::string_view answer_start) {
  BGTQ_ASSIGN_OR_RETURN(const RecognizedTemplate chat, model.chat_template());
  const std::string mark = "\x02message\x03";  // stands for the message; in no template
  const ChatMessage message{"user", mark};
  BGTQ_ASSIGN_OR_RETURN(const std::string rendered, RenderChat(chat, {&message, 1}));
  const size_t at = rendered.find(mark);
  if (at == std::string::npos) {
    return Status(ErrorCode::kUnsupported,
                  "the chat template changes the user's message; pass --no-chat to run without it");
  }
  const Tokenizer& tokenizer = model.tokenizer();
  ChatFrame frame;
  frame.before = model.PromptStart(&chat);
  AppendTokens(frame.before, tokenizer.Encode(rendered.substr(0, at), true));
  frame.after = tokenizer.Encode(rendered.substr(at + mark.size()), true);
  AppendTokens(frame.after, tokenizer.Encode(answer_start, false));
  return frame;
}

}  // namespace blockgtq
