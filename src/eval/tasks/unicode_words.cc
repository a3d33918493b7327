// See unicode_words.h.
#include "src/eval/tasks/unicode_words.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <memory>

#include "src/text/utf8.h"

namespace blockgtq {
namespace {

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Code = std::unique_ptr<pcre2_code, CodeDeleter>;

Code Compile(const char* pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL, &error, &offset, nullptr));
}

/// Every match of `pattern` replaced. text must be valid UTF-8.
std::string Replace(const pcre2_code& pattern, const std::string& text, const char* replacement) {
  constexpr uint32_t kOptions =
      PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_EXTENDED | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH;
  std::string out(2 * text.size() + 64, '\0');
  PCRE2_SIZE size = out.size();
  const auto substitute = [&] {
    return pcre2_substitute(&pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, kOptions,
                            nullptr, nullptr, reinterpret_cast<PCRE2_SPTR>(replacement),
                            PCRE2_ZERO_TERMINATED, reinterpret_cast<PCRE2_UCHAR*>(out.data()), &size);
  };
  int result = substitute();
  if (result == PCRE2_ERROR_NOMEMORY) {  // size is now what is needed
    out.resize(size);
    result = substitute();
  }
  if (result < 0) return text;  // only for invalid UTF-8, which the caller rules out
  out.resize(size);
  return out;
}

/// Python's str.isspace.
bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsAsciiPunctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

std::string Utf8(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) AppendUtf8(c, &out);
  return out;
}

}  // namespace

std::u32string CodePoints(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    const bool valid = unit.kind == Utf8Kind::kValid;
    out += valid ? unit.code_point : U'\uFFFD';
    text.remove_prefix(valid ? static_cast<size_t>(unit.bytes) : 1);
  }
  return out;
}

std::vector<std::string> SplitWords(std::string_view text) {
  std::vector<std::string> words;
  std::u32string word;
  for (const char32_t c : CodePoints(text)) {
    if (!IsSpace(c)) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(Utf8(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(Utf8(word));
  return words;
}

std::vector<std::string> SplitAt(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string NormalizeAnswer(std::string_view text) {
  static const Code all = Compile("^(.*)$"), articles = Compile(R"(\b(?:a|an|the)\b)");
  std::string valid = Utf8(CodePoints(text));
  if (!valid.empty()) valid = Replace(*all, valid, "\\L$1");
  std::erase_if(valid, IsAsciiPunctuation);
  valid = Replace(*articles, valid, " ");
  std::string out;
  for (const std::string& word : SplitWords(valid)) out += (out.empty() ? "" : " ") + word;
  return out;
}

}  // namespace blockgtq
