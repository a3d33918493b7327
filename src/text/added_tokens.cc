// A trie, tried from every byte of the text.
#include "src/text/added_tokens.h"

#include <algorithm>

#include "src/text/utf8.h"

namespace blockgtq {
namespace {

// White_Space of Unicode.
bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t LeadingSpaceBytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Unit unit = FirstUtf8Unit(text.substr(bytes));
    if (unit.kind != Utf8Kind::kValid || !IsSpace(unit.code_point)) break;
    bytes += unit.bytes;
  }
  return bytes;
}

size_t TrailingSpaceBytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    size_t size = 1;  // of the last character
    const std::string_view rest = text.substr(0, text.size() - bytes);
    while (size < 3 && size < rest.size() && (static_cast<uint8_t>(rest[rest.size() - size]) & 0xC0) == 0x80)
      ++size;
    const Utf8Unit unit = FirstUtf8Unit(rest.substr(rest.size() - size));
    if (unit.kind != Utf8Kind::kValid || static_cast<size_t>(unit.bytes) != size || !IsSpace(unit.code_point))
      break;
    bytes += size;
  }
  return bytes;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::fill(std::begin(root_child_), std::end(root_child_), -1);
  nodes_.emplace_back();
  for (size_t t = 0; t < tokens_.size(); ++t) {
    if (tokens_[t].text.empty()) continue;
    int32_t at = 0;
    for (const char c : tokens_[t].text) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t child = Child(at, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({-1, nodes_[at].first_child, -1, byte});
        nodes_[at].first_child = child;
        if (at == 0) root_child_[byte] = child;
      }
      at = child;
    }
    if (nodes_[at].token < 0) nodes_[at].token = static_cast<int32_t>(t);
  }
}

int32_t AddedTokenMatcher::Child(int32_t node, uint8_t byte) const {
  if (node == 0) return root_child_[byte];
  int32_t child = nodes_[node].first_child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

std::vector<AddedFragment> AddedTokenMatcher::Split(std::string_view text, bool parse_special) const {
  std::vector<AddedFragment> fragments;
  size_t done = 0;  // text before is in fragments
  for (size_t at = 0; at < text.size();) {
    int32_t node = 0, best = -1;
    for (size_t i = at; i < text.size(); ++i) {
      node = Child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) break;
      if (nodes_[node].token >= 0) best = nodes_[node].token;
    }
    if (best < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[best];
    size_t begin = at, end = at + token.text.size();
    at = end;  // what stripping takes may hold another token, which is then found as well
    if (token.special && !parse_special) continue;
    if (token.strip_left) begin = std::max(begin - TrailingSpaceBytes(text.substr(0, begin)), done);
    if (token.strip_right) end += LeadingSpaceBytes(text.substr(end));
    if (done < begin) fragments.push_back({done, begin, -1});
    fragments.push_back({begin, end, token.token});
    done = end;
  }
  if (done < text.size()) fragments.push_back({done, text.size(), -1});
  return fragments;
}

}  // namespace blockgtq
