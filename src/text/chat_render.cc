// Rendering of the known templates: what each writes around the messages.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/text/chat_template.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

// str.isspace() of Python, which Jinja's trim goes by.
bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    if (unit.kind != Utf8Kind::kValid || !IsPythonSpace(unit.code_point)) break;
    text.remove_prefix(unit.bytes);
  }
  while (!text.empty()) {
    size_t start = text.size() - 1;  // of the last character
    while (start > 0 && text.size() - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80)
      --start;
    const Utf8Unit unit = FirstUtf8Unit(text.substr(start));
    if (unit.kind != Utf8Kind::kValid || start + unit.bytes != text.size() || !IsPythonSpace(unit.code_point))
      break;
    text.remove_suffix(unit.bytes);
  }
  return text;
}

using Messages = std::span<const ChatMessage>;
using Tools = std::span<const std::string>;  // each a JSON object

// Qwen's list of tools, to the end of the system turn.
std::string QwenToolList(Tools tools) {
  std::string out =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
      "function signatures within <tools></tools> XML tags:\n<tools>";
  for (const std::string& tool : tools) out.append("\n").append(tool);
  return out.append(
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
      "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
      "<args-json-object>}\n</tool_call><|im_end|>\n");
}

std::string QwenToolCall(const ToolCall& call) {
  return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>", call.name,
                     call.arguments);
}

// The result of a call; results in a row share a user's turn.
void AppendQwenToolResponse(Messages messages, size_t i, std::string* out) {
  if (i == 0 || messages[i - 1].role != "tool") out->append("<|im_start|>user");
  out->append("\n<tool_response>\n").append(messages[i].content).append("\n</tool_response>");
  if (i + 1 == messages.size() || messages[i + 1].role != "tool") out->append("<|im_end|>\n");
}

std::string RenderChatMl(const RecognizedTemplate& chat, Messages messages, Tools tools) {
  std::string out;
  const auto turn = [&](std::string_view role, std::string_view content) {
    out.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
  };
  const bool has_system = messages[0].role == "system";
  if (!tools.empty()) {
    out.append("<|im_start|>system\n").append(has_system ? messages[0].content : chat.default_system);
    out.append("\n\n").append(QwenToolList(tools));
  } else if (!has_system && !chat.default_system.empty()) {
    turn("system", chat.default_system);
  }
  for (size_t i = has_system && !tools.empty() ? 1 : 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == "tool") {
      AppendQwenToolResponse(messages, i, &out);
    } else if (message.tool_calls.empty()) {
      turn(message.role, message.content);
    } else {
      out.append("<|im_start|>assistant");
      if (!message.content.empty()) out.append("\n").append(message.content);
      for (const ToolCall& call : message.tool_calls) out.append("\n").append(QwenToolCall(call));
      out.append("<|im_end|>\n");
    }
  }
  return out.append("<|im_start|>assistant\n");
}

std::string RenderLlama3(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  std::string out;
  const auto turn = [&](std::string_view role, std::string_view preamble, std::string_view content) {
    out.append("<|start_header_id|>").append(role).append("<|end_header_id|>\n\n");
    out.append(preamble).append(Trim(content)).append("<|eot_id|>");
  };
  const bool has_system = messages[0].role == "system";
  if (has_system) {
    turn("system", chat.system_preamble, messages[0].content);
  } else if (!chat.default_system.empty() || !chat.system_preamble.empty()) {
    turn("system", chat.system_preamble, chat.default_system);
  }
  for (const ChatMessage& message : messages.subspan(has_system ? 1 : 0))
    turn(message.role, "", message.content);
  return out.append("<|start_header_id|>assistant<|end_header_id|>\n\n");
}

