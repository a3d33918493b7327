// A long context on a real model: the packed cache's memory is what it says, no full-precision cache is ever
// made.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "src/engine/bundled_text.h"
#include "src/engine/calibration.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

constexpr int64_t kTokens = 8000;
// Activations and scratch of 512-token batches, window and sinks, block tables: everything that does not grow
// with the context.
constexpr int64_t kConstantBytes = int64_t{48} << 20;

/// Anonymous resident memory of this process: the mapped model file does not count.
int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    int64_t kilobytes = 0;
    if (key == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return -1;
}

std::vector<Token> LongText(const LoadedModel& model) {
  std::vector<Token> ids = model.tokenizer().Encode(BundledScoringText().substr(0, 60000), false);
  ids.resize(kTokens);
  return ids;
}

TEST(LongContext, ResidentMemoryStaysWithinThePackedSizeAndAConstant) {
#ifdef BGTQ_SANITIZED
  GTEST_SKIP() << "resident memory means nothing under a sanitizer";
#endif
  const std::string path = RealModelPath(kSmolLm2);
  if (path.empty()) GTEST_SKIP() << kSmolLm2 << " is not here: scripts/fetch_models.sh smollm2-135m";
  const auto model = OpenModel(path, 2, Precision::kFast);
  ASSERT_NE(model, nullptr);
  std::optional<Plan> plan;
  {
    auto measured =
        Measure(*model, model->tokenizer().Encode(BundledCalibrationText().substr(0, 3000), false), {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    auto made = MakePlan(*model, *measured, "aligned", {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    plan = std::move(made).value();
  }
  const std::vector<Token> ids = LongText(*model);

  // A child process, so that memory which calibration has freed but the allocator has kept is not reused
  // unseen.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto fresh = OpenModel(path, 2, Precision::kFast);  // threads do not survive a fork
    const int64_t before = AnonymousBytes();
    CacheOptions options;
    options.max_tokens = kTokens + 64;
    const auto context = MakeContext(*fresh, options, &*plan);
    const SequenceId sequence = *context->cache().AddSequence();
    int64_t peak = 0;
    const Status status = context->Append(sequence, ids, {}, [&](int64_t, int64_t) {
      peak = std::max(peak, AnonymousBytes());
      return Status::Ok();
    });
    const Token next = 1;
    for (int i = 0; i < 3 && status.ok(); ++i) {
      const SequenceTokens item{sequence, {&next, 1}};
      if (!context->Run({&item, 1}).ok()) _exit(3);
    }
    peak = std::max(peak, AnonymousBytes());
    const int64_t packed = context->cache().SequenceBytes(sequence),
                  half = context->cache().HalfBytes(kTokens);
    fmt::print("packed {:.1f} MiB, fp16 would be {:.1f}, resident growth {:.1f}\n", packed / 1048576.0,
               half / 1048576.0, (peak - before) / 1048576.0);
    std::fflush(stdout);
    if (!status.ok() || before < 0) _exit(3);
    _exit(peak - before <= packed + kConstantBytes && packed + kConstantBytes < half ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "2: too much memory; 3: the run failed";
}

}  // namespace
}  // namespace blockgtq::test
