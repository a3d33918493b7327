// The names of GGUF files, and the steps.
#include "src/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/text/utf8.h"

namespace blockgtq {
namespace {

using namespace patterns;

constexpr size_t kMaxPatterns = 6;

struct Definition {
  std::string_view name;
  std::string_view patterns[kMaxPatterns];  // one after the other, each inside the pieces of the one before
  bool whole_piece_first;
  bool adds_bos_by_default;
};

const Definition kDefinitions[] = {
    {"smollm", {kDigit, kGpt2}, false, false},
    {"qwen2", {kQwen2}, false, false},
    {"deepseek-r1-qwen", {kQwen2}, false, false},
    {"llama-bpe", {kLlama3}, true, true},
    {"gpt-2", {kGpt2}, false, false},
    {"tekken", {kTekken}, true, true},
    {"glm4", {kLlama3}, false, false},
    {"chatglm-bpe", {kLlama3}, false, false},
    {"dbrx", {kLlama3}, false, false},  // OLMo 2 is converted under this name
    {"gpt-4o", {kGpt4o}, false, false},
    {"deepseek-llm",
     {kNewline, kDeepSeekLetters, kDeepSeekPunctuation, kTrailingSpaces, kCjkHangul, kDigit},
     false,
     false},
    {"deepseek-coder", {kNewline, kSpaceLetters, kSpacePunctuation, kCjkHangul, kDigit}, false, false},
    {"deepseek-v3", {kThreeDigits, kCjkKana, kDeepSeek3}, false, false},
};

// Whether the matches of the pattern, one after the other, are the whole text, whatever it is.
bool CoversAllText(std::string_view published) {
  constexpr std::string_view kCovering[] = {kGpt2, kLlama3, kQwen2, kTekken, kGpt4o};
  return std::count(std::begin(kCovering), std::end(kCovering), published) != 0;
}

// The pattern of a step that cuts at its matches and keeps everything; nothing for other steps.
std::string_view IsolatedPattern(const PreTokenizerStep& step) {
  const auto* split = std::get_if<SplitStep>(&step);
  if (split == nullptr || split->pattern == nullptr) return {};
  const std::string_view published = split->pattern->published();
  const bool isolated = split->behavior == SplitStep::Behavior::kIsolated;
  // What lies between the matches is removed, but there is nothing.
  const bool keeps_matches =
      split->behavior == SplitStep::Behavior::kRemoved && split->invert && CoversAllText(published);
  return isolated || keeps_matches ? published : std::string_view();
}

}  // namespace

std::vector<PreTokenizerName> PreTokenizer::NamesOf(std::span<const PreTokenizerStep> steps) {
  std::vector<PreTokenizerName> names;
  for (const Definition& d : kDefinitions) {
    const auto* end = std::find(std::begin(d.patterns), std::end(d.patterns), std::string_view());
    if (std::equal(std::begin(d.patterns), end, steps.begin(), steps.end(),
                   [](std::string_view published, const PreTokenizerStep& step) {
                     return IsolatedPattern(step) == published;
                   })) {
      names.push_back({d.name, d.whole_piece_first});
    }
  }
  return names;
}

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
  std::vector<PreTokenizerStep> steps;
  for (const std::string_view published : found->patterns) {
    if (published.empty()) break;
    SplitStep step;
    BGTQ_ASSIGN_OR_RETURN(step.pattern, SplitPattern::Create(published, ContractionCase::kAscii));
    steps.emplace_back(std::move(step));
  }
  auto result = std::make_unique<PreTokenizer>(std::move(steps));
  result->whole_piece_first_ = found->whole_piece_first;
  result->adds_bos_by_default_ = found->adds_bos_by_default;
  return result;
}