// str.strip("\n") of Python and its one-sided kin.
std::string_view StripLeft(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}
std::string_view StripRight(std::string_view text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

constexpr std::string_view kThinkBegin = "<think>", kThinkEnd = "</think>";

// What follows the last occurrence of `mark`; all of the text when there is none.
std::string_view AfterLast(std::string_view text, std::string_view mark) {
  const size_t at = text.rfind(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

std::string RenderQwen3(const RecognizedTemplate& chat, Messages messages, Tools tools) {
  // The last question: the last user message that is no tool's response in disguise.
  size_t last_query = messages.size() - 1;
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool response = content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !response) {
      last_query = i;
      break;
    }
  }
  std::string out;
  const bool has_system = messages[0].role == "system";
  if (!tools.empty()) {
    out.append("<|im_start|>system\n");
    if (has_system) out.append(messages[0].content).append("\n\n");
    out.append(QwenToolList(tools));
  }
  for (size_t i = has_system && !tools.empty() ? 1 : 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "tool") {
      AppendQwenToolResponse(messages, i, &out);
      continue;
    }
    std::string_view content = messages[i].content, thinking;
    out.append("<|im_start|>").append(role).append("\n");
    if (role == "assistant") {
      if (const size_t end = content.find(kThinkEnd); chat.strips_thinking && end != std::string_view::npos) {
        thinking = StripLeft(AfterLast(StripRight(content.substr(0, end)), kThinkBegin));
        content = StripLeft(AfterLast(content, kThinkEnd));
      }
      const bool says_nothing = content.empty();
      if (chat.strips_thinking && i > last_query && (i + 1 == messages.size() || !thinking.empty())) {
        out.append("<think>\n").append(StripRight(thinking)).append("\n</think>\n\n");
        content = StripLeft(content);
      }
      out.append(content);
      for (const ToolCall& call : messages[i].tool_calls) {
        if (&call != messages[i].tool_calls.data() || !says_nothing) out.append("\n");
        out.append(QwenToolCall(call));
      }
      content = {};
    }
    out.append(content).append("<|im_end|>\n");
  }
  return out.append(chat.generation);
}

Status MustAlternate(size_t message) {
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("messages[{}]: with this model's chat template user and assistant must take turns after an "
                  "optional system message",
                  message));
}

Result<std::string> RenderMistral(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  const size_t first = messages[0].role == "system" ? 1 : 0;
  const bool spaced = chat.kind == ChatTemplate::kMistralV3;
  std::string out;
  for (size_t i = first; i < messages.size(); ++i) {
    const bool user = messages[i].role == "user";
    if (user != ((i - first) % 2 == 0) || messages[i].role == "system") return MustAlternate(i);
    if (!user) {
      const std::string_view content = messages[i].content;
      out.append(spaced ? " " : "").append(spaced ? Trim(content) : content).append(chat.eos_token);
      continue;
    }
    out.append(spaced ? "[INST] " : "[INST]");
    if (first == 1 && i + 1 == messages.size()) out.append(messages[0].content).append("\n\n");
    out.append(messages[i].content).append("[/INST]");
  }
  return out;
}

std::string RenderGlm4(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  std::string out = "[gMASK]<sop>";
  for (const ChatMessage& message : messages) {
    if (!message.content.empty())
      out.append("<|").append(message.role).append("|>\n").append(message.content);
  }
  return out.append(chat.generation);
}

std::string RenderGlm4Sorted(const RecognizedTemplate& chat, Messages messages) {
  std::string system, turns;
  for (const ChatMessage& message : messages) {
    const std::string_view content = message.content;
    if (message.role == "system") {
      system.append("<|system|>\n").append(content);
    } else {
      turns.append("<|").append(message.role).append("|>\n");
      turns.append(chat.strips_thinking ? Trim(AfterLast(content, kThinkEnd)) : content);
    }
  }
  return "[gMASK]<sop>" + system + turns + chat.generation;
}

std::string RenderDeepSeek2(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  std::string out;
  for (const ChatMessage& message : messages) {
    const bool answer = message.role == "assistant";
    out.append(answer ? "Assistant: " : message.role == "user" ? "User: " : "");
    out.append(message.content).append(answer ? chat.eos_token : "\n\n");
  }
  return out.append("Assistant:");
}

std::string RenderDeepSeekR1(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  std::string system, turns;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      system = message.content;
    } else if (message.role == "user") {
      turns.append("<｜User｜>").append(message.content);
    } else {
      const std::string_view content = message.content;
      turns.append("<｜Assistant｜>").append(chat.strips_thinking ? AfterLast(content, kThinkEnd) : content);
      turns.append("<｜end▁of▁sentence｜>");
    }
  }
  return system + turns + chat.generation;
}

Result<std::string> RenderGemma(std::span<const ChatMessage> messages) {
  const size_t first = messages[0].role == "system" ? 1 : 0;
  std::string out;
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if ((role == "user") != ((i - first) % 2 == 0)) return MustAlternate(i);
    out.append("<start_of_turn>").append(role == "assistant" ? "model" : role).append("\n");
    if (first == 1 && i == 1) out.append(messages[0].content).append("\n\n");
    out.append(Trim(messages[i].content)).append("<end_of_turn>\n");
  }
  return out.append("<start_of_turn>model\n");
}

