// Pre-tokenizers: the steps that cut text into the pieces inside which BPE merges.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "blockgtq/status.h"
#include "src/text/split_pattern.h"

namespace blockgtq {

/// Cuts at the matches of a pattern, or of a literal string. Invalid UTF-8 is cut off as pieces of its own.
struct SplitStep {
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious };  // what becomes of a match
  std::shared_ptr<const SplitPattern> pattern;                       // null: literal
  std::string literal;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // what lies between the matches is treated as a match, and the matches as not
};
/// A space before every piece that does not begin with one.
struct PrefixSpaceStep {};
/// Spaces become `replacement`; one is put before a piece that does not begin with it; then, perhaps, a cut
/// before each.
struct MetaspaceStep {
  enum class Prepend { kNever, kFirst, kAlways };  // kFirst: only at the start of the whole text
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep>;

/// A line of the table of names.
struct PreTokenizerName {
  std::string_view name;   // tokenizer.ggml.pre
  bool whole_piece_first;  // see PreTokenizer::whole_piece_first
};

class PreTokenizer {
 public:
  /// name: tokenizer.ggml.pre. Errors: kUnsupported naming the known ones.
  static Result<std::unique_ptr<PreTokenizer>> Create(std::string_view name);
  /// The names under which GGUF files have these steps; none when no known one cuts every text as they do.
  /// (Contractions of letters outside ASCII differ under all of them.)
  static std::vector<PreTokenizerName> NamesOf(std::span<const PreTokenizerStep> steps);
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  /// A piece that is a token as a whole is that token, whatever the merges say (Llama 3).
  bool whole_piece_first() const { return whole_piece_first_; }
  /// Whether BOS is added when the metadata does not say.
  bool adds_bos_by_default() const { return adds_bos_by_default_; }

  /// Cuts texts. Belongs to one thread; the PreTokenizer may be shared and must outlive it.
  class Splitter {
   public:
    explicit Splitter(const PreTokenizer& pre_tokenizer);

    /// The pieces of `text`, none empty, in order: views into `text`, or into strings of this splitter, which
    /// live as long as it. at_start: `text` is the start of the whole text. Valid until the next call.
    const std::vector<std::string_view>& Split(std::string_view text, bool at_start);

   private:
    void Apply(const SplitStep& step, SplitPattern::Matcher* matcher, std::string_view piece);
    void Apply(const PrefixSpaceStep& step, SplitPattern::Matcher* matcher, std::string_view piece);
    void Apply(const MetaspaceStep& step, SplitPattern::Matcher* matcher, std::string_view piece);
    void Cut(const SplitStep& step, SplitPattern::Matcher* matcher, std::string_view text);

    const PreTokenizer& pre_tokenizer_;
    std::vector<std::unique_ptr<SplitPattern::Matcher>>
        matchers_;  // of each step; null where it has no pattern
    std::vector<std::string_view> pieces_, next_;
    std::deque<std::string> made_;
    bool at_start_ = false;
  };

 private:
  std::vector<PreTokenizerStep> steps_;
  bool whole_piece_first_ = false, adds_bos_by_default_ = false;
};

}  // namespace blockgtq
