// Continuous batching on a tiny model: company, preemption, prefixes and cancellation change no answer.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/serve/serve_fixtures.h"

namespace blockgtq::serve::test {
namespace {

std::vector<Request> Mixed(std::function<Request(std::vector<Token>, int64_t)> make) {
  std::vector<Request> requests;
  for (const size_t prompt : {1, 2, 63, 64, 65, 128, 200, 333, 700, 1500}) {
    requests.push_back(make(RandomPrompt(prompt, static_cast<unsigned>(prompt)), 20 + prompt % 50));
  }
  return requests;
}

TEST_F(ServeTest, EveryStreamSaysInCompanyWhatItSaysAlone) {
  for (const Precision precision : {Precision::kFast, Precision::kFloat}) {
    model_->backend().SetPrecision(precision);
    for (const int recent : {64, 0}) {
      cache_.recent = recent;
      const std::vector<Request> requests = Mixed(Greedy);
      const std::vector<Answer> alone = Alone(requests);
      Bench bench(*model_, &plan_, cache_, options_);
      std::vector<RequestId> ids;
      for (const Request& request : requests) {
        ids.push_back(bench.Submit(request));
        bench.scheduler().Step();  // they come one after the other
      }
      bench.Run();
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(bench.answers[ids[i]].tokens, alone[i].tokens) << "prompt " << requests[i].prompt.size();
        EXPECT_EQ(bench.answers[ids[i]].text, alone[i].text);
        EXPECT_EQ(bench.answers[ids[i]].finished, FinishReason::kLimit);
      }
    }
  }
}

TEST_F(ServeTest, LogprobsOfAStreamAreTheSameToTheBitInCompany) {
  std::vector<Request> requests = Mixed(Greedy);
  for (Request& request : requests) request.top_logprobs = 2;
  const std::vector<Answer> alone = Alone(requests);
  Bench bench(*model_, &plan_, cache_, options_);
  for (const Request& request : requests) bench.Submit(request);
  bench.Run();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer& answer = bench.answers[static_cast<RequestId>(i + 1)];
    ASSERT_EQ(answer.full.size(), alone[i].full.size());
    for (size_t t = 0; t < answer.full.size(); ++t) {
      EXPECT_EQ(answer.full[t].chosen.logprob, alone[i].full[t].chosen.logprob) << i << " token " << t;
      EXPECT_EQ(answer.full[t].top[1].logprob, alone[i].full[t].top[1].logprob);
    }
  }
}

TEST_F(ServeTest, ALongContextIsSplitTheSameWayInCompany) {
  std::vector<Request> requests = {Greedy(RandomPrompt(2200, 1), 20)};
  requests[0].top_logprobs = 0;
  const Answer alone = Alone(requests)[0];
  for (unsigned i = 2; i < 16; ++i) requests.push_back(Greedy(RandomPrompt(10, i), 150));  // they outlast it
  Bench bench(*model_, &plan_, cache_, options_);
  for (const Request& request : requests) bench.Submit(request);
  while (!bench.answers[1].finished.has_value()) bench.scheduler().Step();
  EXPECT_EQ(bench.scheduler().stats().running, 14);
  for (size_t t = 0; t < alone.full.size(); ++t)
    EXPECT_EQ(bench.answers[1].full[t].chosen.logprob, alone.full[t].chosen.logprob) << t;
}

TEST_F(ServeTest, LogprobsAreTheLogSoftmaxOfTheLogits) {
  const std::vector<Token> prompt = RandomPrompt(50, 1);
  Request request = Greedy(prompt, 1);
  request.top_logprobs = 5;
  const Answer answer = Alone({request})[0];
  const auto context = MakeContext(*model_, cache_, &plan_);
  const std::vector<float> logits = RunAll(*context, prompt, {}, 64);
  const size_t vocabulary = static_cast<size_t>(model_->config().vocabulary);
  std::vector<double> last(logits.end() - static_cast<int64_t>(vocabulary), logits.end());
  double sum = 0;
  for (const double logit : last) sum += std::exp(logit);
  ASSERT_EQ(answer.full.size(), 1u);
  ASSERT_EQ(answer.full[0].top.size(), 5u);
  EXPECT_EQ(answer.full[0].chosen.token, answer.full[0].top[0].token);
  for (const TokenLogprob& top : answer.full[0].top) {
    EXPECT_NEAR(top.logprob, last[static_cast<size_t>(top.token)] - std::log(sum), 1e-5);
  }
  std::ranges::sort(last, std::greater<>());
  EXPECT_NEAR(answer.full[0].top[4].logprob, last[4] - std::log(sum), 1e-5);
}

