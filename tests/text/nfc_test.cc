// Normalization Form C against Python's unicodedata (tests/data/text/make_nfc.py) and against its own
// definition.
#include "src/text/nfc.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/text/test_vocab.h"

namespace blockgtq {
namespace {

TEST(Nfc, GivesWhatUnicodedataGives) {
  const auto golden = test::ReadJson("text/nfc.json");
  ASSERT_GE(golden["cases"].size(), 500u);
  for (const auto& row : golden["cases"]) {
    EXPECT_EQ(ToNfc(row[0].get<std::string>()), row[1].get<std::string>()) << row[0];
  }
}

TEST(Nfc, KeepsInvalidBytesAndComposesAroundThem) {
  EXPECT_EQ(ToNfc("e\xCC\x81\xFF"
                  "e\xCC\x81"),
            "\xC3\xA9\xFF\xC3\xA9");
  EXPECT_EQ(ToNfc("e\xFF\xCC\x81"), "e\xFF\xCC\x81");  // the mark has lost its letter
  EXPECT_EQ(ToNfc("\xCC"), "\xCC");
  EXPECT_EQ(ToNfc(""), "");
}

TEST(Nfc, IsStable) {
  const auto golden = test::ReadJson("text/nfc.json");
  for (const auto& row : golden["cases"]) {
    const std::string once = ToNfc(row[0].get<std::string>());
    EXPECT_EQ(ToNfc(once), once);
  }
}

}  // namespace
}  // namespace blockgtq
