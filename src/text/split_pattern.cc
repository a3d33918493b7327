// Translation of the published patterns to PCRE2 (JIT-compiled where the platform allows it) and matching.
#include "src/text/split_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "src/formats/message.h"
#include "src/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace blockgtq {

namespace patterns {

const std::string_view kDeepSeekLetters =
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-"
    "\U0001e943]+";

}  // namespace patterns

namespace {

constexpr std::string_view kAlternations[] = {patterns::kGpt2,   patterns::kLlama3, patterns::kQwen2,
                                              patterns::kTekken, patterns::kGpt4o,  patterns::kDeepSeek3};

// White_Space of Unicode, for use inside a class. PCRE2's own \s also takes U+180E.
#define BGTQ_SPACE R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr std::string_view kSpace = BGTQ_SPACE;
// \s+$ of Oniguruma, whose $ is the end of any line: up to the text's end, else to the last newline of the
// run; a run with neither is skipped as a whole (trying it from each of its spaces would be quadratic).
constexpr std::string_view kTrailingSpacesPcre =
    "[" BGTQ_SPACE "]++\\z|[" BGTQ_SPACE "]+(?=\\n)|[" BGTQ_SPACE "]++(*SKIP)(*FAIL)";
#undef BGTQ_SPACE
constexpr std::string_view kFoldedContraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr std::string_view kAsciiContraction = "(?:'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))";

// \s and \S as Unicode has them; the rest means the same in both libraries.
std::string Translate(std::string_view published, ContractionCase folds) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < published.size(); ++i) {
    const char c = published[i];
    if (c == '\\' && i + 1 < published.size()) {
      const char escaped = published[++i];
      if (escaped == 's') {
        out.append(in_class ? "" : "[").append(kSpace).append(in_class ? "" : "]");
      } else if (escaped == 'S' && !in_class) {
        out.append("[^").append(kSpace).append("]");
      } else {
        out.append({c, escaped});
      }
    } else if (folds == ContractionCase::kAscii && published.substr(i).starts_with(kFoldedContraction)) {
      out.append(kAsciiContraction);
      i += kFoldedContraction.size() - 1;
    } else {
      if (c == '[' || c == ']') in_class = c == '[';
      out.push_back(c);
    }
  }
  return out;
}

// Bytes of one element that means the same in both libraries: \p{..}, \r, \n, or (inside a class) a plain
// character. 0: something else.
size_t ElementBytes(std::string_view text, bool inside_class) {
  if (text.starts_with("\\p{") || text.starts_with("\\P{")) {
    const size_t close = text.find('}');
    if (close == std::string_view::npos || close > 5) return 0;
    constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "N",
                                                "Nd", "Nl", "No", "P",  "S",  "Sc", "Sm", "Z"};
    const std::string_view name = text.substr(3, close - 3);
    return std::count(std::begin(kCategories), std::end(kCategories), name) != 0 ? close + 1 : 0;
  }
  if (text.starts_with("\\r") || text.starts_with("\\n") || (inside_class && text.starts_with("\\s")))
    return 2;
  if (!inside_class || text.empty()) return 0;
  const Utf8Unit unit = FirstUtf8Unit(text);
  if (unit.kind != Utf8Kind::kValid) return 0;
  return std::string_view("[]\\&^").find(text[0]) == std::string_view::npos ? unit.bytes : 0;
}

// Whether the pattern is an optional \s?, one class or category, and an optional +, {1,2} or {1,3}.
bool IsOneClass(std::string_view text) {
  if (text.starts_with("\\s?")) text.remove_prefix(3);
  if (text.starts_with("[")) {
    text.remove_prefix(text.starts_with("[^") ? 2 : 1);
    bool any = false;
    while (!text.empty() && text[0] != ']') {
      const size_t bytes = ElementBytes(text, true);
      if (bytes == 0) return false;
      text.remove_prefix(bytes);
      any = true;
    }
    if (text.empty() || !any) return false;
    text.remove_prefix(1);
  } else {
    const size_t bytes = ElementBytes(text, false);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return text.empty() || text == "+" || text == "{1,3}" || text == "{1,2}";
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

struct SplitPattern::Impl {
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  std::string published;
};

SplitPattern::SplitPattern() : impl_(std::make_unique<Impl>()) {}
SplitPattern::~SplitPattern() = default;
std::string_view SplitPattern::published() const { return impl_->published; }

Result<std::shared_ptr<const SplitPattern>> SplitPattern::Create(std::string_view published,
                                                                 ContractionCase folds) {
  const bool known = std::count(std::begin(kAlternations), std::end(kAlternations), published) != 0;
  if (!known && published != patterns::kTrailingSpaces && !IsOneClass(published)) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("the pre-tokenizer's pattern \"{}\" is not supported", Printable(published)));
  }
  const std::string pattern =
      published == patterns::kTrailingSpaces ? std::string(kTrailingSpacesPcre) : Translate(published, folds);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  std::shared_ptr<SplitPattern> result(new SplitPattern);
  result->impl_->published = published;
  result->impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                          &error_offset, nullptr));
  if (result->impl_->code == nullptr) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("PCRE2 refuses the pre-tokenizer's pattern \"{}\" (error {} at {}); PCRE2 10.40 or "
                    "later with Unicode support is needed",
                    Printable(published), error, error_offset));
  }
  // Without JIT (refused by some hardened kernels) pcre2_match interprets the same pattern.
  (void)pcre2_jit_compile(result->impl_->code.get(), PCRE2_JIT_COMPLETE);
  return std::shared_ptr<const SplitPattern>(std::move(result));
}

struct SplitPattern::Matcher::State {
  std::shared_ptr<const SplitPattern> pattern;
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context;
};

SplitPattern::Matcher::Matcher(std::shared_ptr<const SplitPattern> pattern)
    : state_(std::make_unique<State>()) {
  state_->pattern = std::move(pattern);
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  state_->context.reset(pcre2_match_context_create(nullptr));
}
SplitPattern::Matcher::~Matcher() = default;
SplitPattern::Matcher::Matcher(Matcher&&) noexcept = default;

bool SplitPattern::Matcher::Next(std::string_view text, size_t from, size_t* begin, size_t* end) {
  if (state_->data == nullptr || state_->context == nullptr || from >= text.size()) return false;
  // The patterns backtrack over one run of spaces at most a few times: their work is linear in the text, and
  // this bound keeps it so. Past it the rest of the text is one piece, whose bytes are still all encoded.
  const uint64_t limit = 10000 + 8 * static_cast<uint64_t>(text.size() - from);
  pcre2_set_match_limit(state_->context.get(), static_cast<uint32_t>(std::min<uint64_t>(
                                                   limit, std::numeric_limits<uint32_t>::max())));
  const auto match = [&](uint32_t options) {
    return pcre2_match(state_->pattern->impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), from, PCRE2_NO_UTF_CHECK | options, state_->data.get(),
                       state_->context.get());
  };
  int found = match(0);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) found = match(PCRE2_NO_JIT);  // JIT's stack is smaller
  if (found < 0) return false;
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->data.get());
  *begin = range[0];
  *end = range[1];
  return *end > *begin;
}

}  // namespace blockgtq
