// See tool_call_parser.h.
#include "src/http/tool_call_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/formats/json_fields.h"
#include "src/http/json_request.h"

namespace blockgtq::http {
namespace {

constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxCallBytes = size_t{1} << 20;

std::optional<ToolCall> ParseCall(std::string_view text) {
  // The bounds are checked first; the parse proper keeps the order of keys.
  if (!ParseBoundedJson(text, kMaxCallBytes, kMaxJsonDepth).ok()) return std::nullopt;
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto name = json.find("name"), arguments = json.find("arguments");
  if (name == json.end() || !name->is_string()) return std::nullopt;
  if (arguments == json.end()) return ToolCall{name->get<std::string>(), "{}"};
  if (!arguments->is_object()) return std::nullopt;
  return ToolCall{name->get<std::string>(), TemplateJson(*arguments)};
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
size_t MarkBegun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

void ToolCallParser::AddContent(std::string_view text, Parts* parts) {
  if (behind_call_) {
    space_ += text;
    if (text.find_first_not_of(kSpace) == std::string_view::npos) return;
    behind_call_ = false;
    text = space_;
  }
  parts->content += text;
}

void ToolCallParser::AddBlock(std::string_view inside, std::string_view whole, Parts* parts) {
  std::optional<ToolCall> call = ParseCall(inside);
  if (!call.has_value()) return AddContent(whole, parts);
  behind_call_ = true;
  space_.clear();
  parts->calls.push_back(std::move(*call));
}

ToolCallParser::Parts ToolCallParser::Push(std::string_view piece) {
  Parts parts;
  pending_ += piece;
  if (!begun_) {
    const size_t first = pending_.find_first_not_of(kSpace);
    if (first == std::string::npos) return parts;
    begun_ = true;
    bare_ = pending_[first] == '{';
  }
  if (bare_) return parts;
  for (;;) {
    if (!inside_) {
      const size_t begin = pending_.find(kBegin);
      const size_t shown = begin != std::string::npos ? begin : pending_.size() - MarkBegun(pending_, kBegin);
      AddContent(std::string_view(pending_).substr(0, shown), &parts);
      pending_.erase(0, shown);
      if (begin == std::string::npos) return parts;
      inside_ = true;
      searched_ = kBegin.size();
    }
    const size_t end = pending_.find(kEnd, searched_);
    if (end == std::string::npos) {
      searched_ = std::max(kBegin.size(), pending_.size() - std::min(pending_.size(), kEnd.size() - 1));
      return parts;
    }
    const std::string_view whole = std::string_view(pending_).substr(0, end + kEnd.size());
    AddBlock(whole.substr(kBegin.size(), end - kBegin.size()), whole, &parts);
    pending_.erase(0, end + kEnd.size());
    inside_ = false;
  }
}

ToolCallParser::Parts ToolCallParser::Finish() {
  Parts parts;
  if (bare_) {
    bare_ = false;
    std::optional<ToolCall> call = ParseCall(pending_);
    if (call.has_value() && std::ranges::find(names_, call->name) != names_.end()) {
      parts.calls.push_back(std::move(*call));
      pending_.clear();
      return parts;
    }
    parts = Push({});
  }
  const std::string_view rest = pending_;
  if (inside_) {
    AddBlock(rest.substr(kBegin.size()), rest, &parts);
  } else {
    AddContent(rest, &parts);
  }
  pending_.clear();
  inside_ = false;
  return parts;
}

}  // namespace blockgtq::http
