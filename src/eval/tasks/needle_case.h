// The tasks of `needle`: which facts are hidden in a text, what is asked about them, what must be found.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/random.h"

namespace blockgtq {

/// A sentence to hide and where: 0 the beginning of the text, 1 its end.
struct Needle {
  std::string sentence;
  double depth = 0;
};

struct NeedleCase {
  std::string intro;                  // before the text
  std::vector<Needle> needles;        // by depth
  std::string question;               // after the text
  std::string answer_start;           // what the answer is made to begin with
  std::vector<std::string> expected;  // must all stand in the answer
};

struct NeedleTask {
  std::string_view name;
  std::string_view summary;
  int max_new_tokens;
  NeedleCase (*make)(double depth, Xoshiro256& random);
};

/// single, distractor, multi, multikey, multivalue, multiquery, vartrack.
std::span<const NeedleTask> NeedleTasks();
/// Null when there is none of that name.
const NeedleTask* FindNeedleTask(std::string_view name);

/// Share of `expected` that stands in `answer`, capitals and small letters of ASCII alike. expected must not
/// be empty.
double ShareFound(std::span<const std::string> expected, std::string_view answer);

}  // namespace blockgtq
