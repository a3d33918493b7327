// See aime.h.
#include "src/eval/tasks/aime.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/random.h"
#include "src/formats/json_fields.h"

namespace blockgtq {
namespace {

constexpr int kLargestAnswer = 999;
constexpr int kTooLarge = 1'000'000;  // stands for every integer of more digits
constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr std::string_view kInstruction =
    "\n\nPlease reason step by step, and put your final answer within \\boxed{}.";

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// True when three digits and then no fourth stand at `at`.
bool IsThousandsGroup(std::string_view text, size_t at) {
  if (at + 3 > text.size()) return false;
  if (!IsDigit(text[at]) || !IsDigit(text[at + 1]) || !IsDigit(text[at + 2])) return false;
  return at + 3 == text.size() || !IsDigit(text[at + 3]);
}

/// The integers in a text, in order; those of seven digits and more as kTooLarge. Decimal fractions are left
/// out. A comma between digits joins where exactly three follow (1,024; in LaTeX also 1{,}024).
std::vector<int> Integers(std::string_view text) {
  std::vector<int> integers;
  for (size_t i = 0; i < text.size();) {
    if (!IsDigit(text[i])) {
      ++i;
      continue;
    }
    const bool after_point = i >= 2 && text[i - 1] == '.' && IsDigit(text[i - 2]);
    std::string digits;
    while (i < text.size()) {
      if (IsDigit(text[i])) {
        digits += text[i++];
      } else if (text[i] == ',' && IsThousandsGroup(text, i + 1)) {
        ++i;
      } else if (text.substr(i, 3) == "{,}" && IsThousandsGroup(text, i + 3)) {
        i += 3;
      } else {
        break;
      }
    }
    const bool before_point = i + 1 < text.size() && text[i] == '.' && IsDigit(text[i + 1]);
    if (after_point || before_point) continue;
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
    integers.push_back(digits.size() > 6 ? kTooLarge : std::stoi(digits));
  }
  return integers;
}

/// The content of the last \boxed{...} that is closed; nullopt: none.
std::optional<std::string_view> LastBox(std::string_view text) {
  static constexpr std::string_view kBoxed = "\\boxed{";
  for (size_t at = text.rfind(kBoxed); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind(kBoxed, at - 1)) {
    const size_t begin = at + kBoxed.size();
    int depth = 1;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == '{') ++depth;
      if (text[i] == '}' && --depth == 0) return text.substr(begin, i - begin);
    }
  }
  return std::nullopt;
}

Result<int> ReadAnswer(const nlohmann::json& line, const std::string& where) {
  const auto found = line.find("answer");
  if (found != line.end()) {
    if (found->is_number_integer() && found->get<int64_t>() >= 0 && found->get<int64_t>() <= kLargestAnswer) {
      return found->get<int>();
    }
    if (found->is_string()) {
      const std::string text = found->get<std::string>();
      const std::vector<int> integers = Integers(text);
      if (integers.size() == 1 && integers[0] <= kLargestAnswer) return integers[0];
    }
  }
  return Status(ErrorCode::kCorruptFile, where + ": 'answer' is not an integer from 0 to 999");
}

}  // namespace

std::optional<int> ExtractAimeAnswer(std::string_view text) {
  if (const std::optional<std::string_view> box = LastBox(text); box.has_value()) {
    const std::vector<int> boxed = Integers(*box);
    if (!boxed.empty())
      return boxed.back() <= kLargestAnswer ? std::optional<int>(boxed.back()) : std::nullopt;
  }
  const std::vector<int> all = Integers(text);
  const auto last = std::find_if(all.rbegin(), all.rend(), [](int n) { return n <= kLargestAnswer; });
  return last == all.rend() ? std::nullopt : std::optional<int>(*last);
}

Result<std::vector<AimeProblem>> ParseAime(std::string_view content, const std::string& path) {
  std::vector<AimeProblem> problems;
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", path, number);
    const Result<nlohmann::json> parsed = ParseBoundedJson(line, kMaxLineBytes, 8);
    if (!parsed.ok()) return parsed.status().WithContext(where);
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(*parsed, where));
    AimeProblem& problem = problems.emplace_back();
    BGTQ_ASSIGN_OR_RETURN(problem.text, fields.Text(parsed->contains("question") ? "question" : "problem"));
    BGTQ_ASSIGN_OR_RETURN(problem.answer, ReadAnswer(*parsed, where));
  }
  if (problems.empty()) return Status(ErrorCode::kCorruptFile, path + ": has no problems");
  return problems;
}

std::vector<Token> AimeSuite::PromptTokens(const AimeProblem& problem) const {
  return frame_.Wrap(model_.tokenizer().Encode(problem.text + std::string(kInstruction), false));
}

Result<std::unique_ptr<AimeSuite>> AimeSuite::Create(const LoadedModel& model,
                                                     std::vector<AimeProblem> problems,
                                                     const AimeOptions& options) {
  std::unique_ptr<AimeSuite> suite(new AimeSuite(model, std::move(problems), options));
  suite->frame_ = MakePlainFrame(model, "\n");
  if (options.chat) {
    BGTQ_ASSIGN_OR_RETURN(suite->frame_, MakeChatFrame(model));
  }
  int64_t longest = 0;
  for (const AimeProblem& problem : suite->problems_) {
    longest = std::max(longest, static_cast<int64_t>(suite->PromptTokens(problem).size()));
  }
  const int64_t limit = model.config().context_length;
  if (longest + options.max_new_tokens > limit) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("{} new tokens: with a problem of {} the model's context of {} is too short; at "
                    "most {} fit (-n)",
                    options.max_new_tokens, longest, limit, std::max<int64_t>(limit - longest, 0)));
  }
  suite->context_tokens_ = longest + options.max_new_tokens;
  return suite;
}

std::string AimeSuite::id(size_t i) const { return fmt::format("{}/{}", problem(i), i / problems_.size()); }

Result<TaskPrompt> AimeSuite::Prompt(size_t i) const {
  TaskPrompt prompt;
  prompt.tokens = PromptTokens(problems_[problem(i)]);
  prompt.max_new_tokens = options_.max_new_tokens;
  // Of the problem and its try, so that a sample is the same whenever it runs.
  const uint64_t round = i / problems_.size();
  prompt.seed = MixBits(MixBits(options_.seed + 0x9e3779b97f4a7c15ull * (problem(i) + 1)) + round + 1);
  return prompt;
}

Result<nlohmann::json> AimeSuite::Judge(size_t i, const std::string& answer) const {
  const std::optional<int> given = ExtractAimeAnswer(answer);
  const int wanted = problems_[problem(i)].answer;
  nlohmann::json line = {{"score", given == wanted ? 1 : 0}, {"expected", wanted}, {"given", nullptr}};
  if (given.has_value()) line["given"] = *given;
  return line;
}

AimeScore ScoreAime(const AimeSuite& suite, const TaskRun& run, uint64_t seed) {
  const size_t problems = suite.problems();
  std::vector<double> right(problems, 0), tried(problems, 0);
  for (const TaskSample& sample : run.samples) {
    right[suite.problem(sample.index)] += sample.score;
    tried[suite.problem(sample.index)] += 1;
  }
  AimeScore score;
  std::vector<double> shares;
  for (size_t p = 0; p < problems; ++p) {
    score.by_problem.push_back(tried[p] > 0 ? right[p] / tried[p] : -1);
    if (tried[p] > 0) shares.push_back(right[p] / tried[p]);
  }
  score.problems = shares.size();
  score.pass_at_1 = BootstrapMean(shares, seed);
  return score;
}

}  // namespace blockgtq
