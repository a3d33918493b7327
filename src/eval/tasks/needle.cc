// See needle.h.
#include "src/eval/tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace blockgtq {
namespace {

/// A seed for each combination of values.
uint64_t Mixed(uint64_t seed, std::initializer_list<uint64_t> values) {
  for (const uint64_t value : values) seed = MixBits(seed * 0x9e3779b97f4a7c15ull + value + 1);
  return seed;
}

/// A sample's tokens but for the haystack's.
struct Parts {
  std::vector<Token> begin;                 // template, intro
  std::vector<std::vector<Token>> needles;  // in the case's order
  std::vector<Token> end;                   // question, template, the answer's start
  int64_t tokens = 0;                       // of all
};

Parts PartsOf(const Tokenizer& tokenizer, const ChatFrame& frame, const NeedleCase& made) {
  const auto add = [&](std::vector<Token>& to, const std::string& text) {
    const std::vector<Token> more = tokenizer.Encode(text, false);
    to.insert(to.end(), more.begin(), more.end());
  };
  Parts parts;
  parts.begin = frame.before;
  add(parts.begin, made.intro + "\n\n");
  for (const Needle& needle : made.needles) add(parts.needles.emplace_back(), " " + needle.sentence);
  add(parts.end, "\n\n" + made.question);
  parts.end.insert(parts.end.end(), frame.after.begin(), frame.after.end());
  if (frame.after.empty()) add(parts.end, "\n");  // without a template the answer needs a line of its own
  add(parts.end, made.answer_start);
  parts.tokens = static_cast<int64_t>(parts.begin.size() + parts.end.size());
  for (const std::vector<Token>& needle : parts.needles) parts.tokens += static_cast<int64_t>(needle.size());
  return parts;
}

}  // namespace

Result<std::unique_ptr<NeedleSuite>> NeedleSuite::Create(const LoadedModel& model, std::string_view haystack,
                                                         const NeedleOptions& options) {
  BGTQ_ASSIGN_OR_RETURN(Haystack text, Haystack::Create(model.tokenizer(), haystack));
  ChatFrame frame = MakePlainFrame(model);
  if (options.chat) {
    BGTQ_ASSIGN_OR_RETURN(frame, MakeChatFrame(model));
  }
  std::unique_ptr<NeedleSuite> suite(new NeedleSuite(model, std::move(text), std::move(frame)));
  suite->options_ = options;
  std::vector<std::string>& tasks = suite->options_.tasks;
  if (tasks.empty()) {
    for (const NeedleTask& task : NeedleTasks()) tasks.emplace_back(task.name);
  }
  if (options.lengths.empty() || options.depths.empty() || options.trials < 1) {
    return Status(ErrorCode::kInvalidArgument, "needle needs a length, a depth and a trial at least");
  }
  const auto repeated = [](auto values) {
    std::sort(values.begin(), values.end());
    return std::adjacent_find(values.begin(), values.end()) != values.end();
  };
  if (repeated(tasks) || repeated(options.lengths) || repeated(options.depths)) {
    return Status(ErrorCode::kInvalidArgument,
                  "a task, length or depth stands twice in its list: name each once");
  }
  const int64_t limit = model.config().context_length;
  for (const std::string& name : tasks) {
    const NeedleTask* task = FindNeedleTask(name);
    if (task == nullptr) {
      std::string known;
      for (const NeedleTask& one : NeedleTasks()) known += fmt::format(" {}", one.name);
      return Status(ErrorCode::kInvalidArgument, fmt::format("no needle task '{}'; known:{}", name, known));
    }
    for (const int64_t length : options.lengths) {
      const int64_t tokens = length + suite->NewTokens(*task);
      if (tokens > limit) {
        return Status(
            ErrorCode::kInvalidArgument,
            fmt::format("length {}: with {} new tokens for {} the model's context of {} is too "
                        "short; the longest is {}",
                        length, suite->NewTokens(*task), name, limit, limit - suite->NewTokens(*task)));
      }
      suite->context_tokens_ = std::max(suite->context_tokens_, tokens);
      for (const int depth : options.depths) {
        if (depth < 0 || depth > 100) {
          return Status(ErrorCode::kInvalidArgument,
                        fmt::format("depth {}: it is a percentage, 0..100", depth));
        }
        for (int trial = 0; trial < options.trials; ++trial) {
          const Sample& sample = suite->samples_.emplace_back(Sample{task, length, depth, trial});
          const Parts parts = PartsOf(model.tokenizer(), suite->frame_, suite->CaseOf(sample));
          if (parts.tokens >= length) {
            return Status(
                ErrorCode::kInvalidArgument,
                fmt::format("length {}: {} needs {} tokens for its sentences and question alone; use a "
                            "longer one",
                            length, name, parts.tokens));
          }
        }
      }
    }
  }
  // Short ones first: a mistake shows early, and an early stop leaves whole lengths.
  std::stable_sort(suite->samples_.begin(), suite->samples_.end(),
                   [](const Sample& a, const Sample& b) { return a.length < b.length; });
  return suite;
}

