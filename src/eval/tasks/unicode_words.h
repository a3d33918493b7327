// Text as Python's str methods see it, for metrics that are defined by Python programs. All input is UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace blockgtq {

/// str.split(): the parts between runs of Unicode white space.
std::vector<std::string> SplitWords(std::string_view text);
/// str.split(separator), with empty parts kept.
std::vector<std::string> SplitAt(std::string_view text, char separator);
/// Code points; bytes that are not UTF-8 count as U+FFFD each.
std::u32string CodePoints(std::string_view text);

/// LongBench's normalisation of short answers: lower case, without ASCII punctuation, without the words a, an
/// and the, single spaces. Word characters and lower case are Unicode's (PCRE2's tables).
std::string NormalizeAnswer(std::string_view text);

}  // namespace blockgtq
