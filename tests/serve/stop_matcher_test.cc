// Stop strings against a search of the whole text.
#include "src/serve/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace blockgtq::serve {
namespace {

TEST(StopMatcher, ShowsWhatASearchOfTheWholeTextShowsHoweverItIsCut) {
  std::mt19937 generator(5);
  const auto letters = [&](size_t count) {
    std::string text(count, 'a');
    for (char& c : text) c = static_cast<char>('a' + generator() % 2);
    return text;
  };
  int matched = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = generator() % 4; i > 0; --i) stops.push_back(letters(1 + generator() % 6));
    const std::string text = letters(generator() % 30);
    StopMatcher matcher(stops);
    std::string shown;
    size_t fed = 0;
    while (fed < text.size() && !matcher.matched()) {
      const size_t n = std::min<size_t>(1 + generator() % 5, text.size() - fed);
      shown += matcher.Push(text.substr(fed, n));
      fed += n;
      size_t earliest = std::string::npos;  // in what was fed
      for (const std::string& stop : stops) earliest = std::min(earliest, text.substr(0, fed).find(stop));
      ASSERT_EQ(matcher.matched(), earliest != std::string::npos);
      if (matcher.matched()) {
        ASSERT_EQ(shown, text.substr(0, earliest));
      }
    }
    matched += matcher.matched();
    shown += matcher.Finish();
    if (!matcher.matched()) {
      ASSERT_EQ(shown, text);
    }
  }
  EXPECT_GT(matched, 500);
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStopString) {
  StopMatcher matcher({"\n\n", "END"});
  EXPECT_EQ(matcher.Push("one\n"), "one");
  EXPECT_EQ(matcher.Push("two E"), "\ntwo ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("d"), "ENd");
  EXPECT_EQ(matcher.Push("EN"), "");
  EXPECT_EQ(matcher.Finish(), "EN");
}

}  // namespace
}  // namespace blockgtq::serve
