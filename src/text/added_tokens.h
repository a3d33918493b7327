// Added tokens of tokenizer.json, found in text as Hugging Face's tokenizers find them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blockgtq {

struct AddedToken {
  std::string text;
  int32_t token;
  bool special;      // found only when special tokens are to be parsed
  bool strip_left;   // takes the white space before it along
  bool strip_right;  // and after it
  bool normalized;   // looked for in the normalized text, not in the text as it is
};

/// Part of a text: an added token, or text (token -1) between two of them.
struct AddedFragment {
  size_t begin, end;
  int32_t token;
};

/// Finds a set of tokens: the leftmost, of several that begin there the longest.
class AddedTokenMatcher {
 public:
  /// Tokens with empty texts are left out; of two with the same text the first counts.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  /// Fragments in order, none empty. Without parse_special a special token's text stays text, and nothing
  /// else is found in it. A token inside the space that another one took is still found.
  std::vector<AddedFragment> Split(std::string_view text, bool parse_special) const;

  bool empty() const { return tokens_.empty(); }

 private:
  struct Node {  // of a trie over bytes; children are a linked list
    int32_t first_child = -1, next_sibling = -1;
    int32_t token = -1;  // index of the token that ends here
    uint8_t byte = 0;
  };
  int32_t Child(int32_t node, uint8_t byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  int32_t root_child_[256];  // of node 0, -1: none
};

}  // namespace blockgtq