TEST_F(ServeTest, WithoutPagesTheYoungestWaitsAndEveryAnswerIsAsAlone) {
  std::vector<Request> requests;
  for (unsigned i = 0; i < 6; ++i) requests.push_back(Greedy(RandomPrompt(40 + 30 * i, i), 150));
  const std::vector<Answer> alone = Alone(requests);
  cache_.max_tokens = 640;  // each takes 4 to 6 pages of 10
  options_.prefix_entries = 2;
  Bench bench(*model_, &plan_, cache_, options_);
  for (const Request& request : requests) bench.Submit(request);
  bench.Run();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer& answer = bench.answers[static_cast<RequestId>(i + 1)];
    EXPECT_EQ(answer.finished, FinishReason::kLimit);
    EXPECT_EQ(answer.tokens, alone[i].tokens) << i;
  }
  EXPECT_GT(bench.scheduler().stats().preemptions, 0);
}

TEST_F(ServeTest, APreemptedSampledStreamGoesOnWithItsOwnDraws) {
  std::vector<Request> requests;
  for (unsigned i = 0; i < 4; ++i) {
    requests.push_back(Greedy(RandomPrompt(100, i), 150));
    requests.back().sampler = {.temperature = 1.0f, .seed = i};
  }
  const std::vector<Answer> alone = Alone(requests);
  cache_.max_tokens = 640;
  Bench bench(*model_, &plan_, cache_, options_);
  for (const Request& request : requests) bench.Submit(request);
  bench.Run();
  EXPECT_GT(bench.scheduler().stats().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(bench.answers[static_cast<RequestId>(i + 1)].tokens, alone[i].tokens) << i;
  EXPECT_NE(alone[0].tokens, alone[1].tokens);
}

TEST_F(ServeTest, TheOnlyRequestEndsWhereTheCacheEnds) {
  cache_.max_tokens = 128;
  Bench bench(*model_, &plan_, cache_, options_);
  const RequestId id = bench.Submit(Greedy(RandomPrompt(100, 1), 1000));
  bench.Run();
  EXPECT_EQ(bench.answers[id].finished, FinishReason::kContextFull);
  EXPECT_EQ(bench.answers[id].tokens.size(), 28u);
}

TEST_F(ServeTest, ASharedBeginningIsRunOnceAndChangesNoAnswer) {
  for (const int recent : {64, 0}) {
    cache_.recent = recent;
    const std::vector<Token> shared = RandomPrompt(500, 3);
    std::vector<Request> requests;
    for (unsigned i = 0; i < 3; ++i) {
      std::vector<Token> prompt = shared;
      for (const Token token : RandomPrompt(30, 100 + i)) prompt.push_back(token);
      requests.push_back(Greedy(prompt, 40));
    }
    const std::vector<Answer> alone = Alone(requests);
    Bench bench(*model_, &plan_, cache_, options_);
    for (const Request& request : requests) bench.Submit(request);  // at once: two wait for the first's
    bench.Run();
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer& answer = bench.answers[static_cast<RequestId>(i + 1)];
      EXPECT_EQ(answer.tokens, alone[i].tokens) << i << " recent " << recent;
      EXPECT_EQ(answer.usage.cached_tokens, i == 0 ? 0 : 448);
    }
    EXPECT_EQ(bench.scheduler().stats().prompt_tokens, 530 + 2 * (530 - 448));
    EXPECT_EQ(bench.scheduler().stats().cached_tokens, 2 * 448);
  }
}

TEST(PromptCutsTest, CutsAreThePagesOfTheFirst256TokensAndTheChunks) {
  for (const int64_t chunk : {64, 128, 192, 256, 320, 512, 1024}) {
    const PromptCuts cuts(chunk);
    int64_t last = 0;
    for (int64_t tokens = 0; tokens <= 3000; ++tokens) {
      const bool cut =
          tokens > 0 && (tokens % chunk == 0 || (tokens < chunk && tokens <= 256 && tokens % 64 == 0));
      if (cut) {
        EXPECT_EQ(cuts.NextEnd(tokens - 1), tokens) << chunk;
        ++last;
        EXPECT_EQ(cuts.At(last), tokens) << chunk;
      }
      EXPECT_EQ(cuts.Last(tokens), last) << chunk << ", " << tokens << " tokens";
    }
  }
}

