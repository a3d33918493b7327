// A scheduler over a tiny model, and the answers it gives.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "src/engine/calibration.h"
#include "src/serve/scheduler.h"
#include "tests/engine/test_models.h"

namespace blockgtq::serve::test {

using namespace blockgtq::test;  // NOLINT: the engine's fixtures are these tests' vocabulary

inline std::vector<Token> RandomPrompt(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<Token> ids(count);
  for (Token& id : ids) id = static_cast<Token>(generator() % 256);
  return ids;
}

struct Answer {
  std::vector<Token> tokens;
  std::vector<NewToken> full;
  std::string text;
  std::optional<FinishReason> finished;
  Status status;
  Usage usage;
};

/// One cache and its scheduler; answers by request.
class Bench {
 public:
  Bench(LoadedModel& model, const Plan* plan, const CacheOptions& cache, const SchedulerOptions& options)
      : context_(MakeContext(model, cache, plan)) {
    auto made = Scheduler::Create(*context_, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    scheduler_ = std::move(made).value();
  }

  Scheduler& scheduler() { return *scheduler_; }
  KvCache& cache() { return context_->cache(); }
  RequestId Submit(Request request) {
    const Status checked = scheduler_->Check(request);
    EXPECT_TRUE(checked.ok()) << checked.message();
    const RequestId id = next_++;
    scheduler_->Submit(id, std::move(request), [this](const Event& event) {
      Answer& answer = answers[event.request];
      EXPECT_FALSE(answer.finished.has_value()) << "an event after the last";
      answer.text += event.text;
      if (event.token.has_value()) {
        answer.tokens.push_back(event.token->chosen.token);
        answer.full.push_back(*event.token);
      }
      answer.finished = event.finished;
      answer.status = event.status;
      answer.usage = event.usage;
    });
    return id;
  }
  Result<int64_t> SaveSlot(int slot, const std::string& path) {
    BGTQ_ASSIGN_OR_RETURN(const PendingSession session, scheduler_->BeginSave(slot));
    const Status written = session.Write(path);
    scheduler_->EndSave(slot);
    BGTQ_RETURN_IF_ERROR(written);
    return session.length();
  }
  Result<int64_t> RestoreSlot(int slot, const std::string& path) {
    BGTQ_ASSIGN_OR_RETURN(const SessionFile session, SessionFile::Open(cache(), path));
    return scheduler_->RestoreSlot(slot, session);
  }
  /// Until nothing is left to do.
  void Run(int64_t most = 100000) {
    for (int64_t i = 0; i < most && !scheduler_->idle(); ++i) scheduler_->Step();
    EXPECT_TRUE(scheduler_->idle()) << "still busy after " << most << " steps";
  }

  std::map<RequestId, Answer> answers;

 private:
  std::unique_ptr<Context> context_;
  std::unique_ptr<Scheduler> scheduler_;
  RequestId next_ = 1;
};

/// The tiny model with another context length, long enough for attention to be split.
inline std::unique_ptr<LoadedModel> OpenLongModel(uint32_t context) {
  std::ifstream in(TinyModelPath("llama"), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  const std::string key = "llama.context_length";
  const size_t value = bytes.find(key) + key.size() + 4;  // behind the value's type
  EXPECT_LT(value, bytes.size());
  std::memcpy(&bytes[value], &context, sizeof(context));
  const std::string path = fmt::format("{}/serve_long.{}.gguf", testing::TempDir(), getpid());
  std::ofstream(path, std::ios::binary) << bytes;
  auto model = OpenModel(path, 2, Precision::kFast);
  std::filesystem::remove(path);
  return model;
}

class ServeTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenLongModel(4096);
    ASSERT_NE(model_, nullptr);
    auto measured = Measure(*model_, RandomPrompt(400, 7), {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    auto plan = MakePlan(*model_, *measured, "aligned", {3, 3, 1});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = std::move(plan).value();
    options_.chunk = 64;
    cache_.max_tokens = 8192;
  }

  static Request Greedy(std::vector<Token> prompt, int64_t new_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_new_tokens = new_tokens;
    request.sampler.temperature = 0;
    request.ignore_end = true;
    return request;
  }

  /// What each request gives with the engine for itself, cold.
  std::vector<Answer> Alone(const std::vector<Request>& requests) {
    std::vector<Answer> answers;
    for (const Request& request : requests) {
      Bench bench(*model_, &plan_, cache_, options_);
      const RequestId id = bench.Submit(request);
      bench.Run();
      answers.push_back(bench.answers[id]);
    }
    return answers;
  }

  std::unique_ptr<LoadedModel> model_;
  Plan plan_;
  CacheOptions cache_;
  SchedulerOptions options_;
};

}  // namespace blockgtq::serve::test
