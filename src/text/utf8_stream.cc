// Utf8Stream: whole characters out of pieces that may end inside one.
#include "src/text/tokenizer.h"
#include "src/text/utf8.h"

namespace blockgtq {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string Utf8Stream::Push(std::string_view piece) {
  pending_.append(piece);
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const size_t valid = ValidUtf8Prefix(rest);
    out.append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Unit unit = FirstUtf8Unit(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    out.append(kReplacement);
    rest.remove_prefix(unit.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string Utf8Stream::Finish() {
  // What Push keeps back is one incomplete character, hence one replacement.
  std::string out(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return out;
}

}  // namespace blockgtq
