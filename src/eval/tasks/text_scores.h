// LongBench's metrics (Bai et al. 2023, arXiv 2308.14508), each defined by a public Python program and
// reproduced to the last digit, with its peculiarities. Scores are 0..1.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace blockgtq {

/// F1 of the bags of words of two normalised answers (NormalizeAnswer).
double QaF1(std::string_view prediction, std::string_view truth);

/// ROUGE-L F1 as PyPI's `rouge` 1.0 computes it: sentences end at '.', the union of longest common
/// subsequences of all pairs of sentences, over different words. 0 when a text has no sentence.
double RougeL(std::string_view prediction, std::string_view truth);

/// 1 / number of classes named in the prediction, when the true one is among them. A named class that is a
/// part of the true one's name is not counted, but as in LongBench's loop the class after a dropped one is
/// skipped.
double ClassificationScore(std::string_view prediction, std::string_view truth,
                           std::span<const std::string> classes);

/// Similarity of the first line that looks like code (no `, # or //) to the true line: 1 - distance / total
/// length with insertions and deletions only, rounded to 1/100 as fuzzywuzzy does.
double CodeSimilarity(std::string_view prediction, std::string_view truth);

/// Share of the numbers in the prediction that are the true paragraph's. truth: "Paragraph N"; a truth that
/// is not so scores 0.
double RetrievalScore(std::string_view prediction, std::string_view truth);

/// fuzzywuzzy's ratio with python-Levenshtein, 0..100.
int FuzzRatio(std::u32string_view a, std::u32string_view b);

}  // namespace blockgtq