TEST_F(ServeTest, AShortSharedBeginningIsRunOnceByWholePages) {
  options_.chunk = 256;
  const std::vector<Token> first = RandomPrompt(320, 3);
  std::vector<Request> requests = {Greedy(first, 20)};
  const std::vector<std::pair<size_t, int64_t>> shared = {
      {63, 0}, {64, 64}, {100, 64}, {250, 192}, {300, 256}};
  for (const auto& [common, cached] : shared) {
    std::vector<Token> prompt(first.begin(), first.begin() + static_cast<int64_t>(common));
    for (const Token token : RandomPrompt(30, static_cast<unsigned>(common))) prompt.push_back(token);
    requests.push_back(Greedy(prompt, 20));
  }
  requests.push_back(
      Greedy({first.begin(), first.begin() + 128}, 20));  // its last token is run for its logits
  const std::vector<Answer> alone = Alone(requests);
  Bench bench(*model_, &plan_, cache_, options_);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id = bench.Submit(requests[i]);
    bench.Run();
    EXPECT_EQ(bench.answers[id].tokens, alone[i].tokens) << i;
    const int64_t cached = i == 0 ? 0 : i <= shared.size() ? shared[i - 1].second : 64;
    EXPECT_EQ(bench.answers[id].usage.cached_tokens, cached) << i;
  }
}

TEST_F(ServeTest, ThePrefixCacheGivesItsPagesToRequests) {
  cache_.max_tokens = 1024;
  Bench bench(*model_, &plan_, cache_, options_);
  for (const size_t prompt : {400, 900, 450, 890}) {  // of 16 pages, 15 for a long one
    const RequestId id = bench.Submit(Greedy(RandomPrompt(prompt, static_cast<unsigned>(prompt)), 60));
    bench.Run();
    EXPECT_EQ(bench.answers[id].tokens.size(), 60u);
  }
  EXPECT_GT(bench.scheduler().stats().prefix_evictions, 0);
  EXPECT_EQ(bench.scheduler().stats().preemptions, 0);
}

TEST_F(ServeTest, CancellingAtAnyStepFreesEveryPage) {
  options_.prefix_entries = 0;
  for (int steps = 0; steps < 14; ++steps) {
    Bench bench(*model_, &plan_, cache_, options_);
    const int64_t free = bench.cache().free_tokens();
    const RequestId long_one = bench.Submit(Greedy(RandomPrompt(400, 1), 10));
    const RequestId other = bench.Submit(Greedy(RandomPrompt(40, 2), 5));
    for (int i = 0; i < steps; ++i) bench.scheduler().Step();
    const bool ended = bench.answers[long_one].finished.has_value();
    bench.scheduler().Cancel(long_one);
    if (!ended) {
      EXPECT_EQ(bench.answers[long_one].finished, FinishReason::kCancelled);
    }
    bench.Run();
    EXPECT_EQ(bench.answers[other].finished, FinishReason::kLimit);
    EXPECT_EQ(bench.cache().free_tokens(), free) << "after " << steps << " steps";
  }
}

TEST_F(ServeTest, ALongPromptStopsNoOne) {
  Bench bench(*model_, &plan_, cache_, options_);
  const RequestId talking = bench.Submit(Greedy(RandomPrompt(10, 1), 100));
  bench.scheduler().Step();
  const RequestId long_one = bench.Submit(Greedy(RandomPrompt(1500, 2), 5));
  const RequestId short_one = bench.Submit(Greedy(RandomPrompt(60, 3), 5));
  for (int i = 0; i < 20; ++i) {
    const size_t before = bench.answers[talking].tokens.size();
    bench.scheduler().Step();
    EXPECT_EQ(bench.answers[talking].tokens.size(), before + 1) << "a token every pass";
  }
  EXPECT_EQ(bench.answers[short_one].finished, FinishReason::kLimit);
  EXPECT_TRUE(bench.answers[long_one].tokens.empty());
}

