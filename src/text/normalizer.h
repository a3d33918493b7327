// What is done to text before it is cut: the normalizers of tokenizer.json.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace blockgtq {

struct NfcStep {};
/// Every occurrence of `from` (not empty), from left to right, becomes `to`.
struct ReplaceStep {
  std::string from, to;
};
/// Put before a text that is not empty.
struct PrependStep {
  std::string text;
};
using NormalizerStep = std::variant<NfcStep, ReplaceStep, PrependStep>;

/// The steps one after the other.
std::string Normalize(const std::vector<NormalizerStep>& steps, std::string_view text);

}  // namespace blockgtq