int64_t NeedleSuite::NewTokens(const NeedleTask& task) const {
  return options_.max_new_tokens > 0 ? options_.max_new_tokens : task.max_new_tokens;
}

std::string NeedleSuite::id(size_t i) const {
  const Sample& s = samples_[i];
  return fmt::format("{}/{}/{}/{}", s.task->name, s.length, s.depth, s.trial);
}

double NeedleSuite::work(size_t i) const {
  // A new token reads all weights, as about eight tokens of a prompt do.
  return static_cast<double>(samples_[i].length) + 8.0 * static_cast<double>(NewTokens(*samples_[i].task));
}

NeedleCase NeedleSuite::CaseOf(const Sample& sample) const {
  const uint64_t task = static_cast<uint64_t>(sample.task - NeedleTasks().data());
  Xoshiro256 random(
      Mixed(options_.seed, {1, task, static_cast<uint64_t>(sample.length),
                            static_cast<uint64_t>(sample.depth), static_cast<uint64_t>(sample.trial)}));
  return sample.task->make(sample.depth / 100.0, random);
}

Result<TaskPrompt> NeedleSuite::Prompt(size_t i) const {
  const Sample& sample = samples_[i];
  const NeedleCase made = CaseOf(sample);
  const Parts parts = PartsOf(model_.tokenizer(), frame_, made);
  // The same stretch of text for every task and depth of a trial, so that they differ in their needles alone.
  Xoshiro256 random(
      Mixed(options_.seed, {2, static_cast<uint64_t>(sample.length), static_cast<uint64_t>(sample.trial)}));
  const std::span<const int64_t> starts = haystack_.sentence_starts();
  const int64_t start = starts[static_cast<size_t>(random.Next() % starts.size())];
  const int64_t count = sample.length - parts.tokens;
  const std::vector<Token> text = haystack_.Slice(start, count);

  TaskPrompt prompt;
  prompt.max_new_tokens = NewTokens(*sample.task);
  prompt.tokens = parts.begin;
  int64_t from = 0;
  for (size_t k = 0; k < made.needles.size(); ++k) {
    const int64_t place = haystack_.PlaceFor(made.needles[k].depth, start, count);
    prompt.tokens.insert(prompt.tokens.end(), text.begin() + from, text.begin() + place);
    prompt.tokens.insert(prompt.tokens.end(), parts.needles[k].begin(), parts.needles[k].end());
    from = place;
  }
  prompt.tokens.insert(prompt.tokens.end(), text.begin() + from, text.end());
  prompt.tokens.insert(prompt.tokens.end(), parts.end.begin(), parts.end.end());
  return prompt;
}

Result<nlohmann::json> NeedleSuite::Judge(size_t i, const std::string& answer) const {
  const Sample& sample = samples_[i];
  const NeedleCase made = CaseOf(sample);
  return nlohmann::json{{"score", ShareFound(made.expected, answer)},
                        {"expected", made.expected},
                        {"length", sample.length},
                        {"depth", sample.depth},
                        {"trial", sample.trial}};
}

}  // namespace blockgtq
