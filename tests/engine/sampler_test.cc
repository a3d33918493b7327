// The sampler against distributions computed by hand.
#include "src/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace blockgtq {
namespace {

SamplerOptions Plain() {
  SamplerOptions options;
  options.temperature = 1;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  return options;
}

/// How often each token is drawn in `draws` draws.
std::map<Token, double> Shares(const SamplerOptions& options, const std::vector<float>& logits,
                               const std::vector<Token>& history = {}, int draws = 20000) {
  Sampler sampler(options);
  std::map<Token, double> shares;
  for (int i = 0; i < draws; ++i) {
    const auto token = sampler.Sample(logits, history);
    EXPECT_TRUE(token.ok());
    shares[*token] += 1.0 / draws;
  }
  return shares;
}

const std::vector<float> kLogits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOnATie) {
  SamplerOptions options = Plain();
  options.temperature = 0;
  Sampler sampler(options);
  EXPECT_EQ(*sampler.Sample(std::vector<float>{1, 3, 2}, {}), 1);
  EXPECT_EQ(*sampler.Sample(std::vector<float>{1, 3, 3}, {}), 1);
}

TEST(Sampler, DrawsFromTheSoftmax) {
  const auto shares = Shares(Plain(), kLogits);
  EXPECT_NEAR(shares.at(0), 0.5, 0.015);
  EXPECT_NEAR(shares.at(1), 0.3, 0.015);
  EXPECT_NEAR(shares.at(2), 0.15, 0.015);
  EXPECT_NEAR(shares.at(3), 0.05, 0.01);
}

TEST(Sampler, TemperatureSharpens) {
  SamplerOptions options = Plain();
  options.temperature = 0.5f;  // squares the probabilities: .25 .09 .0225 .0025 of .365
  const auto shares = Shares(options, kLogits);
  EXPECT_NEAR(shares.at(0), 0.25 / 0.365, 0.015);
  EXPECT_NEAR(shares.at(1), 0.09 / 0.365, 0.015);
}

TEST(Sampler, TopKKeepsTheKLikeliest) {
  SamplerOptions options = Plain();
  options.top_k = 2;
  const auto shares = Shares(options, kLogits);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(0), 0.5 / 0.8, 0.015);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatHoldsIt) {
  SamplerOptions options = Plain();
  options.top_p = 0.7f;
  EXPECT_EQ(Shares(options, kLogits).size(), 2u);
  options.top_p = 0.85f;
  EXPECT_EQ(Shares(options, kLogits).size(), 3u);
}

TEST(Sampler, MinPDropsTokensBelowAShareOfTheLikeliest) {
  SamplerOptions options = Plain();
  options.min_p = 0.25f;  // 0.125 of 0.5: drops 0.05
  EXPECT_EQ(Shares(options, kLogits).size(), 3u);
}

TEST(Sampler, RepeatPenaltyLooksAtRecentTokensOnly) {
  SamplerOptions options = Plain();
  options.temperature = 0;
  options.repeat_penalty = 2;
  options.repeat_last_n = 2;
  Sampler sampler(options);
  const std::vector<float> logits = {4, 3, 1};
  EXPECT_EQ(*sampler.Sample(logits, std::vector<Token>{0, 2}), 1);     // 4 / 2 < 3
  EXPECT_EQ(*sampler.Sample(logits, std::vector<Token>{0, 2, 2}), 0);  // 0 is out of the last two
  EXPECT_EQ(*sampler.Sample(std::vector<float>{-1, -1.5f}, std::vector<Token>{0}), 1);  // -1 * 2 < -1.5
}

TEST(Sampler, FrequencyAndPresencePenaltiesCountWhatWasDrawn) {
  SamplerOptions options = Plain();
  options.temperature = 0;
  options.frequency_penalty = 0.5f;
  options.presence_penalty = 0.25f;
  EXPECT_FALSE(options.greedy());
  Sampler sampler(options);
  const std::vector<float> logits = {4, 3, 1};
  // 4, then 4 - .5 k - .25 of token 0: 3.25, 2.75; token 1 once: 3 - .75. The history is not what was drawn.
  const std::vector<Token> history = {0, 0, 0, 0};
  std::vector<Token> drawn;
  for (int i = 0; i < 6; ++i) drawn.push_back(*sampler.Sample(logits, history));
  EXPECT_EQ(drawn,
            (std::vector<Token>{0, 0, 1, 0, 0, 1}));  // 2.75 < 3; 2.75, 2.25 at a tie the lower id, 2.25
}

TEST(Sampler, ABiasMovesItsTokenAlone) {
  SamplerOptions options = Plain();
  options.logit_bias = {{0, -100.0f}, {3, std::log(6.0f)}, {77, 5.0f}, {-1, 5.0f}};
  EXPECT_FALSE(options.greedy());
  const auto shares = Shares(options, kLogits);  // 0, .3, .15, .3 of .75
  EXPECT_EQ(shares.count(0), 0u);
  EXPECT_NEAR(shares.at(1), 0.4, 0.015);
  EXPECT_NEAR(shares.at(3), 0.4, 0.015);
}

TEST(Sampler, AFilterComesBeforeEverythingElse) {
  struct Odd : TokenFilter {
    bool Allows(Token token) const override { return token % 2 == 1; }
  } odd;
  struct None : TokenFilter {
    bool Allows(Token) const override { return false; }
  } none;
  SamplerOptions options = Plain();
  options.top_k = 1;
  Sampler sampler(options);
  EXPECT_EQ(*sampler.Sample(kLogits, {}, &odd), 1);
  EXPECT_EQ(sampler.Sample(kLogits, {}, &none).status().code(), ErrorCode::kUnsupported);
}

TEST(Sampler, TheSameSeedDrawsTheSameTokens) {
  SamplerOptions options = Plain();
  options.seed = 42;
  Sampler a(options), b(options);
  options.seed = 43;
  Sampler c(options);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const Token token = *a.Sample(kLogits, {});
    EXPECT_EQ(token, *b.Sample(kLogits, {}));
    different += token != *c.Sample(kLogits, {});
  }
  EXPECT_GT(different, 10);
}

TEST(Sampler, ANaNLogitIsAnErrorThatNamesTheToken) {
  Sampler sampler(Plain());
  const auto token = sampler.Sample(std::vector<float>{0, std::numeric_limits<float>::quiet_NaN()}, {});
  ASSERT_FALSE(token.ok());
  EXPECT_EQ(token.status().code(), ErrorCode::kNonFinite);
  EXPECT_NE(token.status().message().find("token 1"), std::string::npos);
}

TEST(SamplerOptions, ValuesOutOfRangeAreNamed) {
  const auto message = [](auto set) {
    SamplerOptions options;
    set(options);
    return options.Validate().message();
  };
  EXPECT_NE(message([](SamplerOptions& o) { o.temperature = -1; }).find("--temp"), std::string::npos);
  EXPECT_NE(message([](SamplerOptions& o) { o.top_p = 0; }).find("--top-p"), std::string::npos);
  EXPECT_NE(message([](SamplerOptions& o) { o.min_p = 1.5f; }).find("--min-p"), std::string::npos);
  EXPECT_NE(message([](SamplerOptions& o) { o.repeat_penalty = 0; }).find("--repeat-penalty"),
            std::string::npos);
  EXPECT_EQ(message([](SamplerOptions&) {}), "");
}

}  // namespace
}  // namespace blockgtq
