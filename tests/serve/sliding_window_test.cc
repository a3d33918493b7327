// A model whose layers give pages back: shared beginnings, slots and preemption change no answer.
#include <gtest/gtest.h>

#include "tests/serve/serve_fixtures.h"

namespace blockgtq::serve::test {
namespace {

/// gemma3: three of four layers see 16 tokens.
class ServeWindows : public ServeTest {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("gemma3"), 2, Precision::kFast);
    ASSERT_NE(model_, nullptr);
    ASSERT_GT(model_->config().window, 0);
    const auto measured = Measure(*model_, RandomPrompt(400, 7), {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    auto plan = MakePlan(*model_, *measured, "aligned", {3, 3, 1});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = std::move(plan).value();
    options_.chunk = 64;
    cache_.max_tokens = 4096;
  }

  /// Prompts that begin alike and part at the tokens of `at`.
  static std::vector<Request> Parting(std::initializer_list<size_t> at) {
    std::vector<Request> requests;
    const std::vector<Token> whole = RandomPrompt(330, 1);
    for (const size_t common : at) {
      std::vector<Token> prompt(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(common));
      const std::vector<Token> own = RandomPrompt(40, static_cast<unsigned>(common));
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(Greedy(std::move(prompt), 50));
    }
    return requests;
  }
};

TEST_F(ServeWindows, PrefixesAndPagesThatRunOutChangeNoAnswer) {
  const std::vector<Request> requests = Parting({330, 64, 200, 330, 130});
  const std::vector<Answer> alone = Alone(requests);
  for (const int64_t tokens : {4096, 1024}) {
    cache_.max_tokens = tokens;
    Bench bench(*model_, &plan_, cache_, options_);
    const int64_t free = bench.cache().free_tokens();
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(bench.Submit(request));
    bench.Run();
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(bench.answers[ids[i]].tokens, alone[i].tokens) << i;
    EXPECT_GT(bench.scheduler().stats().cached_tokens, 0);
    EXPECT_LT(bench.cache().free_tokens(), free);  // the prefix cache's
  }
}

TEST_F(ServeWindows, ASlotThatHasForgottenABeginningIsComputedAfresh) {
  std::vector<Request> requests = Parting({330, 100});
  const std::vector<Answer> alone = Alone(requests);
  for (Request& request : requests) {
    request.slot = 0;
    request.use_prefix_cache = false;
  }
  Bench bench(*model_, &plan_, cache_, options_);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id = bench.Submit(requests[i]);
    bench.Run();
    EXPECT_EQ(bench.answers[id].tokens, alone[i].tokens) << i;
  }
  EXPECT_EQ(bench.scheduler().stats().cached_tokens, 0);
  EXPECT_EQ(bench.scheduler().stats().failed, 0);
}

}  // namespace
}  // namespace blockgtq::serve::test
