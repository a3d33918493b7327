// See text_scores.h.
#include "src/eval/tasks/text_scores.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "src/eval/tasks/unicode_words.h"

namespace blockgtq {
namespace {

using Words = std::vector<std::string>;

/// `rouge`'s sentences: parts between full stops, each with its words parted by single spaces. A part of
/// white space alone is a sentence of one empty word there, since ''.split(' ') is ['']; here too.
std::vector<Words> Sentences(std::string_view text) {
  std::vector<Words> sentences;
  for (const std::string& part : SplitAt(text, '.')) {
    if (part.empty()) continue;
    Words words = SplitWords(part);
    if (words.empty()) words.emplace_back();
    sentences.push_back(std::move(words));
  }
  return sentences;
}

std::set<std::string> AllWords(const std::vector<Words>& sentences) {
  std::set<std::string> words;
  for (const Words& sentence : sentences) words.insert(sentence.begin(), sentence.end());
  return words;
}

/// Adds the words of a longest common subsequence of x and y. Among several the one that `rouge` walks back
/// to: where lengths tie it goes on with the shorter y.
void AddCommonSubsequence(const Words& x, const Words& y, std::set<std::string>& found) {
  const size_t columns = y.size() + 1;
  std::vector<int> length((x.size() + 1) * columns, 0);
  for (size_t i = 1; i <= x.size(); ++i) {
    for (size_t j = 1; j <= y.size(); ++j) {
      length[i * columns + j] = x[i - 1] == y[j - 1]
                                    ? length[(i - 1) * columns + j - 1] + 1
                                    : std::max(length[(i - 1) * columns + j], length[i * columns + j - 1]);
    }
  }
  size_t i = x.size(), j = y.size();
  while (i > 0 && j > 0) {
    if (x[i - 1] == y[j - 1]) {
      found.insert(x[i - 1]);
      --i;
      --j;
    } else if (length[(i - 1) * columns + j] > length[i * columns + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Runs of ASCII digits.
std::vector<std::string> Numbers(std::string_view text) {
  std::vector<std::string> numbers;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && IsDigit(text[end])) ++end;
    if (end > i) numbers.emplace_back(text.substr(i, end - i));
    i = end + 1;
  }
  return numbers;
}

}  // namespace

double QaF1(std::string_view prediction, std::string_view truth) {
  const Words predicted = SplitWords(NormalizeAnswer(prediction)),
              wanted = SplitWords(NormalizeAnswer(truth));
  std::map<std::string, int> left;
  for (const std::string& word : wanted) ++left[word];
  int same = 0;
  for (const std::string& word : predicted) {
    const auto found = left.find(word);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++same;
  }
  if (same == 0) return 0;
  const double precision = static_cast<double>(same) / static_cast<double>(predicted.size());
  const double recall = static_cast<double>(same) / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

double RougeL(std::string_view prediction, std::string_view truth) {
  const std::vector<Words> predicted = Sentences(prediction), wanted = Sentences(truth);
  if (predicted.empty() || wanted.empty()) return 0;
  std::set<std::string> found;
  for (const Words& reference : wanted) {
    for (const Words& sentence : predicted) AddCommonSubsequence(reference, sentence, found);
  }
  const double common = static_cast<double>(found.size());
  const double recall = common / static_cast<double>(AllWords(wanted).size());
  const double precision = common / static_cast<double>(AllWords(predicted).size());
  return 2 * (precision * recall) / (precision + recall + 1e-8);
}

double ClassificationScore(std::string_view prediction, std::string_view truth,
                           std::span<const std::string> classes) {
  std::vector<std::string> named;
  for (const std::string& name : classes) {
    if (prediction.find(name) != std::string_view::npos) named.push_back(name);
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string name = named[i];
    if (name == truth || truth.find(name) == std::string_view::npos) continue;
    named.erase(std::find(named.begin(), named.end(), name));  // then ++i passes over the next one
  }
  if (std::find(named.begin(), named.end(), truth) == named.end()) return 0;
  return 1.0 / static_cast<double>(named.size());
}

int FuzzRatio(std::u32string_view a, std::u32string_view b) {
  if (a == b) return 100;
  if (a.empty() || b.empty()) return 0;
  std::vector<size_t> previous(b.size() + 1, 0), row(b.size() + 1, 0);  // of the common subsequence's length
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = a[i - 1] == b[j - 1] ? previous[j - 1] + 1 : std::max(previous[j], row[j - 1]);
    }
    std::swap(previous, row);
  }
  const double ratio =
      2.0 * static_cast<double>(previous[b.size()]) / static_cast<double>(a.size() + b.size());
  return static_cast<int>(std::nearbyint(100 * ratio));  // halves to even, as Python's round
}

double CodeSimilarity(std::string_view prediction, std::string_view truth) {
  prediction.remove_prefix(std::min(prediction.find_first_not_of('\n'), prediction.size()));
  std::string line;
  for (const std::string& candidate : SplitAt(prediction, '\n')) {
    if (candidate.find_first_of("`#") == std::string::npos && candidate.find("//") == std::string::npos) {
      line = candidate;
      break;
    }
  }
  return FuzzRatio(CodePoints(line), CodePoints(truth)) / 100.0;
}

double RetrievalScore(std::string_view prediction, std::string_view truth) {
  static constexpr std::string_view kParagraph = "Paragraph ";
  std::string wanted;
  for (size_t at = truth.find(kParagraph); at != std::string_view::npos && wanted.empty();
       at = truth.find(kParagraph, at + 1)) {
    size_t end = at + kParagraph.size();
    while (end < truth.size() && IsDigit(truth[end])) wanted += truth[end++];
  }
  const std::vector<std::string> numbers = Numbers(prediction);
  if (numbers.empty() || wanted.empty()) return 0;
  return static_cast<double>(std::count(numbers.begin(), numbers.end(), wanted)) /
         static_cast<double>(numbers.size());
}

}  // namespace blockgtq
