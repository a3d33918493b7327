// A small lexer for Jinja: finds tags, applies white space control, and rewrites the tokens inside tags.
#include "src/text/jinja_canonical.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

namespace blockgtq {
namespace {

constexpr std::string_view kWhite = " \t\r\n\v\f";

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

struct Lexeme {
  bool is_string;
  std::string text;
};

// Reads the string literal at body[*at], a quote, and moves past it.
bool ReadString(std::string_view body, size_t* at, std::string* out) {
  const char quote = body[(*at)++];
  for (; *at < body.size(); ++*at) {
    if (body[*at] == quote) {
      ++*at;
      return true;
    }
    if (body[*at] != '\\') {
      out->push_back(body[*at]);
      continue;
    }
    if (++*at == body.size()) return false;
    switch (body[*at]) {
      case 'n':
        out->push_back('\n');
        break;
      case 't':
        out->push_back('\t');
        break;
      case 'r':
        out->push_back('\r');
        break;
      case '\\':
      case '\'':
      case '"':
        out->push_back(body[*at]);
        break;
      default:
        return false;  // an escape with another meaning
    }
  }
  return false;
}

bool ReadLexemes(std::string_view body, std::vector<Lexeme>* out) {
  for (size_t at = 0; at < body.size();) {
    const char c = body[at];
    if (kWhite.find(c) != std::string_view::npos) {
      ++at;
    } else if (c == '\'' || c == '"') {
      out->push_back({true, ""});
      if (!ReadString(body, &at, &out->back().text)) return false;
    } else if (IsWord(c)) {
      const size_t start = at;
      while (at < body.size() && IsWord(body[at])) ++at;
      const std::string word(body.substr(start, at - start));
      const bool attribute = !out->empty() && !out->back().is_string && out->back().text == "." &&
                             !std::isdigit(static_cast<unsigned char>(word[0]));
      if (attribute) {
        out->back().text = "[";
        out->push_back({true, word});
        out->push_back({false, "]"});
      } else {
        out->push_back({false, word});
      }
    } else {
      out->push_back({false, std::string(1, c)});
      ++at;
    }
  }
  return true;
}

// 'a' + 'b' is 'ab', unless an operator that binds tighter than + follows 'b' or precedes 'a'.
void JoinStrings(std::vector<Lexeme>* lexemes) {
  const auto is = [](const Lexeme& lexeme, std::string_view text) {
    return !lexeme.is_string && lexeme.text == text;
  };
  std::vector<Lexeme> joined;
  const std::vector<Lexeme>& all = *lexemes;
  for (size_t i = 0; i < all.size();) {
    const bool first =
        joined.empty() || is(joined.back(), "+") || is(joined.back(), "(") || is(joined.back(), "=");
    joined.push_back(all[i++]);
    if (!first || !joined.back().is_string) continue;
    while (i + 1 < all.size() && is(all[i], "+") && all[i + 1].is_string &&
           (i + 2 == all.size() || is(all[i + 2], "+") || is(all[i + 2], ")"))) {
      joined.back().text += all[i + 1].text;
      i += 2;
    }
  }
  *lexemes = std::move(joined);
}

// The end of a tag's body: `close` outside string literals.
size_t FindClose(std::string_view jinja, size_t from, std::string_view close) {
  char quote = 0;
  for (size_t i = from; i < jinja.size(); ++i) {
    if (quote != 0) {
      if (jinja[i] == '\\') {
        ++i;
      } else if (jinja[i] == quote) {
        quote = 0;
      }
    } else if (jinja.substr(i, close.size()) == close) {
      return i;
    } else if (jinja[i] == '\'' || jinja[i] == '"') {
      quote = jinja[i];
    }
  }
  return std::string_view::npos;
}

size_t FindOpen(std::string_view jinja, size_t from) {
  for (size_t i = from; i + 1 < jinja.size(); ++i) {
    if (jinja[i] == '{' && (jinja[i + 1] == '%' || jinja[i + 1] == '{' || jinja[i + 1] == '#')) return i;
  }
  return std::string_view::npos;
}

void TrimRight(std::string_view* text) {
  text->remove_suffix(text->size() - 1 - text->find_last_not_of(kWhite));
}

}  // namespace

std::optional<std::string> CanonicalJinja(std::string_view jinja) {
  if (jinja.find(kCanonicalEnd) != std::string_view::npos) return std::nullopt;
  if (jinja.ends_with('\n')) jinja.remove_suffix(1);  // keep_trailing_newline is off

  std::string out;
  bool strip_next = false, after_block = false;
  for (size_t at = 0; at < jinja.size();) {
    const size_t open = FindOpen(jinja, at);
    const bool last = open == std::string_view::npos;
    std::string_view text = jinja.substr(at, last ? std::string_view::npos : open - at);
    const bool line_start = at == 0 || text.find('\n') != std::string_view::npos;
    const char kind = last ? '\0' : jinja[open + 1];
    const char sign = !last && open + 2 < jinja.size() ? jinja[open + 2] : '\0';
    if (strip_next) {
      text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
    } else if (after_block && text.starts_with('\n')) {
      text.remove_prefix(1);
    }
    if (sign == '-') {
      TrimRight(&text);
    } else if ((kind == '%' || kind == '#') && sign != '+' && line_start) {
      const size_t keep = text.find_last_not_of(" \t") + 1;
      if (keep == 0 || text[keep - 1] == '\n') text = text.substr(0, keep);
    }
    if (!text.empty()) out.append("text:").append(text).push_back(kCanonicalEnd);
    if (last) break;

    size_t begin = open + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    const std::string_view close = kind == '%' ? "%}" : kind == '{' ? "}}" : "#}";
    size_t end = kind == '#' ? jinja.find(close, begin) : FindClose(jinja, begin, close);
    if (end == std::string_view::npos) return std::nullopt;
    at = end + close.size();
    strip_next = end > begin && jinja[end - 1] == '-';
    after_block = kind != '{';
    if (kind == '#') continue;
    if (strip_next) --end;

    std::vector<Lexeme> lexemes;
    if (!ReadLexemes(jinja.substr(begin, end - begin), &lexemes)) return std::nullopt;
    JoinStrings(&lexemes);
    out.append(kind == '%' ? "{%" : "{{").push_back(kCanonicalEnd);
    for (const Lexeme& lexeme : lexemes) {
      out.append(lexeme.is_string ? "'" : "").append(lexeme.text).push_back(kCanonicalEnd);
    }
    out.append("}").push_back(kCanonicalEnd);
  }
  return out;
}

}  // namespace blockgtq
