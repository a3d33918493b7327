// See normalizer.h.
#include "src/text/normalizer.h"

#include "src/text/nfc.h"

namespace blockgtq {
namespace {

std::string Apply(const NfcStep&, const std::string& text) { return ToNfc(text); }

std::string Apply(const ReplaceStep& step, const std::string& text) {
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(step.from, at)) != std::string::npos; at = found + step.from.size()) {
    out.append(text, at, found - at).append(step.to);
  }
  return out.append(text, at);
}

std::string Apply(const PrependStep& step, const std::string& text) {
  return text.empty() ? text : step.text + text;
}

}  // namespace

std::string Normalize(const std::vector<NormalizerStep>& steps, std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    out = std::visit([&](const auto& s) { return Apply(s, out); }, step);
  }
  return out;
}

}  // namespace blockgtq
