// Tool calls in an answer that comes in pieces: <tool_call> JSON </tool_call>, as Qwen's models write them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/text/chat_tools.h"

namespace blockgtq::http {

class ToolCallParser {
 public:
  struct Parts {
    std::string content;          // to show
    std::vector<ToolCall> calls;  // whole ones, arguments as TemplateJson writes them
  };
  /// What the answer so far gives that was not given before. An end that may become a mark is kept back; what
  /// stands between marks and is no call ({"name": ..., "arguments": {...}}) is content, marks and all. White
  /// space behind a call is dropped.
  Parts Push(std::string_view piece);
  /// What was kept back: a call whose end mark is missing counts.
  Parts Finish();

 private:
  void AddContent(std::string_view text, Parts* parts);
  void AddBlock(std::string_view inside, std::string_view whole, Parts* parts);

  std::string pending_;
  std::string space_;         // behind a call, until more than white space comes
  size_t searched_ = 0;       // of pending_, where no end mark begins
  bool inside_ = false;       // pending_ begins with the mark
  bool behind_call_ = false;  // nothing but white space since a call
};

}  // namespace blockgtq::http
