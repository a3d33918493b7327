// The bundled texts are the files of data/, byte for byte.
#include "src/engine/bundled_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace blockgtq {
namespace {

std::string ReadSource(const std::string& path) {
  std::ifstream file(std::string(BGTQ_SOURCE_DIR) + "/" + path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(BundledText, IsTheDataFolderByteForByte) {
  const std::string train = ReadSource("data/wikitext2_train.txt");
  const std::string test = ReadSource("data/wikitext2_test.txt");
  ASSERT_GT(train.size(), 100'000u);
  ASSERT_GT(test.size(), 100'000u);
  EXPECT_EQ(BundledCalibrationText(), train);
  EXPECT_EQ(BundledScoringText(), test);
  const std::string haystack = ReadSource("data/northanger_abbey.txt");
  ASSERT_GT(haystack.size(), 100'000u);
  EXPECT_EQ(BundledHaystackText(), haystack);
}

TEST(BundledText, CalibrationAndScoringShareNoParagraph) {
  const std::string_view calibration = BundledCalibrationText(), scoring = BundledScoringText();
  size_t begin = 0, compared = 0;
  while (begin < scoring.size()) {
    const size_t end = std::min(scoring.find('\n', begin), scoring.size());
    const std::string_view line = scoring.substr(begin, end - begin);
    if (line.size() > 80) {
      EXPECT_EQ(calibration.find(line), std::string_view::npos) << line;
      ++compared;
    }
    begin = end + 1;
  }
  EXPECT_GT(compared, 100u);
}

}  // namespace
}  // namespace blockgtq
