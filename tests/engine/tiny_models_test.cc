// The forward pass against transformers' logits, and the packed cache's invariants, on tiny models.
#include <cmath>
#include <cstring>
#include <random>

#include "src/cache/session.h"
#include "src/engine/calibration.h"
#include "src/formats/safetensors.h"
#include "tests/engine/test_models.h"
#include "tests/formats/files.h"

namespace blockgtq::test {
namespace {

struct Reference {
  std::vector<Token> ids;
  std::vector<float> logits;
};

Reference LoadReference(const std::string& model, const std::string& suffix, int64_t vocabulary) {
  Reference reference;
  auto file =
      SafetensorsFile::Open(std::string(BGTQ_TEST_DATA) + "/models/" + model + ".reference.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().message();
  const SafetensorsEntry& ids = (*file)->tensors().at("input_ids" + suffix);
  const int64_t tokens = ids.shape[0];
  reference.ids.resize(static_cast<size_t>(tokens));
  std::memcpy(reference.ids.data(), ids.data.data(), ids.data.size());
  const std::array<int64_t, 2> shape = {tokens, vocabulary};
  auto logits = (*file)->Get("logits" + suffix, "F32", shape);
  EXPECT_TRUE(logits.ok()) << logits.status().message();
  reference.logits.resize(static_cast<size_t>(tokens * vocabulary));
  std::memcpy(reference.logits.data(), logits->data(), logits->size());
  return reference;
}

class TinyModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { model_ = OpenModel(TinyModelPath(GetParam())); }

  std::vector<float> Run(CacheKind kind, std::span<const Token> ids, int64_t batch) {
    CacheOptions options;
    options.kind = kind;
    options.max_tokens = static_cast<int64_t>(ids.size());
    return RunAll(*MakeContext(*model_, options), ids, {}, batch);
  }

  /// Random ids; the tiny models have a vocabulary of 256.
  static std::vector<Token> RandomIds(size_t count, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<Token> ids(count);
    for (Token& id : ids) id = static_cast<Token>(generator() % 256);
    return ids;
  }

  Plan MakeTestPlan(const std::string& recipe, double k_bits, double v_bits) {
    auto measured = Measure(*model_, RandomIds(400, 7), {});
    EXPECT_TRUE(measured.ok()) << measured.status().message();
    auto plan = MakePlan(*model_, *measured, recipe, {k_bits, v_bits, 1});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return std::move(plan).value();
  }

  std::unique_ptr<LoadedModel> model_;
};

/// Those in GGUF, whose references lie beside them.
class TinyGgufModel : public TinyModel {};

TEST_P(TinyGgufModel, LogitsEqualTransformersWithAFloatCache) {
  for (const char* suffix : {"", "_short"}) {
    const Reference reference = LoadReference(GetParam(), suffix, model_->config().vocabulary);
    for (int64_t batch : {int64_t{1}, int64_t{5}, int64_t{512}}) {
      EXPECT_LT(MaxDifference(Run(CacheKind::kFloat, reference.ids, batch), reference.logits), 2e-4f)
          << "batch " << batch << suffix;
    }
  }
}

TEST_P(TinyGgufModel, LogitsAreCloseToTransformersWithAHalfCache) {
  const Reference reference = LoadReference(GetParam(), "", model_->config().vocabulary);
  EXPECT_LT(MaxDifference(Run(CacheKind::kHalf, reference.ids, 1), reference.logits), 5e-2f);
}

TEST_P(TinyModel, StrictScoringEqualsDecodingOneTokenAtATime) {
  const Plan plan = MakeTestPlan("aligned", 3, 3);
  const std::vector<Token> ids = RandomIds(330, 11);
  for (const auto& [sinks, recent] :
       std::vector<std::pair<int, int>>{{0, 0}, {4, 0}, {4, 64}, {0, 100}, {16, 32}}) {
    CacheOptions options;
    options.sinks = sinks;
    options.recent = recent;
    options.max_tokens = 384;
    const auto context = MakeContext(*model_, options, &plan);
    const std::vector<float> scored = RunAll(*context, ids, {.strict = true}, 200);
    const std::vector<float> decoded = RunAll(*context, ids, {}, 1);
    EXPECT_LT(MaxDifference(scored, decoded), 2e-3f) << "sinks " << sinks << " recent " << recent;
  }
}

TEST_P(TinyModel, DecodingInSplitsOfALongContextEqualsScoringItWhole) {
  const Plan plan = MakeTestPlan("aligned", 3, 3);
  const std::vector<Token> ids = RandomIds(1603, 17);
  for (const auto& [kind, recent] : std::vector<std::pair<CacheKind, int>>{
           {CacheKind::kPacked, 64}, {CacheKind::kPacked, 0}, {CacheKind::kHalf, 0}}) {
    CacheOptions options;
    options.kind = kind;
    options.recent = recent;
    options.max_tokens = 1664;
    const auto context = MakeContext(*model_, options, &plan);
    const std::vector<float> whole = RunAll(*context, ids, {.strict = true}, 1603);
    const SequenceId sequence = *context->cache().AddSequence();
    const std::span<const Token> head = std::span<const Token>(ids).first(1600);
    ASSERT_TRUE(context->Append(sequence, head, {.strict = true}, {}, 1600).ok());
    for (size_t i = 1600; i < ids.size(); ++i) {  // one token: its heads' tokens are split over tasks
      const SequenceTokens item{sequence, {&ids[i], 1}};
      ASSERT_TRUE(context->Run({&item, 1}).ok());
      const int64_t row = 0;
      const size_t vocabulary = static_cast<size_t>(model_->config().vocabulary);
      EXPECT_LT(MaxDifference(*context->Logits({&row, 1}),
                              std::span<const float>(whole).subspan(i * vocabulary, vocabulary)),
                5e-3f)
          << "token " << i << " recent " << recent;
    }
  }
}

TEST_P(TinyModel, AWideWindowMakesThePackedCacheExact) {
  const Plan plan = MakeTestPlan("aligned", 2, 2);
  const std::vector<Token> ids = RandomIds(150, 3);
  CacheOptions options;
  options.sinks = 4;
  options.recent = 256;  // nothing leaves the window
  options.max_tokens = 256;
  const std::vector<float> packed = RunAll(*MakeContext(*model_, options, &plan), ids, {}, 64);
  EXPECT_LT(MaxDifference(packed, Run(CacheKind::kHalf, ids, 64)), 1e-4f);
}

TEST_P(TinyModel, MoreBitsComeCloserToTheHalfCache) {
  const std::vector<Token> ids = RandomIds(300, 5);
  const std::vector<float> base = Run(CacheKind::kHalf, ids, 300);
  CacheOptions options;
  options.sinks = options.recent = 0;
  options.max_tokens = 320;
  double previous = 1e9;
  for (double bits : {2.0, 3.0, 4.0, 5.0, 8.0}) {
    const Plan plan = MakeTestPlan("aligned", bits, bits);
    const std::vector<float> packed =
        RunAll(*MakeContext(*model_, options, &plan), ids, {.strict = true}, 300);
    double sum = 0;
    for (size_t i = 0; i < base.size(); ++i) sum += (packed[i] - base[i]) * (packed[i] - base[i]);
    const double rms = std::sqrt(sum / static_cast<double>(base.size()));
    EXPECT_LT(rms, previous) << bits << " bits";
    previous = rms;
  }
  // At 8 bits what is left is the rounding of queries and probabilities to 8 bits, which these models
  // magnify: fp16 keys and values alone move their logits by up to 1.5e-2.
  EXPECT_LT(previous, 0.2);
}

TEST_P(TinyModel, EveryPackedRecipeRunsAtEveryPaperBudget) {
  const std::vector<Token> ids = RandomIds(130, 9);
  CacheOptions options;
  options.max_tokens = 192;
  for (const char* recipe : {"aligned", "paper", "uniform"}) {
    for (double bits : {2.0, 3.0, 4.0}) {
      const Plan plan = MakeTestPlan(recipe, bits, bits);
      for (float logit : RunAll(*MakeContext(*model_, options, &plan), ids, {.strict = true}, 130)) {
        ASSERT_TRUE(std::isfinite(logit)) << recipe << " " << bits;
      }
    }
  }
}

TEST_P(TinyModel, RollingBackAndAppendingAgainGivesTheSameLogits) {
  const Plan plan = MakeTestPlan("aligned", 3, 3);
  const std::vector<Token> ids = RandomIds(203, 13);
  for (int recent : {0, 64}) {
    CacheOptions options;
    options.recent = recent;
    options.max_tokens = 256;
    const auto context = MakeContext(*model_, options, &plan);
    const SequenceId sequence = *context->cache().AddSequence();
    const auto append = [&](size_t first, size_t count) {
      std::vector<float> last;
      const Status status = context->Append(
          sequence, std::span<const Token>(ids).subspan(first, count), {},
          [&](int64_t, int64_t) {
            const int64_t row = 0;
            const std::span<const float> logits = *context->Logits({&row, 1});
            last.assign(logits.begin(), logits.end());
            return Status::Ok();
          },
          1);
      EXPECT_TRUE(status.ok()) << status.message();
      return last;
    };
    append(0, 193);  // no page leaves the window in the next ten tokens: what is coded stays coded
    const std::vector<float> before = append(193, 10);
    ASSERT_TRUE(context->cache().Truncate(sequence, 193).ok());
    EXPECT_EQ(append(193, 10), before) << "recent " << recent;
  }
}

TEST_P(TinyModel, SequencesInOneBatchDoNotSeeEachOther) {
  const Plan plan = MakeTestPlan("aligned", 3, 3);
  CacheOptions options;
  options.max_tokens = 1024;
  const auto context = MakeContext(*model_, options, &plan);
  const std::vector<Token> a = RandomIds(170, 21), b = RandomIds(90, 22);
  const std::vector<float> alone_a = RunAll(*context, a, {}, 170), alone_b = RunAll(*context, b, {}, 90);
  const SequenceId first = *context->cache().AddSequence(), second = *context->cache().AddSequence();
  const std::array<SequenceTokens, 2> items = {SequenceTokens{first, a}, SequenceTokens{second, b}};
  ASSERT_TRUE(context->Run(items).ok());
  std::vector<int64_t> rows(a.size() + b.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  const std::span<const float> together = *context->Logits(rows);
  const std::vector<float> logits(together.begin(), together.end());
  const std::span<const Token> greedy = *context->GreedyTokens(rows);
  const size_t vocabulary = logits.size() / rows.size();
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto row = logits.begin() + static_cast<int64_t>(r * vocabulary);
    EXPECT_EQ(greedy[r], std::max_element(row, row + static_cast<int64_t>(vocabulary)) - row) << "row " << r;
  }
  EXPECT_LT(MaxDifference(together.first(alone_a.size()), alone_a), 1e-4f);
  EXPECT_LT(MaxDifference(together.subspan(alone_a.size()), alone_b), 1e-4f);
}

TEST_P(TinyModel, ATokenOutsideTheVocabularyIsRefused) {
  CacheOptions options;
  options.kind = CacheKind::kHalf;
  options.max_tokens = 64;
  const auto context = MakeContext(*model_, options);
  const SequenceId sequence = *context->cache().AddSequence();
  for (Token bad : {-1, 256, 1 << 30}) {
    const SequenceTokens item{sequence, {&bad, 1}};
    EXPECT_EQ(context->Run({&item, 1}).code(), ErrorCode::kInvalidArgument);
  }
}

TEST_P(TinyModel, AFullCacheIsAnErrorAndChangesNothing) {
  CacheOptions options;
  options.kind = CacheKind::kHalf;
  options.max_tokens = 64;
  const auto context = MakeContext(*model_, options);
  const SequenceId sequence = *context->cache().AddSequence();
  const std::vector<Token> ids = RandomIds(65, 2);
  const SequenceTokens all{sequence, ids}, fits{sequence, std::span<const Token>(ids).first(64)};
  EXPECT_EQ(context->Run({&all, 1}).code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(context->cache().state(sequence).length, 0);
  EXPECT_TRUE(context->Run({&fits, 1}).ok());
}

TEST_P(TinyModel, APlanOfAnotherModelIsRefusedByTheFieldThatDiffers) {
  Plan plan = MakeTestPlan("aligned", 3, 3);
  plan.model.key_weights_hash = "0123456789abcdef";
  CacheOptions options;
  options.max_tokens = 64;
  const auto context = Context::Create(*model_, options, &plan);
  ASSERT_FALSE(context.ok());
  EXPECT_EQ(context.status().code(), ErrorCode::kMismatch);
  EXPECT_NE(context.status().message().find("key"), std::string::npos) << context.status().message();
}

TEST_P(TinyModel, ASessionContinuesAsIfItHadNeverBeenSaved) {
  const Plan plan = MakeTestPlan("aligned", 3, 3);
  const std::vector<Token> ids = RandomIds(210, 31);
  const TemporaryFolder folder;
  for (const auto& [kind, recent] : std::vector<std::pair<CacheKind, int>>{
           {CacheKind::kPacked, 64}, {CacheKind::kPacked, 0}, {CacheKind::kHalf, 0}}) {
    CacheOptions options;
    options.kind = kind;
    options.recent = recent;
    options.max_tokens = 512;
    const auto context = MakeContext(*model_, options, &plan);
    const SequenceId first = *context->cache().AddSequence();
    const std::span<const Token> head = std::span<const Token>(ids).first(200);
    ASSERT_TRUE(context->Append(first, head, {}, {}).ok());
    ASSERT_TRUE(SaveSession(context->cache(), first, head, folder.File("s")).ok());
    const auto loaded = LoadSession(context->cache(), folder.File("s"));
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_TRUE(std::equal(head.begin(), head.end(), loaded->tokens.begin(), loaded->tokens.end()));
    const auto last = [&](SequenceId sequence) {
      const Status status = context->Append(sequence, std::span<const Token>(ids).subspan(200), {}, {}, 1);
      EXPECT_TRUE(status.ok()) << status.message();
      const int64_t row = 0;
      const std::span<const float> logits = *context->Logits({&row, 1});
      return std::vector<float>(logits.begin(), logits.end());
    };
    EXPECT_EQ(last(first), last(loaded->sequence)) << "recent " << recent;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyGgufModel, testing::Values("llama", "llama3-rope", "qwen2"),
                         [](const auto& info) { return TestName(info.param); });
INSTANTIATE_TEST_SUITE_P(Architectures, TinyModel, testing::Values("llama", "llama3-rope", "qwen2"),
                         [](const auto& info) { return TestName(info.param); });
INSTANTIATE_TEST_SUITE_P(Families, TinyModel, testing::ValuesIn(FamilyModels()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace blockgtq::test
