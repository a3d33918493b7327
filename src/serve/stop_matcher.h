// Stop strings in a text that comes in pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace blockgtq::serve {

class StopMatcher {
 public:
  /// stops: none empty; may be none.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// What of the text so far can be shown: all before the first stop string, less an end that may become one.
  /// Empty once matched().
  std::string Push(std::string_view piece);
  /// What was kept back.
  std::string Finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool matched_ = false;
};

}  // namespace blockgtq::serve
