// See stop_matcher.h.
#include "src/serve/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace blockgtq::serve {

std::string StopMatcher::Push(std::string_view piece) {
  if (matched_) return {};
  pending_ += piece;
  size_t first = std::string::npos, kept = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, pending_.find(stop));
    // The longest end of the text that begins this stop string.
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > kept; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) kept = n;
    }
  }
  if (first != std::string::npos) {
    matched_ = true;
    pending_.resize(first);
    return std::exchange(pending_, {});
  }
  std::string shown = pending_.substr(0, pending_.size() - kept);
  pending_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Finish() { return std::exchange(pending_, {}); }

}  // namespace blockgtq::serve
