// Probed passes: other caches see the pass's own queries, keys and values, and leave the pass as it was.
#include <gtest/gtest.h>

#include <array>

#include "src/engine/bundled_text.h"
#include "src/engine/calibration.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

using Outputs = std::vector<std::vector<std::vector<float>>>;  // [caches][layers][rows * heads * head_dim]

class AttentionProbeTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath(GetParam()));
    tokens_ = model_->tokenizer().Encode(BundledScoringText().substr(0, 4000), false);
    tokens_.resize(300);
    const auto measured = Measure(*model_, tokens_, {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    Result<Plan> plan = MakePlan(*model_, *measured, "aligned", {3, 3, 2});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = std::move(plan).value();
  }

  std::unique_ptr<Context> Half() {
    CacheOptions options;
    options.kind = CacheKind::kHalf;
    options.max_tokens = 320;
    return MakeContext(*model_, options);
  }
  std::unique_ptr<Context> Packed(int sinks, int recent) {
    CacheOptions options;
    options.sinks = sinks;
    options.recent = recent;
    options.max_tokens = 320;
    return MakeContext(*model_, options, &plan_);
  }

  /// Runs the tokens strictly, 100 at a time, beside `others`; returns the last pass's outputs.
  Outputs Probe(Context& own, std::vector<Context*> others, std::vector<float>* logits = nullptr) {
    Outputs outputs;
    const ContextProbe probe{
        others, [&](int layer, std::span<const Activations* const> seen) {
          outputs.resize(seen.size());
          for (size_t c = 0; c < seen.size(); ++c) {
            outputs[c].resize(static_cast<size_t>(model_->config().layers));
            std::vector<float>& of_layer = outputs[c][static_cast<size_t>(layer)];
            of_layer.assign(static_cast<size_t>(100 * seen[c]->cols()), 0);
            for (int64_t r = 0; r < 100; ++r)
              EXPECT_TRUE(model_->backend()
                              .ReadRow(*seen[c], r, &of_layer[static_cast<size_t>(r * seen[c]->cols())])
                              .ok());
          }
          return Status::Ok();
        }};
    for (Context* other : others) EXPECT_EQ(*other->cache().AddSequence(), 0);
    EXPECT_EQ(*own.cache().AddSequence(), 0);
    for (size_t first = 0; first < 300; first += 100) {
      const SequenceTokens item{0, std::span<const Token>(tokens_).subspan(first, 100)};
      const Status status = own.Run({&item, 1}, {.strict = true, .probe = &probe});
      EXPECT_TRUE(status.ok()) << status.message();
      const std::array<int64_t, 3> rows = {0, 50, 99};
      const std::span<const float> now = *own.Logits(rows);
      if (logits != nullptr) logits->insert(logits->end(), now.begin(), now.end());
    }
    return outputs;
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<Token> tokens_;
  Plan plan_;
};

TEST_P(AttentionProbeTest, AnEqualCacheGivesEqualOutputsInEveryLayer) {
  const auto own = Half(), other = Half();
  const Outputs outputs = Probe(*own, {other.get()});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0], outputs[1]);
}

TEST_P(AttentionProbeTest, APackedCacheGivesInTheFirstLayerWhatItGivesWhenItDrives) {
  // The first layer's inputs are the same whatever drives; later ones differ once codes have been read.
  const auto half = Half(), beside = Packed(4, 64), driving = Packed(4, 64), second = Packed(0, 0),
             second_driving = Packed(0, 0);
  const Outputs both = Probe(*half, {beside.get(), second.get()});
  const Outputs alone = Probe(*driving, {}), second_alone = Probe(*second_driving, {});
  EXPECT_EQ(both[1][0], alone[0][0]);
  EXPECT_EQ(both[2][0], second_alone[0][0]);
  EXPECT_NE(both[1][0], both[2][0]);
  EXPECT_NE(both[1][1], alone[0][1]);
  EXPECT_GT(MaxDifference(both[0][0], both[1][0]), 0);
}

TEST_P(AttentionProbeTest, ThePassItselfIsAsWithoutAProbe) {
  const auto own = Half(), other = Packed(0, 0), plain = Half();
  std::vector<float> probed, unprobed;
  Probe(*own, {other.get()}, &probed);
  const SequenceId sequence = *plain->cache().AddSequence();
  for (size_t first = 0; first < 300; first += 100) {
    const SequenceTokens item{sequence, std::span<const Token>(tokens_).subspan(first, 100)};
    ASSERT_TRUE(plain->Run({&item, 1}, {.strict = true}).ok());
    const std::array<int64_t, 3> rows = {0, 50, 99};
    const std::span<const float> now = *plain->Logits(rows);
    unprobed.insert(unprobed.end(), now.begin(), now.end());
  }
  EXPECT_EQ(probed, unprobed);
  EXPECT_EQ(other->cache().state(0).length, 300);
  EXPECT_EQ(other->cache().state(0).coded_end, 300);
}

TEST_P(AttentionProbeTest, ACacheThatIsFullOrElsewhereIsAnErrorThatChangesNothing) {
  const auto own = Half();
  CacheOptions small;
  small.kind = CacheKind::kHalf;
  small.max_tokens = 64;
  const auto full = MakeContext(*model_, small);
  const auto ahead = Half();
  ASSERT_TRUE(own->cache().AddSequence().ok() && full->cache().AddSequence().ok() &&
              ahead->cache().AddSequence().ok());
  const SequenceTokens item{0, std::span<const Token>(tokens_).first(100)};
  ASSERT_TRUE(ahead->Run({&item, 1}).ok());
  const auto report = [](int, std::span<const Activations* const>) { return Status::Ok(); };
  for (const auto& [other, code] :
       {std::pair{full.get(), ErrorCode::kOutOfMemory}, {ahead.get(), ErrorCode::kInvalidArgument}}) {
    const std::array<Context*, 1> others = {other};
    const ContextProbe probe{others, report};
    const int64_t free = own->cache().free_tokens();
    EXPECT_EQ(own->Run({&item, 1}, {.probe = &probe}).code(), code);
    EXPECT_EQ(own->cache().state(0).length, 0);
    EXPECT_EQ(own->cache().free_tokens(), free);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AttentionProbeTest, testing::Values("llama", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace blockgtq::test