PreTokenizer::Splitter::Splitter(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {
  for (const PreTokenizerStep& step : pre_tokenizer.steps_) {
    const auto* split = std::get_if<SplitStep>(&step);
    matchers_.push_back(split != nullptr && split->pattern != nullptr
                            ? std::make_unique<SplitPattern::Matcher>(split->pattern)
                            : nullptr);
  }
}

const std::vector<std::string_view>& PreTokenizer::Splitter::Split(std::string_view text, bool at_start) {
  pieces_.clear();
  if (!text.empty()) pieces_.push_back(text);
  for (size_t s = 0; s < matchers_.size(); ++s) {
    next_.clear();
    for (size_t p = 0; p < pieces_.size(); ++p) {
      at_start_ = at_start && p == 0;
      std::visit([&](const auto& step) { Apply(step, matchers_[s].get(), pieces_[p]); },
                 pre_tokenizer_.steps_[s]);
    }
    pieces_.swap(next_);
  }
  return pieces_;
}

void PreTokenizer::Splitter::Apply(const SplitStep& step, SplitPattern::Matcher* matcher,
                                   std::string_view piece) {
  if (step.pattern == nullptr) return Cut(step, matcher, piece);
  while (!piece.empty()) {
    const std::string_view valid = piece.substr(0, ValidUtf8Prefix(piece));
    if (!valid.empty()) Cut(step, matcher, valid);
    piece.remove_prefix(valid.size());
    size_t invalid = 0;
    while (invalid < piece.size()) {
      const Utf8Unit unit = FirstUtf8Unit(piece.substr(invalid));
      if (unit.kind == Utf8Kind::kValid) break;
      invalid += unit.bytes;
    }
    if (invalid > 0) next_.push_back(piece.substr(0, invalid));
    piece.remove_prefix(invalid);
  }
}

void PreTokenizer::Splitter::Cut(const SplitStep& step, SplitPattern::Matcher* matcher,
                                 std::string_view text) {
  bool previous_match = false;
  const size_t first = next_.size();
  const auto emit = [&](size_t begin, size_t end, bool is_match) {
    if (begin == end) return;
    is_match = is_match != step.invert;
    const std::string_view part = text.substr(begin, end - begin);
    switch (step.behavior) {
      case SplitStep::Behavior::kIsolated:
        next_.push_back(part);
        break;
      case SplitStep::Behavior::kRemoved:
        if (!is_match) next_.push_back(part);
        break;
      case SplitStep::Behavior::kMergedWithPrevious:
        if (is_match && !previous_match && next_.size() > first) {
          next_.back() = {next_.back().data(), next_.back().size() + part.size()};  // adjacent in `text`
        } else {
          next_.push_back(part);
        }
        previous_match = is_match;
        break;
    }
  };
  const auto find = [&](size_t from, size_t* begin, size_t* end) {
    if (step.pattern != nullptr) return matcher->Next(text, from, begin, end);
    *begin = text.find(step.literal, from);
    *end = *begin + step.literal.size();
    return *begin != std::string_view::npos;
  };
  size_t at = 0;
  for (size_t begin = 0, end = 0; find(at, &begin, &end); at = end) {
    emit(at, begin, false);
    emit(begin, end, true);
  }
  emit(at, text.size(), false);
}

void PreTokenizer::Splitter::Apply(const PrefixSpaceStep&, SplitPattern::Matcher*, std::string_view piece) {
  if (!piece.starts_with(' ')) piece = made_.emplace_back(" " + std::string(piece));
  next_.push_back(piece);
}

void PreTokenizer::Splitter::Apply(const MetaspaceStep& step, SplitPattern::Matcher*,
                                   std::string_view piece) {
  std::string text;
  for (const char c : piece) c == ' ' ? text.append(step.replacement) : text.append(1, c);
  const bool prepend = step.prepend == MetaspaceStep::Prepend::kAlways ||
                       (step.prepend == MetaspaceStep::Prepend::kFirst && at_start_);
  if (prepend && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
  std::string_view rest = made_.emplace_back(std::move(text));
  while (step.split && !rest.empty()) {
    const size_t end = std::min(rest.find(step.replacement, step.replacement.size()), rest.size());
    // A piece that does not begin with the replacement ends where the first one begins.
    const size_t stop =
        rest.starts_with(step.replacement) ? end : std::min(rest.find(step.replacement), rest.size());
    next_.push_back(rest.substr(0, stop));
    rest.remove_prefix(stop);
  }
  if (!rest.empty()) next_.push_back(rest);
}

}  // namespace blockgtq
