// The regular expressions that pre-tokenizers split text with, compiled from the text in which they are
// published.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "blockgtq/status.h"

namespace blockgtq {

/// What (?i:...) around the contractions folds.
enum class ContractionCase {
  kUnicode,  // U+017F is an s: Oniguruma, which Hugging Face's tokenizers run
  kAscii,    // llama.cpp
};

/// A compiled pattern. Immutable, may be shared by threads.
class SplitPattern {
 public:
  /// published: the pattern as it stands in tokenizer.json, in Oniguruma's (Ruby's) syntax. Known are the
  /// alternations of a table, and any pattern of one repeated class: `\s?[...]+`, `\p{N}{1,3}`, `\s+$`. So
  /// every pattern that runs matches in time linear in the text. Errors: kUnsupported, with the pattern.
  static Result<std::shared_ptr<const SplitPattern>> Create(std::string_view published,
                                                            ContractionCase folds);
  ~SplitPattern();

  /// As Create got it.
  std::string_view published() const;

  /// Finds matches in one text after another. Belongs to one thread.
  class Matcher {
   public:
    explicit Matcher(std::shared_ptr<const SplitPattern> pattern);
    ~Matcher();
    Matcher(Matcher&&) noexcept;

    /// The first match in text[from..], which is never empty; false: none. `text` is valid UTF-8 and from a
    /// character's start; what follows is seen by lookahead.
    bool Next(std::string_view text, size_t from, size_t* begin, size_t* end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  SplitPattern();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

namespace patterns {

// Alternations, in the order of their age.
inline constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
inline constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kDeepSeek3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
// Of one class each.
inline constexpr std::string_view kNewline = "[\r\n]";
inline constexpr std::string_view kTrailingSpaces = R"(\s+$)";
inline constexpr std::string_view kDigit = R"(\p{N})";
inline constexpr std::string_view kDigits = R"(\p{N}+)";
inline constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
inline constexpr std::string_view kCjkHangul = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
inline constexpr std::string_view kCjkKana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
inline constexpr std::string_view kSpaceLetters = R"(\s?\p{L}+)";
inline constexpr std::string_view kSpacePunctuation = R"(\s?\p{P}+)";
// DeepSeek LLM and V2: letters with case, and the punctuation of ASCII, its full-width forms and of CJK.
extern const std::string_view kDeepSeekLetters;
inline constexpr std::string_view kDeepSeekPunctuation =
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";

}  // namespace patterns

}  // namespace blockgtq
