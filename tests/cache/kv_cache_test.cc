// The cache keeps every token's bytes through any history of appends, truncations, forks and removals.
#include "src/cache/kv_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>

#include "tests/cache/cache_model.h"

namespace blockgtq {
namespace {

struct Setting {
  const char* name;
  CacheKind kind;
  int sinks, recent;
};
const Setting kSettings[] = {
    {"Default", CacheKind::kPacked, 4, 64},     {"Strict", CacheKind::kPacked, 0, 0},
    {"StrictSinks", CacheKind::kPacked, 17, 0}, {"ShortWindow", CacheKind::kPacked, 0, 1},
    {"OddWindow", CacheKind::kPacked, 64, 100}, {"Half", CacheKind::kHalf, 0, 0},
    {"Float", CacheKind::kFloat, 0, 0},
};

constexpr CacheGeometry kGeometry{2, 2, 32};

class CacheBooks : public testing::TestWithParam<Setting> {
 protected:
  CacheModel Model(int64_t max_tokens) const {
    const Setting& s = GetParam();
    return CacheModel(kGeometry, {s.kind, s.sinks, s.recent, max_tokens, ""}, &plan_);
  }
  Plan plan_ = TestPlan(2, 2);
};

TEST_P(CacheBooks, AgreeWithAModelUnderRandomUse) {
  CacheModel model = Model(12 * kPageTokens);
  std::mt19937 random(11);
  uint32_t token = 0;
  int refused = 0;
  for (int step = 0; step < 300; ++step) {
    if (model.sequences.empty()) model.Add();
    auto chosen = std::next(model.sequences.begin(), random() % model.sequences.size());
    const SequenceId id = chosen->first;
    const int64_t length = chosen->second.tokens.size();
    switch (random() % 8) {
      case 0:
        if (model.sequences.size() < 5) model.Add();
        break;
      case 1:
        if (random() % 2 == 0) model.Remove(id);
        break;
      case 2:
        model.Truncate(id, random() % (length + 1));
        break;
      case 3:
        model.Truncate(id, length - std::min<int64_t>(length, random() % 70));
        break;
      case 4:
        if (model.sequences.size() < 6) {
          model.Fork(id, random() % 3 ? length : random() % (length + 1), random() % 3 != 0);
        }
        break;
      default: {
        const int64_t count = random() % 4 ? random() % 40 : random() % 300;
        model.Append(id, Tokens(token, count));
        token += 1000;
        refused += count > 0 && static_cast<int64_t>(model.sequences.at(id).tokens.size()) == length;
      }
    }
    if (step % 3 != 0) continue;
    ASSERT_NO_FATAL_FAILURE(model.Check()) << "step " << step;
  }
  EXPECT_GT(refused, 3);  // the cache was full now and then
  while (!model.sequences.empty()) model.Remove(model.sequences.begin()->first);
  EXPECT_EQ(model.cache->free_tokens(), 12 * kPageTokens);
}

TEST_P(CacheBooks, AForkWritesWithoutTouchingItsSource) {
  CacheModel model = Model(40 * kPageTokens);
  const SequenceId source = model.Add();
  model.Append(source, Tokens(0, 400));
  for (const int64_t length : {400, 384, 383, 200, 64, 63, 1, 0}) model.Fork(source, length, length % 2 == 0);
  for (auto& [id, sequence] : model.sequences) model.Append(id, Tokens(10000 * (id + 1), 150));
  ASSERT_NO_FATAL_FAILURE(model.Check());
  model.Remove(source);
  ASSERT_NO_FATAL_FAILURE(model.Check());
}

TEST_P(CacheBooks, TruncationIntoASharedPageCopiesIt) {
  CacheModel model = Model(40 * kPageTokens);
  const SequenceId source = model.Add();
  model.Append(source, Tokens(0, 450));
  model.Fork(source, 450);
  model.Truncate(source, 100);
  ASSERT_NO_FATAL_FAILURE(model.Check());
  model.Append(source, Tokens(5000, 100));
  ASSERT_NO_FATAL_FAILURE(model.Check());
}

TEST_P(CacheBooks, WholePagesOfAForkTakeNoMemory) {
  CacheModel model = Model(20 * kPageTokens);
  const SequenceId source = model.Add();
  model.Append(source, Tokens(0, 10 * 64));
  const int64_t before = model.cache->free_tokens();
  const int64_t final_tokens =
      GetParam().kind == CacheKind::kPacked ? model.cache->state(source).coded_end : 640;
  ASSERT_TRUE(model.cache->ForkSequence(source, 640).ok());
  EXPECT_EQ(before - model.cache->free_tokens(), 640 - final_tokens / 64 * 64);
}

TEST_P(CacheBooks, InsertedCopiesRepeatThePagesBeforeThem) {
  CacheModel model = Model(40 * kPageTokens);
  const SequenceId id = model.Add();
  EXPECT_EQ(model.cache->InsertCopies(id, 2).code(), ErrorCode::kInvalidArgument) << "nothing to copy";
  model.Append(id, Tokens(0, 7 * 64));
  const int64_t coded = model.cache->state(id).coded_end;
  const int64_t whole = (GetParam().kind == CacheKind::kPacked ? coded : 448) / 64;
  const int64_t unit = std::max(model.cache->window_tiles(), 1), pages = 4 * unit;
  if (unit > 1) {
    EXPECT_EQ(model.cache->InsertCopies(id, 1).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(model.cache->InsertCopies(id, 60 * unit).code(), ErrorCode::kOutOfMemory);
  ASSERT_NO_FATAL_FAILURE(model.Check());
  ASSERT_TRUE(model.cache->InsertCopies(id, pages).ok());
  model.InsertCopies(id, whole, pages);
  ASSERT_NO_FATAL_FAILURE(model.Check());
  model.Append(id, Tokens(7000, 130));
  ASSERT_NO_FATAL_FAILURE(model.Check());
}

TEST_P(CacheBooks, NewPagesAreZeroAfterReuse) {
  CacheModel model = Model(4 * kPageTokens);
  model.Append(model.Add(), Tokens(0, 256));
  model.Remove(0);
  const SequenceId id = *model.cache->AddSequence();
  ASSERT_TRUE(model.cache->Reserve(id, 256).ok());
  for (int layer = 0; layer < 2; ++layer) {
    for (int tile = 0; tile < 4; ++tile) {
      const std::byte* begin = model.cache->PageHead(id, layer, 0, tile);
      const std::byte* second = model.cache->PageHead(id, layer, 1, tile);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(second) % 16, 0u);
      EXPECT_TRUE(
          std::all_of(begin, second + (second - begin) / 2, [](std::byte b) { return b == std::byte{0}; }));
    }
  }
}

TEST_P(CacheBooks, SequenceBytesAreThoseOfItsPagesAndTiles) {
  CacheModel model = Model(10 * kPageTokens);
  const SequenceId id = model.Add();
  model.Append(id, Tokens(0, 65));  // two pages
  const Setting& s = GetParam();
  int64_t expected = 0;
  if (s.kind == CacheKind::kPacked) {
    for (const HeadPlan& head : plan_.heads) {
      int bits = 0;
      for (const GroupPlan& group : head.groups) bits += 16 * group.width;
      bits += 32 * head.value.width + 3 * (head.norm_type == NormType::kHalf ? 16 : 8);
      expected += 2 * 64 * bits / 8;
    }
    const int sink_tile = (s.sinks + 15) / 16 * 16;
    const int ring = s.recent == 0 ? 0 : ((s.recent + 63) / 64 + 1) * 64;
    expected += 4 * (ring + sink_tile) * 32 * 2 * 2;
  } else {
    expected = 4 * 128 * 32 * 2 * (s.kind == CacheKind::kHalf ? 2 : 4);
  }
  EXPECT_EQ(model.cache->SequenceBytes(id), expected);
  EXPECT_EQ(model.cache->HalfBytes(100), 100 * 4 * 32 * 2 * 2);
}

INSTANTIATE_TEST_SUITE_P(Settings, CacheBooks, testing::ValuesIn(kSettings),
                         [](const auto& info) { return info.param.name; });

TEST(KvCache, CodesReachTheLastPageThatEndsBeforeTheWindow) {
  const Plan plan = TestPlan(1, 1);
  const auto make = [&](CacheKind kind, int recent) {
    return KvCache::Create({1, 1, 32}, {kind, 0, recent, 6400, ""}, &plan).value();
  };
  const auto window = make(CacheKind::kPacked, 64);
  EXPECT_EQ(window->window_tiles(), 2);
  const std::pair<int64_t, int64_t> cases[] = {{0, 0},    {127, 0},   {128, 64},
                                               {191, 64}, {192, 128}, {6400, 6336}};
  for (const auto& [position, coded] : cases) EXPECT_EQ(window->CodedEndBefore(position), coded) << position;
  const auto odd = make(CacheKind::kPacked, 100);
  EXPECT_EQ(odd->window_tiles(), 3);
  EXPECT_EQ(odd->CodedEndBefore(163), 0);
  EXPECT_EQ(odd->CodedEndBefore(164), 64);
  const auto strict = make(CacheKind::kPacked, 0);
  EXPECT_EQ(strict->window_tiles(), 0);
  EXPECT_EQ(strict->CodedEndBefore(77), 77);
  EXPECT_EQ(make(CacheKind::kHalf, 64)->CodedEndBefore(1000), 0);
}

TEST(KvCache, ConsecutiveWindowTilesAreDistinctAndTheRingCloses) {
  const Plan plan = TestPlan(2, 2);
  const auto cache = KvCache::Create({2, 2, 32}, {CacheKind::kPacked, 4, 100, 640, ""}, &plan).value();
  const SequenceId id = *cache->AddSequence();
  const int64_t tile_bytes = ExactTileBytes(true, 32, 64);
  std::vector<std::byte*> tiles;
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      for (int64_t tile = 7; tile < 7 + cache->window_tiles(); ++tile) {
        tiles.push_back(cache->WindowTile(id, layer, head, tile));
        EXPECT_EQ(tiles.back(), cache->WindowTile(id, layer, head, tile + cache->window_tiles()));
      }
      tiles.push_back(cache->SinkTile(id, layer, head));
    }
  }
  std::sort(tiles.begin(), tiles.end());
  const int64_t sink_bytes = ExactTileBytes(true, 32, cache->sink_tile_tokens());
  for (size_t i = 1; i < tiles.size(); ++i) {
    EXPECT_GE(tiles[i] - tiles[i - 1], i < 12u + 1 ? tile_bytes : sink_bytes);  // 12 tiles, then 4 sink tiles
  }
}

TEST(KvCache, ReservationThatDoesNotFitStatesTokensWantedAndFree) {
  const Plan plan = TestPlan(1, 1);
  const auto cache = KvCache::Create({1, 1, 32}, {CacheKind::kPacked, 4, 64, 250, ""}, &plan).value();
  EXPECT_EQ(cache->options().max_tokens, 256);
  const SequenceId id = *cache->AddSequence();
  ASSERT_TRUE(cache->Reserve(id, 70).ok());
  cache->Commit(id, 70, 0);
  const Status status = cache->Reserve(id, 187);
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(status.message().find("187 tokens wanted, 186 of 256"), std::string::npos) << status.message();
  EXPECT_EQ(cache->Reserve(id, INT64_MAX).code(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(cache->free_tokens(), 128);
  EXPECT_TRUE(cache->Reserve(id, 186).ok());
  EXPECT_EQ(cache->free_tokens(), 0);
  EXPECT_EQ(cache->Reserve(id, -1).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache->Truncate(id, 71).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache->Truncate(id, -1).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache->ForkSequence(id, 71).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(cache->Truncate(id, 70).ok());  // gives back what was reserved and not used
  EXPECT_EQ(cache->free_tokens(), 128);
}

TEST(KvCache, SequenceIdsAreReusedOnlyAfterRemoval) {
  const Plan plan = TestPlan(1, 1);
  const auto cache = KvCache::Create({1, 1, 32}, {CacheKind::kPacked, 4, 64, 64, ""}, &plan).value();
  for (SequenceId expected = 0; expected < 4; ++expected) EXPECT_EQ(*cache->AddSequence(), expected);
  cache->RemoveSequence(1);
  EXPECT_EQ(*cache->AddSequence(), 1);
  EXPECT_EQ(*cache->AddSequence(), 4);
}

TEST(KvCache, RefusesWhatItCannotHonour) {
  const Plan plan = TestPlan(2, 2);
  const auto code = [&](CacheGeometry geometry, CacheOptions options, const Plan* with) {
    return KvCache::Create(geometry, options, with).status().code();
  };
  const CacheOptions good{CacheKind::kPacked, 4, 64, 1024, ""};
  EXPECT_EQ(code({2, 2, 32}, good, &plan), ErrorCode::kOk);
  EXPECT_EQ(code({2, 2, 32}, good, nullptr), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({0, 2, 32}, good, &plan), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({2, 2, 32}, {CacheKind::kPacked, 65, 64, 1024, ""}, &plan), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({2, 2, 32}, {CacheKind::kPacked, 4, -1, 1024, ""}, &plan), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({2, 2, 32}, {CacheKind::kPacked, 4, 64, 0, ""}, &plan), ErrorCode::kInvalidArgument);
  for (const CacheGeometry& other : {CacheGeometry{3, 2, 32}, {2, 3, 32}, {2, 2, 64}}) {
    EXPECT_EQ(code(other, good, &plan), ErrorCode::kMismatch);
  }
  EXPECT_EQ(code({2, 2, 32}, {CacheKind::kPacked, 4, 64, INT64_MAX - 100, ""}, &plan),
            ErrorCode::kOutOfMemory);
  EXPECT_EQ(code({1000, 1000, 1 << 20}, {CacheKind::kFloat, 0, 0, 1 << 20, ""}, nullptr),
            ErrorCode::kOutOfMemory);
  EXPECT_EQ(code({INT32_MAX, INT32_MAX, 1}, {CacheKind::kHalf, 0, 0, 1, ""}, nullptr),
            ErrorCode::kOutOfMemory);
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(KvCache, AMillionTokensCostNothingUntilUsedAndNothingOnceFreed) {
  constexpr int64_t kMiB = 1 << 20;
  const int64_t before = ResidentBytes();
  // 28 layers x 2 heads x 128 dims in fp16: 30 GB when full.
  const auto cache = KvCache::Create({28, 2, 128}, {CacheKind::kHalf, 0, 0, 1 << 20, ""}, nullptr).value();
  const SequenceId id = *cache->AddSequence();
  EXPECT_LT(ResidentBytes() - before, 8 * kMiB);
  ASSERT_TRUE(cache->Reserve(id, 1 << 20).ok());
  EXPECT_LT(ResidentBytes() - before, 8 * kMiB);
  for (int layer = 0; layer < 28; ++layer) {
    for (int tile = 0; tile < 100; ++tile) {
      for (int head = 0; head < 2; ++head) {
        std::memset(cache->PageHead(id, layer, head, tile), 1, ExactTileBytes(true, 128, 64));
      }
    }
  }
  EXPECT_GT(ResidentBytes() - before, 150 * kMiB);  // 175 MiB were written
  cache->RemoveSequence(id);
  EXPECT_LT(ResidentBytes() - before, 16 * kMiB);
}

}  // namespace
}  // namespace blockgtq
