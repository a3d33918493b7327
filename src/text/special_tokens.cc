// One pass over the text with a trie tells which tokens occur; each of those few then cuts the fragments.
#include "src/text/special_tokens.h"

#include <algorithm>

namespace blockgtq {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) {
  for (const int32_t token : vocabulary.special_tokens()) {
    entries_.push_back(
        {std::string(vocabulary.Piece(token)), token, vocabulary.type(token) == TokenType::kUserDefined});
  }
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.text.size() > b.text.size(); });
  std::fill(std::begin(root_child_), std::end(root_child_), -1);
  nodes_.emplace_back();
  for (size_t e = 0; e < entries_.size(); ++e) {
    int32_t at = 0;
    for (const char c : entries_[e].text) {
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
    nodes_[at].entry = static_cast<int32_t>(e);
  }
}

int32_t SpecialTokens::Child(int32_t node, uint8_t byte) const {
  if (node == 0) return root_child_[byte];
  int32_t child = nodes_[node].first_child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

std::vector<bool> SpecialTokens::Occurring(std::string_view text) const {
  std::vector<bool> occurs(entries_.size(), false);
  for (size_t start = 0; start < text.size(); ++start) {
    int32_t node = 0;
    for (size_t i = start; i < text.size(); ++i) {
      node = Child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) break;
      if (nodes_[node].entry >= 0) occurs[nodes_[node].entry] = true;
    }
  }
  return occurs;
}

std::vector<TextFragment> SpecialTokens::Split(std::string_view text, bool parse_special) const {
  std::vector<TextFragment> fragments, next;
  if (text.empty()) return fragments;
  fragments.push_back({text, -1});
  const std::vector<bool> occurs = Occurring(text);
  for (size_t e = 0; e < entries_.size(); ++e) {
    const Entry& entry = entries_[e];
    if (!occurs[e] || !(parse_special || entry.user_defined)) continue;
    next.clear();
    for (const TextFragment& fragment : fragments) {
      if (fragment.token >= 0) {
        next.push_back(fragment);
        continue;
      }
      std::string_view rest = fragment.text;
      for (size_t at; (at = rest.find(entry.text)) != std::string_view::npos;) {
        if (at > 0) next.push_back({rest.substr(0, at), -1});
        next.push_back({rest.substr(at, entry.text.size()), entry.token});
        rest.remove_prefix(at + entry.text.size());
      }
      if (!rest.empty()) next.push_back({rest, -1});
    }
    fragments.swap(next);
  }
  return fragments;
}

}  // namespace blockgtq
