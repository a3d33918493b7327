// Vocabularies for tests: a small one built here, and the real models where they are installed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/byte_alphabet.h"
#include "src/text/tokenizer.h"
#include "src/text/vocabulary.h"

namespace blockgtq::test {

/// Strings that a TokenizerVocab views. Token b is byte b, then come the merges' results, then special
/// tokens.
struct SmallVocab {
  std::vector<std::string> tokens, merges;
  std::vector<int64_t> types;
  std::vector<std::string_view> token_views, merge_views;
  std::string pre = "gpt-2";

  SmallVocab() {
    for (int b = 0; b < 256; ++b) Add(ByteToAlphabet(static_cast<uint8_t>(b)), 1);
  }
  int64_t Add(std::string text, int64_t type) {
    tokens.push_back(std::move(text));
    types.push_back(type);
    return static_cast<int64_t>(tokens.size()) - 1;
  }
  /// Adds the token left + right and the merge that makes it.
  int64_t Merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return Add(left + right, 1);
  }
  TokenizerVocab View() {
    token_views.assign(tokens.begin(), tokens.end());
    merge_views.assign(merges.begin(), merges.end());
    TokenizerVocab vocab;
    vocab.tokens = token_views;
    vocab.types = types;
    vocab.merges = merge_views;
    vocab.pre = pre;
    return vocab;
  }
};

/// The file of a model used in tests, "" when it is not installed.
inline std::string ModelPath(const std::string& file) {
  const char* models = std::getenv("BGTQ_MODELS");
  const char* home = std::getenv("HOME");
  const std::string folder =
      models != nullptr ? models : std::string(home != nullptr ? home : "") + "/.cache/blockgtq/models";
  const std::string path = folder + "/" + file;
  return std::ifstream(path).good() ? path : "";
}

inline nlohmann::json ReadJson(const std::string& path_in_data) {
  std::ifstream file(std::string(BGTQ_TEST_DATA) + "/" + path_in_data);
  return nlohmann::json::parse(file);
}

}  // namespace blockgtq::test
