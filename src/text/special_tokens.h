// Special tokens written in text: finds them and cuts the text around them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/vocabulary.h"

namespace blockgtq {

/// Part of a text: a special token, or plain text between two of them.
struct TextFragment {
  std::string_view text;
  int32_t token;  // -1: plain
};

class SpecialTokens {
 public:
  /// Keeps copies; `vocabulary` may go.
  explicit SpecialTokens(const Vocabulary& vocabulary);

  /// Longer tokens are found before shorter ones anywhere in the text, equal ones from left to right (as
  /// llama.cpp does it). Without parse_special only user-defined tokens are found. Fragments are in the order
  /// of the text and never empty.
  std::vector<TextFragment> Split(std::string_view text, bool parse_special) const;

 private:
  struct Entry {
    std::string text;
    int32_t token;
    bool user_defined;
  };
  struct Node {  // of a trie over bytes; children are a linked list
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t entry = -1;  // the entry that ends here
    uint8_t byte = 0;
  };
  int32_t Child(int32_t node, uint8_t byte) const;
  /// Which entries occur in `text` at all, overlapping or not.
  std::vector<bool> Occurring(std::string_view text) const;

  std::vector<Entry> entries_;  // longest first
  std::vector<Node> nodes_;
  int32_t root_child_[256];  // of node 0, -1: none
};

}  // namespace blockgtq
