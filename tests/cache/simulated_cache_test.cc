// What a cache of simulated codes takes and refuses. That its tokens read as they should is tested with the
// attention over them (tests/cpu/attention_op_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "src/cache/kv_cache.h"
#include "src/cache/session.h"
#include "src/core/machine_memory.h"

namespace blockgtq {
namespace {

using testing::HasSubstr;

class FixedHead : public SimulatedHead {
 public:
  explicit FixedHead(int unit) : unit_(unit) {}
  void RoundTripKeys(std::span<const float>, std::span<float>, int64_t) const override {}
  void RoundTripValues(std::span<float>, int64_t) const override {}
  double bytes_per_token() const override { return 10.5; }
  double key_bytes_per_token() const override { return 5; }
  int token_unit() const override { return unit_; }

 private:
  int unit_;
};

std::shared_ptr<const SimulatedHeads> Heads(int layers, int kv_heads, int head_dim, int unit = 1) {
  auto heads = std::make_shared<SimulatedHeads>();
  *heads = {"fixed", layers, kv_heads, head_dim, {}};
  for (int i = 0; i < layers * kv_heads; ++i) heads->heads.push_back(std::make_unique<FixedHead>(unit));
  return heads;
}

CacheOptions Options(std::shared_ptr<const SimulatedHeads> heads, int sinks = 4, int recent = 64) {
  CacheOptions options;
  options.kind = CacheKind::kSimulated;
  options.sinks = sinks;
  options.recent = recent;
  options.max_tokens = 256;
  options.simulated = std::move(heads);
  return options;
}

constexpr CacheGeometry kGeometry{2, 2, 32};

TEST(SimulatedCache, RefusesMoreTokensThanMemoryHolds) {
  const auto memory = ReadMachineMemory();
  if (!memory.has_value()) GTEST_SKIP() << "the system does not say how much memory it has";
  CacheOptions options = Options(Heads(2, 2, 32));
  constexpr int64_t kTokenBytes = int64_t{16} * 2 * 2 * 32;
  options.max_tokens = (memory->total / kTokenBytes / 64 + 1) * 64;
  const Status refused = KvCache::Create(kGeometry, options, nullptr).status();
  EXPECT_EQ(refused.code(), ErrorCode::kOutOfMemory);
  const std::string tokens = std::to_string(options.max_tokens);
  EXPECT_THAT(refused.message(), HasSubstr("KV cache of " + tokens + " tokens: " +
                                           std::to_string(options.max_tokens * kTokenBytes) + " bytes"));
  EXPECT_THAT(refused.message(), HasSubstr("are free"));
}

TEST(SimulatedCache, RefusesHeadsThatAreNotTheModels) {
  const auto status = [](const CacheOptions& options) {
    return KvCache::Create(kGeometry, options, nullptr).status();
  };
  EXPECT_TRUE(status(Options(Heads(2, 2, 32))).ok());
  EXPECT_EQ(status(Options(nullptr)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(status(Options(Heads(3, 2, 32))).code(), ErrorCode::kMismatch);
  EXPECT_EQ(status(Options(Heads(2, 1, 32))).code(), ErrorCode::kMismatch);
  EXPECT_EQ(status(Options(Heads(2, 2, 64))).code(), ErrorCode::kMismatch);
  EXPECT_EQ(status(Options(Heads(2, 2, 32), 65)).code(), ErrorCode::kInvalidArgument);
}

TEST(SimulatedCache, TokensCodedTogetherNeedAWindowAsLong) {
  const auto status = [](int unit, int recent) {
    return KvCache::Create(kGeometry, Options(Heads(2, 2, 32, unit), 4, recent), nullptr).status();
  };
  EXPECT_TRUE(status(1, 0).ok());
  EXPECT_TRUE(status(32, 32).ok());
  for (int recent : {0, 31}) {
    EXPECT_EQ(status(32, recent).code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status(32, recent).message(), HasSubstr("recipe fixed"));
    EXPECT_THAT(status(32, recent).message(), HasSubstr("--recent 32"));
  }
  EXPECT_EQ(status(48, 64).code(), ErrorCode::kInvalidArgument);  // pages of 64 are no whole number of units
}

TEST(SimulatedCache, TokensAgeAsInAPackedCache) {
  const auto window = KvCache::Create(kGeometry, Options(Heads(2, 2, 32)), nullptr).value();
  EXPECT_EQ(window->CodedEndBefore(191), 64);
  EXPECT_EQ(window->CodedEndBefore(192), 128);
  const auto strict = KvCache::Create(kGeometry, Options(Heads(2, 2, 32), 0, 0), nullptr).value();
  EXPECT_EQ(strict->CodedEndBefore(191), 191);
  EXPECT_EQ(strict->window_tiles(), 0);
}

TEST(SimulatedCache, CountsWhatItsCodesWouldTake) {
  const auto cache = KvCache::Create(kGeometry, Options(Heads(2, 2, 32), 4, 64), nullptr).value();
  const SequenceId id = *cache->AddSequence();
  const int64_t exact = cache->SequenceBytes(id);  // the window of three pages, 16 sinks, in fp16
  EXPECT_EQ(exact, 4 * (ExactTileBytes(true, 32, 64) * cache->window_tiles() + ExactTileBytes(true, 32, 16)));
  ASSERT_TRUE(cache->Reserve(id, 100).ok());
  EXPECT_EQ(cache->SequenceBytes(id) - exact, static_cast<int64_t>(2 * 64 * 4 * 10.5));
}

TEST(SimulatedCache, HasNoSessions) {
  const auto cache = KvCache::Create(kGeometry, Options(Heads(2, 2, 32)), nullptr).value();
  const SequenceId id = *cache->AddSequence();
  const Status saved = SaveSession(*cache, id, {}, testing::TempDir() + "simulated.session");
  EXPECT_EQ(saved.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(saved.message(), HasSubstr("recipe fixed is simulated"));
}

}  // namespace
}  // namespace blockgtq
