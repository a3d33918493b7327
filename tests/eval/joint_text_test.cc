// Which tokens a calibration with a budget runs: the promise of a plan is measured on text that neither the
// statistics nor the probes saw, from all over the text.
#include "src/eval/joint_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "src/engine/bundled_text.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

constexpr Token kStart = -1;

/// 0, 1, ...: each token says where it stood.
std::vector<Token> Numbered(size_t count) {
  std::vector<Token> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

JointText Split(size_t count, const JointOptions& options, int64_t context = 4096) {
  const std::vector<Token> all = Numbered(count), start = {kStart};
  return SplitJointText(all, std::min<int64_t>(options.tokens, static_cast<int64_t>(count)), start, context,
                        options);
}

/// The first of a window's tokens is the prompt's start, the others are those of the text from `first` on.
void ExpectWindow(std::span<const Token> window, Token first) {
  EXPECT_EQ(window.front(), kStart);
  for (size_t i = 1; i < window.size(); ++i) ASSERT_EQ(window[i], first + static_cast<Token>(i));
}

JointOptions Options() {
  JointOptions options;
  options.protection = {0, 0};
  options.tokens = 1000;
  options.probe_tokens = 300;   // a window and a shorter one
  options.check_tokens = 1100;  // two windows and some
  return options;
}

TEST(JointText, ChecksAreSpreadOverWhatFollowsTheProbes) {
  const JointText text = Split(1000 + 300 + 1024 + 600, Options());
  EXPECT_FALSE(text.short_text);
  EXPECT_EQ(text.measured, Numbered(1000));
  const std::span<const Token> probed(text.probed), checked(text.checked);
  ASSERT_EQ(probed.size(), 300u);
  ExpectWindow(probed.first(256), 1000);
  ExpectWindow(probed.subspan(256), 1256);
  ASSERT_EQ(checked.size(), 1024u);
  ASSERT_EQ(text.check_window, 512);
  ExpectWindow(checked.first(512), 1300 + 300);  // 600 tokens are left out, a half before each window
  ExpectWindow(checked.subspan(512), 1300 + 512 + 600);
}

// What is left unseen is checked, whole windows of it; only without one are seen tokens.
TEST(JointText, FewerTokensAreCheckedBeforeSeenOnesAre) {
  const JointText fewer = Split(1000 + 300 + 1000, Options());
  EXPECT_FALSE(fewer.short_text);
  ASSERT_EQ(fewer.checked.size(), 512u);
  ExpectWindow(fewer.checked, 1300 + 488);
  EXPECT_FALSE(Split(1000 + 300 + 512, Options()).short_text);
  const JointText text = Split(1000 + 300 + 511, Options());
  EXPECT_TRUE(text.short_text);
  ASSERT_EQ(text.checked.size(), 512u);  // of the last half, 905
  ExpectWindow(std::span(text.probed).first(256), 1811 - 905 - 300);
}

TEST(JointText, CheckTokensDoNotMoveTheProbes) {
  JointOptions few = Options();
  few.check_tokens = 64;
  EXPECT_EQ(Split(3000, few).probed, Split(3000, Options()).probed);
  EXPECT_EQ(Split(3000, few).checked.size(), 64u);
}

TEST(JointText, AShortTextsLastTokensAreProbedAndChecked) {
  const JointText text = Split(500, Options());
  EXPECT_TRUE(text.short_text);
  ASSERT_EQ(text.probed.size(), 250u);
  ASSERT_EQ(text.checked.size(), 250u);
  ExpectWindow(text.probed, 0);
  ExpectWindow(text.checked, 250);
}

TEST(JointText, WindowsKeepToTheContext) {
  const JointText text = Split(3000, Options(), 128);
  EXPECT_EQ(text.probe_window, 128);
  EXPECT_EQ(text.check_window, 128);
  EXPECT_EQ(text.checked[128], kStart);
}

// A sequence no longer than the context is what statistics need; probes and checks have windows of their own.
TEST(JointText, ATextPastTheContextIsChecked) {
  const auto model = OpenModel(TinyModelPath("llama"));
  ASSERT_EQ(model->config().context_length, 512);
  const auto text = TakeJointText(*model, BundledCalibrationText(), Options());
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_FALSE(text->short_text);
  EXPECT_EQ(text->measured.size(), 512u);
  EXPECT_EQ(text->checked.size(), 1024u);
  const auto ids = model->tokenizer().Encode(BundledCalibrationText().substr(0, 20000), false);
  EXPECT_TRUE(std::equal(text->probed.begin(), text->probed.end(), ids.begin() + 512));
}

// What lies within the sinks and the recent window is exact: a divergence from there would promise too much.
TEST(JointText, ChecksWithinTheRecentWindowAreRefused) {
  const auto model = OpenModel(TinyModelPath("llama"));
  JointOptions options = Options();
  options.protection = {4, 64};
  options.check_tokens = 100;
  const Status status = TakeJointText(*model, BundledCalibrationText(), options).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--check-tokens"), std::string::npos) << status.message();
  options.check_tokens = 200;
  EXPECT_TRUE(TakeJointText(*model, BundledCalibrationText(), options).ok());
}

}  // namespace
}  // namespace blockgtq::test
