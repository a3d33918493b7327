// Tool calls in an answer that comes in pieces: <tool_call> JSON </tool_call>, as Qwen's models write them,
// or an answer that is nothing but the JSON, as the smaller ones do.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/chat_tools.h"

namespace blockgtq::http {

class ToolCallParser {
 public:
  struct Parts {
    std::string content;          // to show
    std::vector<ToolCall> calls;  // whole ones, arguments as TemplateJson writes them
  };
  /// names: of the tools; an answer that is one bare object is a call where its name is among them.
  explicit ToolCallParser(std::vector<std::string> names = {}) : names_(std::move(names)) {}

  /// What the answer so far gives that was not given before. An end that may become a mark is kept back; what
  /// stands between marks and is no call ({"name": ..., "arguments": {...}}) is content, marks and all. White
  /// space behind a call is dropped. An answer that begins with a brace is kept back to its end.
  Parts Push(std::string_view piece);
  /// What was kept back: a call whose end mark is missing counts.
  Parts Finish();

 private:
  void AddContent(std::string_view text, Parts* parts);
  void AddBlock(std::string_view inside, std::string_view whole, Parts* parts);

  std::vector<std::string> names_;
  std::string pending_;
  std::string space_;         // behind a call, until more than white space comes
  size_t searched_ = 0;       // of pending_, where no end mark begins
  bool begun_ = false;        // the answer has more than white space
  bool bare_ = false;         // and begins with a brace
  bool inside_ = false;       // pending_ begins with the mark
  bool behind_call_ = false;  // nothing but white space since a call
};

}  // namespace blockgtq::http
