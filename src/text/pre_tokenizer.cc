// The pattern table, and matching through PCRE2 (JIT-compiled where the platform allows it).
#include "src/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace blockgtq {
namespace {

// White_Space of Unicode, for use inside a class. PCRE2's own \s also takes U+180E.
#define BGTQ_SPACE R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
#define BGTQ_CONTRACTION "'s|'t|'re|'ve|'m|'ll|'d"
// (?i:...) of the published patterns, in ASCII: PCRE2 would also fold U+017F to s.
#define BGTQ_CONTRACTION_ANY_CASE "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
// Spaces before the last space of a run, the last one belonging to the word that follows.
#define BGTQ_TRAILING_SPACES "[" BGTQ_SPACE "]+(?![^" BGTQ_SPACE "])|[" BGTQ_SPACE "]+"
#define BGTQ_LLAMA3_STYLE(numbers)                                                     \
  BGTQ_CONTRACTION_ANY_CASE R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" numbers "| ?[^" BGTQ_SPACE \
                            R"(\p{L}\p{N}]+[\r\n]*|[)" BGTQ_SPACE R"(]*[\r\n]+|)" BGTQ_TRAILING_SPACES

struct Definition {
  std::string_view name;
  const char* pattern;
  bool whole_piece_first;
  bool adds_bos_by_default;
};

constexpr Definition kDefinitions[] = {
    // Every digit alone, then GPT-2's pattern on what lies between them: a digit ends a run of spaces as the
    // end of the text does.
    {"smollm",
     R"(\p{N}|)" BGTQ_CONTRACTION R"(| ?\p{L}+| ?[^)" BGTQ_SPACE R"(\p{L}\p{N}]+|[)" BGTQ_SPACE
     R"(]+(?![^)" BGTQ_SPACE R"(\p{N}])|[)" BGTQ_SPACE "]+",
     false, false},
    {"qwen2", BGTQ_LLAMA3_STYLE(R"(\p{N})"), false, false},
    {"llama-bpe", BGTQ_LLAMA3_STYLE(R"(\p{N}{1,3})"), true, true},
    {"gpt-2",
     BGTQ_CONTRACTION R"(| ?\p{L}+| ?\p{N}+| ?[^)" BGTQ_SPACE R"(\p{L}\p{N}]+|)" BGTQ_TRAILING_SPACES, false,
     false},
};

#undef BGTQ_SPACE
#undef BGTQ_CONTRACTION
#undef BGTQ_CONTRACTION_ANY_CASE
#undef BGTQ_TRAILING_SPACES
#undef BGTQ_LLAMA3_STYLE

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

struct PreTokenizer::Impl {
  const Definition* definition;
  std::unique_ptr<pcre2_code, CodeDeleter> code;
};

PreTokenizer::PreTokenizer() : impl_(std::make_unique<Impl>()) {}
PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDefinitions), std::end(kDefinitions),
                                   [&](const auto& d) { return d.name == name; });
  if (found == std::end(kDefinitions)) {
    std::string known;
    for (const Definition& d : kDefinitions) known += fmt::format("{}{}", known.empty() ? "" : ", ", d.name);
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("tokenizer.ggml.pre \"{}\" is not supported; known pre-tokenizers: {}", name, known));
  }
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  std::unique_ptr<PreTokenizer> result(new PreTokenizer);
  result->impl_->definition = found;
  result->impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(found->pattern), PCRE2_ZERO_TERMINATED,
                                          PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                                          &error, &error_offset, nullptr));
  if (result->impl_->code == nullptr) {
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("this PCRE2 library refuses the pattern of pre-tokenizer \"{}\" (error {} at {}); "
                    "install PCRE2 10.40 or later with Unicode support",
                    name, error, error_offset));
  }
  // Without JIT (refused by some hardened kernels) pcre2_match interprets the same pattern.
  (void)pcre2_jit_compile(result->impl_->code.get(), PCRE2_JIT_COMPLETE);
  return result;
}

bool PreTokenizer::whole_piece_first() const { return impl_->definition->whole_piece_first; }
bool PreTokenizer::adds_bos_by_default() const { return impl_->definition->adds_bos_by_default; }

struct PreTokenizer::Matcher::State {
  const pcre2_code* code;
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data;
  std::unique_ptr<pcre2_match_context, MatchContextDeleter> context;
};

PreTokenizer::Matcher::Matcher(const PreTokenizer& pre_tokenizer) : state_(std::make_unique<State>()) {
  state_->code = pre_tokenizer.impl_->code.get();
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  state_->context.reset(pcre2_match_context_create(nullptr));
}
PreTokenizer::Matcher::~Matcher() = default;

size_t PreTokenizer::Matcher::NextPiece(std::string_view text, size_t offset) {
  const size_t rest = text.size() - offset;
  if (state_->data == nullptr || state_->context == nullptr) return rest;
  // The patterns backtrack over one run of spaces at most a few times: their work is linear in the text, and
  // this bound keeps it so.
  const uint64_t limit = 10000 + 8 * static_cast<uint64_t>(rest);
  pcre2_set_match_limit(state_->context.get(), static_cast<uint32_t>(std::min<uint64_t>(
                                                   limit, std::numeric_limits<uint32_t>::max())));
  const auto match = [&](uint32_t options) {
    return pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                       PCRE2_NO_UTF_CHECK | options, state_->data.get(), state_->context.get());
  };
  int found = match(0);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) found = match(PCRE2_NO_JIT);  // JIT's stack is smaller
  if (found >= 0) {
    const size_t end = pcre2_get_ovector_pointer(state_->data.get())[1];
    if (end > offset) return end - offset;
  }
  // No pattern leaves a character unmatched, so this is a limit of the library: the rest is one piece, whose
  // bytes are still all encoded.
  return rest;
}

}  // namespace blockgtq
