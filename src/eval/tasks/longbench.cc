// See longbench.h.
#include "src/eval/tasks/longbench.h"

#include <fmt/format.h>

#include <algorithm>

namespace blockgtq {
namespace {

constexpr int64_t kSmallestCap = 32;  // below it nothing of a sample is left

}  // namespace

std::vector<Token> CutMiddle(std::vector<Token> tokens, int64_t cap) {
  if (static_cast<int64_t>(tokens.size()) <= cap) return tokens;
  const int64_t half = cap / 2;
  tokens.erase(tokens.begin() + half, tokens.end() - half);
  return tokens;
}

Result<std::unique_ptr<LongBenchSuite>> LongBenchSuite::Create(const LoadedModel& model,
                                                               std::vector<LongBenchData> data,
                                                               const LongBenchOptions& options) {
  std::unique_ptr<LongBenchSuite> suite(new LongBenchSuite(model, std::move(data)));
  suite->plain_ = suite->chat_ = MakePlainFrame(model);
  if (options.chat) {
    BGTQ_ASSIGN_OR_RETURN(suite->chat_, MakeChatFrame(model));
  }
  int64_t around = 0;  // the most tokens that stand around a prompt
  for (size_t d = 0; d < suite->data_.size(); ++d) {
    const LongBenchTask& task = *suite->data_[d].task;
    const ChatFrame& frame = task.chat ? suite->chat_ : suite->plain_;
    around = std::max(around, frame.tokens() + task.max_new_tokens);
    for (size_t s = 0; s < suite->data_[d].samples.size(); ++s) suite->places_.push_back({d, s});
  }
  const int64_t largest = model.config().context_length - around;
  suite->cap_ = options.cap > 0 ? options.cap : std::min(kLongBenchCap, largest);
  if (suite->cap_ > largest || suite->cap_ < kSmallestCap) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("cap {}: it must be {}..{}, so that {} tokens around a prompt fit the model's "
                              "context of {}",
                              suite->cap_, kSmallestCap, largest, around, model.config().context_length));
  }
  suite->context_tokens_ = suite->cap_ + around;
  return suite;
}

std::string LongBenchSuite::id(size_t i) const {
  return fmt::format("{}/{}", TaskOf(i).name, places_[i].sample);
}

double LongBenchSuite::work(size_t i) const {
  // Four bytes a token, about; a new token takes about as long as eight of a prompt.
  const double prompt = static_cast<double>(SampleOf(i).context.size()) / 4;
  return std::min(prompt, static_cast<double>(cap_)) + 8.0 * TaskOf(i).max_new_tokens;
}

Result<TaskPrompt> LongBenchSuite::Prompt(size_t i) const {
  const LongBenchTask& task = TaskOf(i);
  const std::string text = LongBenchPrompt(task, SampleOf(i));
  TaskPrompt prompt;
  prompt.tokens = (task.chat ? chat_ : plain_).Wrap(CutMiddle(model_.tokenizer().Encode(text, false), cap_));
  prompt.max_new_tokens = task.max_new_tokens;
  return prompt;
}

Result<nlohmann::json> LongBenchSuite::Judge(size_t i, const std::string& answer) const {
  return nlohmann::json{{"score", LongBenchScore(TaskOf(i), SampleOf(i), answer)},
                        {"answers", SampleOf(i).answers}};
}

}  // namespace blockgtq
