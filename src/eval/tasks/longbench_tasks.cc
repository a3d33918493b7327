// See longbench_tasks.h. Source of the prompts, answer lengths and metrics: the benchmark's configuration
// (github.com/THUDM/LongBench, config/dataset2prompt.json, dataset2maxlen.json, eval.py, pred.py; MIT
// licence). The prompts define the benchmark: a changed word makes scores incomparable, so they stand here as
// published.
#include "src/eval/tasks/longbench_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/eval/tasks/text_scores.h"
#include "src/eval/tasks/unicode_words.h"
#include "src/formats/json_fields.h"

namespace blockgtq {
namespace {

constexpr std::string_view kPassagesPrompt =
    "Answer the question based on the given passages. Only give me the answer and do not output any other "
    "words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based on the given "
    "passages. "
    "Only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:";

constexpr std::array<LongBenchTask, 8> kTasks = {{
    {"2wikimqa", kPassagesPrompt, 32, true, false, LongBenchMetric::kQaF1},
    {"gov_report",
     "You are given a report by a government agency. Write a one-page summary of the "
     "report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
     512, true, false, LongBenchMetric::kRougeL},
    {"hotpotqa", kPassagesPrompt, 32, true, false, LongBenchMetric::kQaF1},
    {"lcc", "Please complete the code given below. \n{context}Next line of code:\n", 64, false, false,
     LongBenchMetric::kCode},
    {"multifieldqa_en",
     "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based "
     "on "
     "the above text, only give me the answer and do not output any other words.\n\nQuestion: "
     "{input}\nAnswer:",
     64, true, false, LongBenchMetric::kQaF1},
    {"passage_retrieval_en",
     "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the "
     "abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number "
     "of "
     "the paragraph that the abstract is from. The answer format must be like \"Paragraph 1\", \"Paragraph "
     "2\", "
     "etc.\n\nThe answer is: ",
     32, true, false, LongBenchMetric::kRetrieval},
    {"qasper",
     "You are given a scientific article and a question. Answer the question as concisely as you can, using "
     "a "
     "single phrase or sentence if possible. If the question cannot be answered based on the information in "
     "the "
     "article, write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or "
     "\"unanswerable\". Do not provide any explanation.\n\nArticle: {context}\n\n Answer the question based "
     "on "
     "the above article as concisely as you can, using a single phrase or sentence if possible. If the "
     "question "
     "cannot be answered based on the information in the article, write \"unanswerable\". If the question is "
     "a "
     "yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any "
     "explanation.\n\nQuestion: {input}\n\nAnswer:",
     128, true, false, LongBenchMetric::kQaF1},
    {"trec",
     "Please determine the type of the question below. Here are some examples of "
     "questions.\n\n{context}\n{input}",
     64, false, true, LongBenchMetric::kClassification},
}};

constexpr size_t kMaxLineBytes = size_t{16} << 20;
constexpr size_t kMaxList = 1000;

Result<std::vector<std::string>> TextList(const JsonFields& fields, const char* name,
                                          const std::string& where) {
  BGTQ_ASSIGN_OR_RETURN(const nlohmann::json* list, fields.Array(name, kMaxList));
  std::vector<std::string> texts;
  for (const nlohmann::json& text : *list) {
    if (!text.is_string()) {
      return Status(ErrorCode::kCorruptFile, fmt::format("{}: '{}' is not a list of texts", where, name));
    }
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

double ScoreOne(const LongBenchTask& task, const LongBenchSample& sample, std::string_view answer,
                std::string_view truth) {
  switch (task.metric) {
    case LongBenchMetric::kQaF1:
      return QaF1(answer, truth);
    case LongBenchMetric::kRougeL:
      return RougeL(answer, truth);
    case LongBenchMetric::kClassification:
      return ClassificationScore(answer, truth, sample.classes);
    case LongBenchMetric::kCode:
      return CodeSimilarity(answer, truth);
    case LongBenchMetric::kRetrieval:
      return RetrievalScore(answer, truth);
  }
  return 0;
}

}  // namespace

std::span<const LongBenchTask> LongBenchTasks() { return kTasks; }

const LongBenchTask* FindLongBenchTask(std::string_view name) {
  for (const LongBenchTask& task : kTasks) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

Result<std::vector<LongBenchSample>> ParseLongBench(std::string_view content, const LongBenchTask& task,
                                                    const std::string& path) {
  std::vector<LongBenchSample> samples;
  int64_t number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (SplitWords(line).empty()) continue;
    const std::string where = fmt::format("{}: line {}", path, number);
    const Result<nlohmann::json> parsed = ParseBoundedJson(line, kMaxLineBytes, 8);
    if (!parsed.ok()) return parsed.status().WithContext(where);
    BGTQ_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(*parsed, where));
    LongBenchSample& sample = samples.emplace_back();
    BGTQ_ASSIGN_OR_RETURN(sample.input, fields.Text("input"));
    BGTQ_ASSIGN_OR_RETURN(sample.context, fields.Text("context"));
    BGTQ_ASSIGN_OR_RETURN(sample.answers, TextList(fields, "answers", where));
    if (sample.answers.empty()) return Status(ErrorCode::kCorruptFile, where + ": 'answers' is empty");
    if (task.metric == LongBenchMetric::kClassification) {
      BGTQ_ASSIGN_OR_RETURN(sample.classes, TextList(fields, "all_classes", where));
    }
  }
  if (samples.empty()) return Status(ErrorCode::kCorruptFile, path + ": has no samples");
  return samples;
}

std::string LongBenchPrompt(const LongBenchTask& task, const LongBenchSample& sample) {
  std::string out;
  std::string_view rest = task.prompt;
  while (true) {
    const size_t at = rest.find('{');
    out += rest.substr(0, at);
    if (at == std::string_view::npos) return out;
    const size_t end = rest.find('}', at);
    out += rest.substr(at + 1, end - at - 1) == "context" ? sample.context : sample.input;
    rest.remove_prefix(end + 1);
  }
}

double LongBenchScore(const LongBenchTask& task, const LongBenchSample& sample, std::string_view answer) {
  if (task.first_line) {
    answer.remove_prefix(std::min(answer.find_first_not_of('\n'), answer.size()));
    answer = answer.substr(0, answer.find('\n'));
  }
  double best = 0;
  for (const std::string& truth : sample.answers)
    best = std::max(best, ScoreOne(task, sample, answer, truth));
  return best;
}

}  // namespace blockgtq
