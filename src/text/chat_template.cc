// Recognition: a template is compared with the shapes of the table (chat_shapes.cc).
#include "src/text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/text/chat_shapes.h"
#include "src/text/jinja_canonical.h"

namespace blockgtq {
namespace {

// The default system message when `text` (canonical) has the shape, empty where the shape has none.
std::optional<std::string> MatchShape(const std::string& shape, std::string_view text) {
  const std::string anything =
      fmt::format("{{%{0}anything{0}}}{0}", kCanonicalEnd);  // {% anything %} in canonical form
  std::string system;
  std::string_view rest = shape;
  bool capture = false, gap = false, captured = false;  // the first two: what stands before the next literal
  for (;;) {
    const size_t next_gap = rest.find(anything), next_system = rest.find(kShapeSystem);
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
      if (captured && system != text.substr(0, found)) return std::nullopt;
      captured = true;
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
    rest.remove_prefix(literal_bytes + (capture ? kShapeSystem.size() : anything.size()));
  }
}

// The shape's template with its tool parts in their places.
std::string WithToolParts(const ChatShape& shape) {
  constexpr std::string_view kAnything = "{% anything %}";
  std::string jinja(shape.jinja);
  size_t at = 0;
  for (const std::string_view part : shape.tool_parts) {
    at = jinja.find(kAnything, at);
    jinja.replace(at, kAnything.size(), part);
    at += part.size();
  }
  return jinja;
}

}  // namespace

Result<RecognizedTemplate> RecognizeTemplate(std::string_view jinja, std::string_view eos_token) {
  const auto text = CanonicalJinja(jinja);
  for (const ChatShape& shape : ChatShapes()) {
    if (!text.has_value()) break;
    auto system = MatchShape(CanonicalJinja(shape.jinja).value(), *text);
    if (!system.has_value()) continue;
    if (shape.jinja.find("eos_token") != std::string_view::npos && eos_token.empty()) {
      return Status(
          ErrorCode::kCorruptFile,
          "the chat template ends answers with eos_token, and the model has none; use --no-chat to run it on "
          "plain text");
    }
    RecognizedTemplate result;
    result.kind = shape.kind;
    result.default_system = std::move(*system);
    result.system_preamble = shape.system_preamble;
    result.generation = shape.generation;
    result.eos_token = eos_token;
    result.begins_with_bos = shape.begins_with_bos;
    result.strips_thinking = shape.strips_thinking;
    if (shape.tools != ToolForm::kNone && MatchShape(CanonicalJinja(WithToolParts(shape)).value(), *text) ==
                                              std::optional(result.default_system)) {
      result.tools = shape.tools;
    }
    return result;
  }
  return Status(
      ErrorCode::kUnsupported,
      "the model's chat template is not one of the known ones (ChatML, Qwen 3, Llama 3, Mistral v0.3 and "
      "Nemo, GLM-4, DeepSeek V2 and R1, Gemma 3, Phi-3, Phi-4 mini, OLMo 2); use --no-chat to run the model "
      "on plain text");
}

}  // namespace blockgtq
