// Layers with a sliding window give pages back: outputs are, to the bit, those of a cache that keeps every
// page and only masks.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>

#include "src/cache/session.h"
#include "src/engine/calibration.h"
#include "src/engine/plan_source.h"
#include "tests/engine/test_models.h"
#include "tests/formats/files.h"

namespace blockgtq::test {
namespace {

std::vector<Token> RandomIds(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<Token> ids(count);
  for (Token& id : ids) id = static_cast<Token>(generator() % 256);
  return ids;
}

/// Tokens through a cache whose geometry knows no window, without Context: pages are masked, none is dropped.
class MaskedCache {
 public:
  MaskedCache(LoadedModel& model, CacheOptions options, const Plan* plan) : model_(model) {
    const ModelConfig& c = model.config();
    options.memory = &model.backend().cache_memory();
    cache_ = KvCache::Create({c.layers, c.kv_heads, c.head_dim}, options, plan).value();
    binding_ = model.backend().BindCache(*cache_, c.ropes()).value();
    sequence_ = *cache_->AddSequence();
  }

  KvCache& cache() { return *cache_; }
  SequenceId sequence() const { return sequence_; }

  std::vector<float> Append(std::span<const Token> ids, int64_t batch) {
    Backend& backend = model_.backend();
    const int64_t vocabulary = model_.config().vocabulary;
    std::vector<float> all;
    for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(batch)) {
      const int64_t rows = std::min<int64_t>(batch, static_cast<int64_t>(ids.size() - first));
      const std::span<const Token> tokens = ids.subspan(first, static_cast<size_t>(rows));
      const BatchSlice slice{sequence_, 0, rows, cache_->state(sequence_).length, false};
      EXPECT_TRUE(cache_->Reserve(sequence_, rows).ok());
      const auto hidden = backend.MakeActivations(rows, model_.config().embedding);
      const auto logits = backend.MakeActivations(rows, vocabulary);
      const Batch run{tokens, {&slice, 1}, binding_.get(), nullptr, nullptr};
      const StepInput input{tokens, {&slice, 1}, binding_.get(), false};
      const Status status = backend.Step(input, [&] { return model_.model().Forward(run, *hidden); });
      EXPECT_TRUE(status.ok()) << status.message();
      cache_->Commit(sequence_, rows, CodedEndAfter(*cache_, slice));
      model_.model().Logits(*hidden, rows, *logits);
      std::vector<float> row(static_cast<size_t>(vocabulary));
      for (int64_t r = 0; r < rows; ++r) {
        EXPECT_TRUE(backend.ReadRow(*logits, r, row.data()).ok());
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    return all;
  }

 private:
  LoadedModel& model_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CacheBinding> binding_;
  SequenceId sequence_ = 0;
};

std::vector<float> Append(Context& context, SequenceId sequence, std::span<const Token> ids, int64_t batch) {
  return AppendAll(context, sequence, ids, {}, batch);
}

std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Models of windows of 16 and 24 tokens, in every layer (mistral-swa, phi3) or in three of four (gemma3).
class SlidingWindow : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("hf/" + GetParam()));
    ASSERT_NE(model_, nullptr);
    ASSERT_GT(model_->config().window, 0);
    auto measured = Measure(*model_, RandomIds(128, 1), {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    measured_ = std::move(measured).value();
    auto plan = MakePlan(*model_, measured_, "aligned", {3, 3, 1});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = std::move(plan).value();
  }

  /// Of each kind; simulated ones are twins of the plan's recipe, and one whose ranges lag behind.
  std::vector<CacheOptions> Kinds() {
    std::vector<CacheOptions> all;
    for (const auto& [kind, recent] :
         {std::pair{CacheKind::kPacked, 64}, {CacheKind::kPacked, 0}, {CacheKind::kFloat, 0}}) {
      all.push_back({.kind = kind, .sinks = 4, .recent = recent, .max_tokens = 512, .model = ""});
    }
    for (const std::string recipe : {"sim:aligned", "kivi"}) {
      // Recipes that store keys before RoPE know one RoPE a model.
      if (recipe == "kivi" && model_->config().window_rope.has_value()) continue;
      auto heads = MakeSimulated(*model_, measured_, recipe, {2, 2});
      EXPECT_TRUE(heads.ok()) << heads.status().message();
      all.push_back(
          {.kind = CacheKind::kSimulated, .sinks = 4, .recent = 64, .max_tokens = 512, .model = ""});
      all.back().simulated = std::make_shared<SimulatedHeads>(std::move(heads).value());
    }
    return all;
  }

  int WindowedLayers() const {
    int count = 0;
    for (int l = 0; l < model_->config().layers; ++l) count += model_->config().window_of(l) > 0 ? 1 : 0;
    return count;
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<HeadCalibration> measured_;
  Plan plan_;
};

TEST_P(SlidingWindow, OutputsAreThoseOfACacheThatKeepsEveryPage) {
  const std::vector<Token> ids = RandomIds(420, 2);
  for (const CacheOptions& options : Kinds()) {
    MaskedCache masked(*model_, options, &plan_);
    const auto context = MakeContext(*model_, options, &plan_);
    const SequenceId sequence = *context->cache().AddSequence();
    for (const auto& [first, count, batch] :
         {std::tuple<size_t, size_t, int64_t>{0, 300, 300}, {300, 90, 37}, {390, 30, 1}}) {
      const std::span<const Token> part = std::span<const Token>(ids).subspan(first, count);
      EXPECT_EQ(Append(*context, sequence, part, batch), masked.Append(part, batch))
          << "from " << first << ", kind " << static_cast<int>(options.kind) << ", recent " << options.recent;
    }
    const int64_t all = masked.cache().SequenceBytes(masked.sequence()),
                  held = context->cache().SequenceBytes(sequence);
    EXPECT_LT(held, all);
    if (options.kind == CacheKind::kFloat) {
      // 420 tokens are 7 pages; the last 24, and 64 that may be taken back, are on 2 or 3.
      const int layers = model_->config().layers, windowed = WindowedLayers();
      EXPECT_LE(held * 7 * layers, all * (7 * (layers - windowed) + 3 * windowed));
    }
  }
}

TEST_P(SlidingWindow, ForksAndCutsGoOnAsTheSequenceDid) {
  const std::vector<Token> ids = RandomIds(400, 3);
  const std::span<const Token> prompt = std::span<const Token>(ids).first(300),
                               rest = std::span<const Token>(ids).subspan(300, 60);
  for (const CacheOptions& options : Kinds()) {
    CacheOptions larger = options;
    larger.max_tokens = 4096;
    const auto context = MakeContext(*model_, larger, &plan_);
    KvCache& cache = context->cache();
    const SequenceId sequence = *cache.AddSequence();
    Append(*context, sequence, prompt, 100);
    const auto early = cache.ForkSequence(sequence, 300);
    ASSERT_TRUE(early.ok()) << early.status().message();
    const std::vector<float> wanted = Append(*context, sequence, rest, 20);
    EXPECT_EQ(Append(*context, *early, rest, 20), wanted);
    // What a window has left behind cannot come back; all that is not yet left behind can.
    EXPECT_EQ(cache.Truncate(sequence, 100).code(), ErrorCode::kInvalidArgument);
    const auto refused = cache.ForkSequence(sequence, 100);
    EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("window of"), std::string::npos) << refused.status().message();
    ASSERT_TRUE(cache.Truncate(sequence, 360 - kRewindTokens).ok());
    ASSERT_TRUE(cache.Truncate(*early, 0).ok());
    EXPECT_EQ(Append(*context, *early, prompt, 100).size(), 300u * 256);
    EXPECT_EQ(Append(*context, *early, rest, 20), wanted);
    cache.RemoveSequence(*early);
    cache.RemoveSequence(sequence);
    EXPECT_EQ(cache.free_tokens(), cache.options().max_tokens);
  }
}

TEST_P(SlidingWindow, ASessionHoldsWhatIsStillSeenAndGoesOnAsTheSequence) {
  const std::vector<Token> ids = RandomIds(400, 4);
  const TemporaryFolder folder;
  for (const CacheOptions& options : Kinds()) {
    if (options.kind == CacheKind::kSimulated) continue;  // has no sessions
    const auto context = MakeContext(*model_, options, &plan_), other = MakeContext(*model_, options, &plan_);
    const SequenceId sequence = *context->cache().AddSequence();
    const std::span<const Token> prompt = std::span<const Token>(ids).first(310);
    Append(*context, sequence, prompt, 100);
    ASSERT_TRUE(SaveSession(context->cache(), sequence, prompt, folder.File("s")).ok());
    const auto loaded = LoadSession(other->cache(), folder.File("s"));
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_LE(other->cache().SequenceBytes(loaded->sequence), context->cache().SequenceBytes(sequence));
    ASSERT_TRUE(SaveSession(other->cache(), loaded->sequence, prompt, folder.File("again")).ok());
    EXPECT_EQ(FileBytes(folder.File("again")), FileBytes(folder.File("s")));
    CacheOptions same_model = options;
    same_model.model = context->cache().options().model;
    MaskedCache masked(*model_, same_model, &plan_);
    const Status refused = LoadSession(masked.cache(), folder.File("s")).status();
    EXPECT_EQ(refused.code(), ErrorCode::kMismatch);
    EXPECT_NE(refused.message().find("window"), std::string::npos) << refused.message();
    const std::span<const Token> rest = std::span<const Token>(ids).subspan(310);
    EXPECT_EQ(Append(*other, loaded->sequence, rest, 30), Append(*context, sequence, rest, 30));
  }
}

TEST_P(SlidingWindow, RepeatedPagesFillADepth) {
  for (const CacheOptions& options : Kinds()) {
    CacheOptions larger = options;
    larger.max_tokens = 4096;
    const auto context = MakeContext(*model_, larger, &plan_);
    KvCache& cache = context->cache();
    const SequenceId sequence = *cache.AddSequence();
    Append(*context, sequence, RandomIds(256, 5), 256);
    const int64_t before = cache.SequenceBytes(sequence), pages = 12;
    const Status inserted = cache.InsertCopies(sequence, pages);
    ASSERT_TRUE(inserted.ok()) << inserted.message();
    EXPECT_EQ(cache.state(sequence).length, 256 + 64 * pages);
    if (WindowedLayers() == model_->config().layers) {
      EXPECT_LE(cache.SequenceBytes(sequence), before + before / 2);
    }
    for (const float logit : Append(*context, sequence, RandomIds(100, 6), 1))
      ASSERT_TRUE(std::isfinite(logit));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SlidingWindow, testing::Values("mistral-swa", "gemma3", "phi3"),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace blockgtq::test
