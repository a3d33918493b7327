// The known templates, their recognition and their rendering.
#include "src/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "src/text/jinja_canonical.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

// In a shape, {% anything %} stands for tags that plain chat does not reach, and this, inside a string, for
// the default system message.
constexpr std::string_view kSystem = "@SYSTEM@";

struct Shape {
  ChatTemplate kind;
  std::string_view jinja;
  std::string_view system_preamble;
};

#define BGTQ_CHATML_TURN \
  "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
#define BGTQ_CHATML_OPEN "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define BGTQ_LLAMA3_TURN                                                \
  "'<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + " \
  "message.content | trim + '<|eot_id|>'"
#define BGTQ_LLAMA3_OPEN "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
#define BGTQ_LLAMA3_LOOP                                                                                   \
  "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = " BGTQ_LLAMA3_TURN \
  " %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"

constexpr Shape kShapes[] = {
    // ChatML without a default system message.
    {ChatTemplate::kChatMl, "{% for message in messages %}" BGTQ_CHATML_TURN "{% endfor %}" BGTQ_CHATML_OPEN,
     ""},
    {ChatTemplate::kChatMl,
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
     "{% for message in messages %}" BGTQ_CHATML_TURN "{% endfor %}" BGTQ_CHATML_OPEN,
     ""},
    // SmolLM2, Qwen2.
    {ChatTemplate::kChatMl,
     "{% for message in messages %}{% if loop.first and messages[0].role != 'system' %}"
     "{{ '<|im_start|>system\\n@SYSTEM@<|im_end|>\\n' }}{% endif %}" BGTQ_CHATML_TURN
     "{% endfor %}" BGTQ_CHATML_OPEN,
     ""},
    // Qwen2.5, Qwen2.5-Coder.
    {ChatTemplate::kChatMl,
     "{% if tools %}{% anything %}{% else %}"
     "{% if messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + "
     "'<|im_end|>\\n' }}"
     "{% else %}{{ '<|im_start|>system\\n@SYSTEM@<|im_end|>\\n' }}{% endif %}{% endif %}"
     "{% for message in messages %}"
     "{% if (message.role == 'user') or (message.role == 'system' and not loop.first) or "
     "(message.role == 'assistant' and not message.tool_calls) %}" BGTQ_CHATML_TURN
     "{% elif message.role == 'assistant' %}{% anything %}{% endfor %}" BGTQ_CHATML_OPEN,
     ""},
    // Llama 3.
    {ChatTemplate::kLlama3, BGTQ_LLAMA3_LOOP BGTQ_LLAMA3_OPEN, ""},
    {ChatTemplate::kLlama3, BGTQ_LLAMA3_LOOP "{% if add_generation_prompt %}" BGTQ_LLAMA3_OPEN "{% endif %}",
     ""},
    // Llama 3.1, 3.2. The date is the one that the template falls back to without a clock.
    {ChatTemplate::kLlama3,
     "{{ bos_token }}{% anything %}{% set date_string = '26 Jul 2024' %}{% anything %}"
     "{% if messages[0].role == 'system' %}{% set system_message = messages[0].content|trim %}"
     "{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}"
     "{{ '<|start_header_id|>system<|end_header_id|>\\n\\n' }}{% anything %}"
     "{{ 'Cutting Knowledge Date: December 2023\\n' }}{{ 'Today Date: ' + date_string + '\\n\\n' }}{% "
     "anything %}"
     "{{ system_message }}{{ '<|eot_id|>' }}{% anything %}{% for message in messages %}"
     "{% if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}"
     "{{ " BGTQ_LLAMA3_TURN " }}{% elif 'tool_calls' in message %}{% anything %}{% endfor %}"
     "{% if add_generation_prompt %}" BGTQ_LLAMA3_OPEN "{% endif %}",
     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"},
};

#undef BGTQ_CHATML_TURN
#undef BGTQ_CHATML_OPEN
#undef BGTQ_LLAMA3_TURN
#undef BGTQ_LLAMA3_OPEN
#undef BGTQ_LLAMA3_LOOP

// The default system message when `text` (canonical) has the shape, empty where the shape has none.
std::optional<std::string> MatchShape(const std::string& shape, std::string_view text) {
  const std::string anything =
      fmt::format("{{%{0}anything{0}}}{0}", kCanonicalEnd);  // {% anything %} in canonical form
  std::string system;
  std::string_view rest = shape;
  bool capture = false, gap = false;  // what stands before the next literal
  for (;;) {
    const size_t next_gap = rest.find(anything), next_system = rest.find(kSystem);
    const size_t literal_bytes = std::min({next_gap, next_system, rest.size()});
    const bool last = literal_bytes == rest.size();
    const std::string_view literal = rest.substr(0, literal_bytes);
    size_t found = 0;
    if (capture || gap) {
      found = last ? (text.ends_with(literal) ? text.size() - literal.size() : std::string_view::npos)
                   : text.find(literal);
    } else if (!text.starts_with(literal)) {
      found = std::string_view::npos;
    }
    if (found == std::string_view::npos) return std::nullopt;
    if (capture) {
      system.assign(text.substr(0, found));
      // One string literal without further turns in it.
      if (system.empty() || system.find(kCanonicalEnd) != std::string::npos ||
          system.find("<|") != std::string::npos) {
        return std::nullopt;
      }
    }
    text.remove_prefix(found + literal.size());
    if (last) return text.empty() ? std::optional(system) : std::nullopt;
    capture = next_system < next_gap;
    gap = !capture;
    rest.remove_prefix(literal_bytes + (capture ? kSystem.size() : anything.size()));
  }
}

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

std::string RenderChatMl(const RecognizedTemplate& chat, std::span<const ChatMessage> messages) {
  std::string out;
  const auto turn = [&](std::string_view role, std::string_view content) {
    out.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
  };
  if (messages[0].role != "system" && !chat.default_system.empty()) turn("system", chat.default_system);
  for (const ChatMessage& message : messages) turn(message.role, message.content);
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

}  // namespace

Result<RecognizedTemplate> RecognizeTemplate(std::string_view jinja) {
  if (const auto text = CanonicalJinja(jinja); text.has_value()) {
    for (const Shape& shape : kShapes) {
      const auto canonical_shape = CanonicalJinja(shape.jinja);
      if (auto system = MatchShape(canonical_shape.value(), *text); system.has_value()) {
        return RecognizedTemplate{shape.kind, std::move(*system), std::string(shape.system_preamble)};
      }
    }
  }
  return Status(
      ErrorCode::kUnsupported,
      "the model's tokenizer.chat_template is not one of the known chat templates (ChatML, Llama 3); use "
      "--no-chat to run the model on plain text");
}

Result<std::string> RenderChat(const RecognizedTemplate& chat_template,
                               std::span<const ChatMessage> messages) {
  if (messages.empty()) return Status(ErrorCode::kInvalidArgument, "a chat needs at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return Status(
          ErrorCode::kInvalidArgument,
          fmt::format("messages[{}].role is \"{}\"; known roles: system, user, assistant", i, role));
    }
  }
  return chat_template.kind == ChatTemplate::kChatMl ? RenderChatMl(chat_template, messages)
                                                     : RenderLlama3(chat_template, messages);
}

Result<std::string> RenderNextTurn(const RecognizedTemplate& chat_template, std::string_view message) {
  constexpr std::string_view kAnswer = "\x02\x03";  // stands for the answer; cut away with all before it
  const std::vector<ChatMessage> messages = {
      {"user", ""}, {"assistant", std::string(kAnswer)}, {"user", std::string(message)}};
  BGTQ_ASSIGN_OR_RETURN(const std::string rendered, RenderChat(chat_template, messages));
  return rendered.substr(rendered.find(kAnswer) + kAnswer.size());
}

bool BeginsWithBos(const RecognizedTemplate& chat_template) {
  return chat_template.kind == ChatTemplate::kLlama3;
}

}  // namespace blockgtq
