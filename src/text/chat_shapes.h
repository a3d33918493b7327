// The chat templates that are known, by their text.
#pragma once

#include <span>
#include <string_view>

#include "src/text/chat_template.h"

namespace blockgtq {

/// A template with holes. {% anything %} stands for tags that plain chat does not reach, and kShapeSystem,
/// inside a string, for the default system message.
struct ChatShape {
  ChatTemplate kind;
  std::string_view jinja;
  std::string_view system_preamble;  // as in RecognizedTemplate
  std::string_view generation;       // where kinds have several: what opens the assistant's turn
  bool begins_with_bos = false;      // the template puts bos_token first
  bool strips_thinking = false;      // drops what stands before </think> in answers
  ToolForm tools = ToolForm::kNone;  // where each {% anything %} is what tool_parts say, in order
  std::span<const std::string_view> tool_parts = {};
};

inline constexpr std::string_view kShapeSystem = "@SYSTEM@";

std::span<const ChatShape> ChatShapes();

}  // namespace blockgtq