TEST_F(ServeTest, AStopStringEndsTheTextBeforeIt) {
  const Answer whole = Alone({Greedy(RandomPrompt(30, 4), 60)})[0];
  ASSERT_GT(whole.text.size(), 20u);
  const size_t at = 10;
  const std::string stop = whole.text.substr(at, 6);
  Request request = Greedy(RandomPrompt(30, 4), 60);
  request.stop = {"never said, surely", stop};
  const Answer stopped = Alone({request})[0];
  EXPECT_EQ(stopped.finished, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
}

TEST_F(ServeTest, ASlotGoesOnWhereItsConversationEndedAlsoAfterARestart) {
  const std::string path = fmt::format("{}/serve_slot.{}.session", testing::TempDir(), getpid());
  std::filesystem::remove(path);
  Request first = Greedy(RandomPrompt(150, 8), 30);
  first.slot = 2;
  std::vector<Token> continued;
  const auto next = [&](const Answer& answer) {
    Request request = first;
    request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
    for (const Token token : RandomPrompt(20, 9)) request.prompt.push_back(token);
    return request;
  };
  {
    Bench bench(*model_, &plan_, cache_, options_);
    EXPECT_EQ(bench.SaveSlot(2, path).status().code(), ErrorCode::kInvalidArgument);
    const RequestId id = bench.Submit(first);
    bench.scheduler().Step();
    EXPECT_TRUE(bench.scheduler().slots()[2].busy);
    EXPECT_EQ(bench.SaveSlot(2, path).status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(bench.scheduler().EraseSlot(2).status().code(), ErrorCode::kInvalidArgument);
    bench.Run();
    const Result<int64_t> saved = bench.SaveSlot(2, path);
    ASSERT_TRUE(saved.ok()) << saved.status().message();
    EXPECT_EQ(*saved, 150 + 29);  // the last token has not been run
    const RequestId second = bench.Submit(next(bench.answers[id]));
    bench.Run();
    EXPECT_EQ(bench.answers[second].usage.cached_tokens, 179);
    continued = bench.answers[second].tokens;
    EXPECT_EQ(*bench.scheduler().EraseSlot(2), 150 + 30 + 20 + 29);
  }
  Bench bench(*model_, &plan_, cache_, options_);
  ASSERT_EQ(*bench.RestoreSlot(2, path), 179);
  EXPECT_EQ(bench.scheduler().slots()[2].tokens, 179);
  const RequestId id = bench.Submit(next(Alone({first})[0]));
  bench.Run();
  EXPECT_EQ(bench.answers[id].usage.cached_tokens, 179);
  EXPECT_EQ(bench.answers[id].tokens, continued);
  std::filesystem::remove(path);
}

TEST_F(ServeTest, ASlotThatIsBeingSavedWaitsAndOthersGoOn) {
  const std::string path = fmt::format("{}/serve_aside.{}.session", testing::TempDir(), getpid());
  Request request = Greedy(RandomPrompt(700, 8), 3);
  request.slot = 1;
  std::vector<Request> others;
  others.reserve(4);
  for (unsigned i = 0; i < 4; ++i) others.push_back(Greedy(RandomPrompt(100, 20 + i), i < 3 ? 80 : 600));
  const std::vector<Answer> alone = Alone(others);
  cache_.max_tokens = 1024;  // 5 pages beside the slot's: its own would give way, were it idle
  Bench bench(*model_, &plan_, cache_, options_);
  bench.Submit(request);
  bench.Run();
  Result<PendingSession> session = bench.scheduler().BeginSave(1);
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ(bench.scheduler().BeginSave(1).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(bench.scheduler().EraseSlot(1).status().code(), ErrorCode::kInvalidArgument);
  const RequestId waits = bench.Submit(request);
  std::vector<RequestId> ids;
  for (const Request& other : others) ids.push_back(bench.Submit(other));
  Status written;
  std::thread writer([&] { written = session->Write(path); });
  for (int i = 0; i < 400; ++i) bench.scheduler().Step();
  writer.join();
  ASSERT_TRUE(written.ok()) << written.message();
  EXPECT_FALSE(bench.answers[waits].finished.has_value());
  EXPECT_EQ(bench.scheduler().slots()[1].tokens, 702);
  bench.scheduler().EndSave(1);
  bench.Run();
  EXPECT_EQ(bench.answers[waits].finished, FinishReason::kLimit);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(bench.answers[ids[i]].tokens, alone[i].tokens) << i;
  EXPECT_EQ(*bench.RestoreSlot(0, path), 702);
  std::filesystem::remove(path);
}

TEST_F(ServeTest, ADamagedSessionFileLeavesTheSlotAsItWas) {
  const std::string path = fmt::format("{}/serve_damaged.{}.session", testing::TempDir(), getpid());
  Bench bench(*model_, &plan_, cache_, options_);
  Request request = Greedy(RandomPrompt(150, 8), 3);
  request.slot = 0;
  bench.Submit(request);
  bench.Run();
  ASSERT_TRUE(bench.SaveSlot(0, path).ok());
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  bytes[bytes.size() - 100] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(bench.RestoreSlot(0, path).status().code(), ErrorCode::kCorruptFile);
  EXPECT_EQ(bench.scheduler().slots()[0].tokens, 152);
  std::filesystem::remove(path);
}

TEST_F(ServeTest, ASlotTakesPartOfItsSequenceForADivergingPrompt) {
  options_.prefix_entries = 0;
  Bench bench(*model_, &plan_, cache_, options_);
  Request request = Greedy(RandomPrompt(300, 8), 10);
  request.slot = 1;
  bench.Submit(request);
  bench.Run();
  request.prompt.resize(100);
  for (const Token token : RandomPrompt(50, 77)) request.prompt.push_back(token);
  const RequestId id = bench.Submit(request);
  bench.Run();
  EXPECT_GE(bench.answers[id].usage.cached_tokens, 100);
  EXPECT_LE(bench.answers[id].usage.cached_tokens, 102);
  EXPECT_EQ(bench.answers[id].finished, FinishReason::kLimit);
}

/// The tiny model with an embedding row of NaNs.
std::unique_ptr<LoadedModel> ModelWithAPoisonedToken(const LoadedModel& model, Token token) {
  std::ifstream in(TinyModelPath("llama"), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  const ModelTensor* table = model.source().Find("token_embd.weight");
  EXPECT_NE(table, nullptr);
  const TensorView view = *table->Rows(token, 1);
  const size_t row = static_cast<size_t>(view.row_bytes());
  const std::string_view wanted(reinterpret_cast<const char*>(view.data), row);
  const size_t at = bytes.find(wanted);
  EXPECT_NE(at, std::string::npos);
  std::fill_n(bytes.begin() + static_cast<int64_t>(at), row, '\xff');
  const std::string path = fmt::format("{}/serve_poisoned.{}.gguf", testing::TempDir(), getpid());
  std::ofstream(path, std::ios::binary) << bytes;
  auto poisoned = OpenModel(path, 2, Precision::kFast);
  std::filesystem::remove(path);
  return poisoned;
}

TEST_F(ServeTest, ARequestThatMakesTheModelFailFailsAlone) {
  constexpr Token kPoison = 65;
  std::vector<Request> requests;
  for (unsigned i = 0; i < 4; ++i) {
    std::vector<Token> prompt = RandomPrompt(120, 20 + i);
    std::ranges::replace(prompt, kPoison, Token{66});
    requests.push_back(Greedy(prompt, 12));
  }
  const auto poisoned = ModelWithAPoisonedToken(*model_, kPoison);
  ASSERT_NE(poisoned, nullptr);
  model_->backend().SetPrecision(Precision::kFast);
  cache_.kind = CacheKind::kHalf;
  Bench bench(*poisoned, nullptr, cache_, options_);
  std::vector<std::vector<Token>> alone;
  for (const Request& request : requests) {
    Bench own(*poisoned, nullptr, cache_, options_);
    const RequestId id = own.Submit(request);
    own.Run();
    ASSERT_EQ(own.answers[id].finished, FinishReason::kLimit) << own.answers[id].status.message();
    alone.push_back(own.answers[id].tokens);
  }
  for (const Request& request : requests) bench.Submit(request);
  for (int i = 0; i < 9; ++i) bench.scheduler().Step();
  Request bad = Greedy(RandomPrompt(30, 99), 10);
  bad.prompt[20] = kPoison;
  const RequestId failing = bench.Submit(bad);
  bench.Run();
  EXPECT_EQ(bench.answers[failing].finished, FinishReason::kFailed);
  EXPECT_EQ(bench.answers[failing].status.code(), ErrorCode::kNonFinite);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(bench.answers[static_cast<RequestId>(i + 1)].tokens, alone[i]) << i;
}

TEST_F(ServeTest, RequestsOutOfRangeAreRefusedByWhatIsWrong) {
  cache_.max_tokens = 256;
  Bench bench(*model_, &plan_, cache_, options_);
  const auto message = [&](const Request& request) {
    const Status status = bench.scheduler().Check(request);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(message(Greedy({}, 1)).find("empty"), std::string::npos);
  EXPECT_NE(message(Greedy(RandomPrompt(256, 1), 1)).find("256 tokens"), std::string::npos);
  EXPECT_NE(message(Greedy({300}, 1)).find("token 300"), std::string::npos);
  EXPECT_NE(message(Greedy({-1}, 1)).find("token -1"), std::string::npos);
  EXPECT_NE(message(Greedy({1}, 0)).find("0 new tokens"), std::string::npos);
  Request request = Greedy({1}, 1);
  request.slot = options_.max_running;
  EXPECT_NE(message(request).find("slot 16"), std::string::npos);
  request = Greedy({1}, 1);
  request.stop = {""};
  EXPECT_NE(message(request).find("stop"), std::string::npos);
  request = Greedy({1}, 1);
  request.sampler.top_p = 0;
  EXPECT_NE(message(request).find("top-p"), std::string::npos);
}

}  // namespace
}  // namespace blockgtq::serve::test
