// What a request asks of the form of its answer: a JSON object, penalties, biases.
#include <nlohmann/json.hpp>

#include "tests/serve/serve_fixtures.h"

namespace blockgtq::serve::test {
namespace {

TEST_F(ServeTest, EveryAnswerThatEndsAsJsonParsesAtAnyTemperature) {
  Bench bench(*model_, &plan_, cache_, options_);
  std::vector<Request> requests;
  for (int i = 0; i < 48; ++i) {
    Request request = Greedy(RandomPrompt(5, static_cast<unsigned>(i)), 300);
    request.json_object = true;
    request.sampler.temperature = static_cast<float>(i % 4) * 2;  // 0 to 6
    request.sampler.top_k = 0;
    request.sampler.top_p = 1;
    request.sampler.min_p = 0;
    request.sampler.seed = static_cast<uint64_t>(i);
    request.ignore_end = i % 2 == 0;
    if (i % 3 == 0) request.sampler.logit_bias = {{'"', 3.0f}, {'}', 3.0f}, {']', 3.0f}};
    requests.push_back(request);
    bench.Submit(std::move(request));
  }
  bench.Run();
  int ended = 0;
  for (const auto& [id, answer] : bench.answers) {
    ASSERT_TRUE(answer.finished == FinishReason::kEnd || answer.finished == FinishReason::kLimit)
        << answer.status.message();
    if (answer.finished != FinishReason::kEnd) continue;
    ++ended;
    EXPECT_TRUE(nlohmann::json::parse(answer.text, nullptr, false).is_object()) << answer.text;
  }
  EXPECT_GT(ended, 12);
  // A request for JSON is as deaf to its company as any other.
  const std::vector<Answer> alone = Alone({requests[1], requests[15]});
  EXPECT_EQ(alone[0].text, bench.answers[2].text);
  EXPECT_EQ(alone[1].text, bench.answers[16].text);
}

TEST_F(ServeTest, PenaltiesAndBiasesChangeAGreedyAnswer) {
  const Request plain = Greedy(RandomPrompt(20, 3), 60);
  Request banned = plain, varied = plain;
  const Answer base = Alone({plain})[0];
  banned.sampler.logit_bias = {{base.tokens[0], -100.0f}};
  varied.sampler.frequency_penalty = 2;
  const std::vector<Answer> answers = Alone({banned, varied});
  EXPECT_EQ(std::ranges::count(answers[0].tokens, base.tokens[0]), 0);
  const auto most_repeated = [](const Answer& answer) {
    std::map<Token, int> counts;
    int most = 0;
    for (const Token token : answer.tokens) most = std::max(most, ++counts[token]);
    return most;
  };
  EXPECT_LT(most_repeated(answers[1]), most_repeated(base));
}

}  // namespace
}  // namespace blockgtq::serve::test
