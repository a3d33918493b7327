// A suite of tasks as the runner sees it: numbered samples, each a prompt and a judgement of the answer.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/engine/loaded_model.h"

namespace blockgtq {

struct TaskPrompt {
  std::vector<Token> tokens;
  int64_t max_new_tokens = 0;
  uint64_t seed = 0;  // of the sampler
};

class TaskSuite {
 public:
  virtual ~TaskSuite() = default;
  /// Samples, in the order in which they run.
  virtual size_t size() const = 0;
  /// Names sample i in the results file; no two are equal.
  virtual std::string id(size_t i) const = 0;
  /// The task that sample i counts for.
  virtual std::string task(size_t i) const = 0;
  /// About how long sample i takes, in any unit: for the time left.
  virtual double work(size_t i) const = 0;
  /// The most tokens, prompt and answer together, of any sample.
  virtual int64_t context_tokens() const = 0;
  virtual Result<TaskPrompt> Prompt(size_t i) const = 0;
  /// What the results file keeps of an answer to sample i, valid UTF-8: an object with "score" in 0..1.
  virtual Result<nlohmann::json> Judge(size_t i, const std::string& answer) const = 0;
};

}  // namespace blockgtq