std::string RenderPhi3(std::span<const ChatMessage> messages) {
  std::string out;
  for (const ChatMessage& message : messages) {
    if (message.role == "system" && message.content.empty()) continue;
    out.append("<|").append(message.role).append("|>\n").append(message.content).append("<|end|>\n");
  }
  return out.append("<|assistant|>\n");
}

std::string RenderPhi3NoSystem(std::span<const ChatMessage> messages) {
  std::string out;
  for (const ChatMessage& message : messages) {
    if (message.role == "user")
      out.append("<|user|>\n").append(message.content).append("<|end|>\n<|assistant|>\n");
    if (message.role == "assistant") out.append(message.content).append("<|end|>\n");
  }
  return out;
}

std::string RenderPhi4Mini(std::span<const ChatMessage> messages) {
  std::string out;
  for (const ChatMessage& message : messages) {
    out.append("<|").append(message.role).append("|>").append(message.content).append("<|end|>");
  }
  return out.append("<|assistant|>");
}

std::string RenderTulu(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  std::string out;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool answer = messages[i].role == "assistant";
    out.append("<|").append(messages[i].role).append("|>\n").append(messages[i].content);
    if (answer) out.append(chat.eos_token);
    if (!answer || i + 1 < messages.size()) out.append("\n");
  }
  return out.append("<|assistant|>\n");
}

}  // namespace

Result<std::string> RenderChat(const RecognizedTemplate& chat_template, std::span<const ChatMessage> messages,
                               std::span<const std::string> tools) {
  const bool knows_tools = chat_template.tools != ToolForm::kNone;
  if (!tools.empty() && !knows_tools) {
    return Status(ErrorCode::kUnsupported,
                  "'tools': this model's chat template has no part for tools that is known here");
  }
  if (messages.empty()) return Status(ErrorCode::kInvalidArgument, "a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (!knows_tools && (role == "tool" || !messages[i].tool_calls.empty())) {
      return Status(
          ErrorCode::kUnsupported,
          fmt::format("messages[{}]: this model's chat template has no part for tools that is known here",
                      i));
    }
    if (role != "assistant" && !messages[i].tool_calls.empty()) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("messages[{}].tool_calls: only an assistant calls tools", i));
    }
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return Status(
          ErrorCode::kInvalidArgument,
          fmt::format("messages[{}].role is \"{}\"; known roles: system, user, assistant, tool", i, role));
    }
  }
  switch (chat_template.kind) {
    case ChatTemplate::kChatMl:
      return RenderChatMl(chat_template, messages, tools);
    case ChatTemplate::kQwen3:
      return RenderQwen3(chat_template, messages, tools);
    case ChatTemplate::kLlama3:
      return RenderLlama3(chat_template, messages);
    case ChatTemplate::kMistral:
    case ChatTemplate::kMistralV3:
      return RenderMistral(chat_template, messages);
    case ChatTemplate::kGlm4:
      return RenderGlm4(chat_template, messages);
    case ChatTemplate::kGlm4Sorted:
      return RenderGlm4Sorted(chat_template, messages);
    case ChatTemplate::kDeepSeek2:
      return RenderDeepSeek2(chat_template, messages);
    case ChatTemplate::kDeepSeekR1:
      return RenderDeepSeekR1(chat_template, messages);
    case ChatTemplate::kGemma:
      return RenderGemma(messages);
    case ChatTemplate::kPhi3:
      return RenderPhi3(messages);
    case ChatTemplate::kPhi3NoSystem:
      return RenderPhi3NoSystem(messages);
    case ChatTemplate::kPhi4Mini:
      return RenderPhi4Mini(messages);
    case ChatTemplate::kTulu:
      return RenderTulu(chat_template, messages);
  }
  return Status(ErrorCode::kInvalidArgument, "not a known chat template");
}

Result<std::string> RenderNextTurn(const RecognizedTemplate& chat_template, std::string_view message) {
  constexpr std::string_view kAnswer = "\x02\x03";  // stands for the answer; cut away with all before it
  const std::vector<ChatMessage> messages = {
      {"user", ""}, {"assistant", std::string(kAnswer)}, {"user", std::string(message)}};
  BGTQ_ASSIGN_OR_RETURN(const std::string rendered, RenderChat(chat_template, messages));
  return rendered.substr(rendered.find(kAnswer) + kAnswer.size());
}

bool BeginsWithBos(const RecognizedTemplate& chat_template) { return chat_template.begins_with_bos; }

}  // namespace blockgtq
