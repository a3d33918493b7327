// Attention over latents, every SIMD target: packed records against the reference codec in double precision,
// exact tiles against tiles that hold keys and values apart.
#include "src/cpu/attention_latent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "src/cpu/attention_exact.h"
#include "tests/cpu/each_target.h"
#include "tests/cpu/packed_head_model.h"

namespace blockgtq::cpu {
namespace {

struct Case {
  const char* name;
  HeadSpec head;
  int latent_dims;
  int queries;
  int64_t tokens, begin;
  float attention_factor = 1.0f;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

// Every width, means of both parts, padding, fp16 norms, DeepSeek-V2's own dims.
std::vector<Case> Cases() {
  return {{"NoMean", {48, {{4, 16}, {3, 16}, {2, 16}}, 3, {}}, 32, 4, 300, 0},
          {"BothMeans", {48, {{4, 16}, {3, 32}}, 3, {0, 1, 2}}, 32, 3, 300, 70},
          {"LatentMean", {64, {{5, 16}, {3, 32}, {1, 16}}, 3, {2, 3}}, 32, 5, 200, 63, 1.3f},
          {"RopeMean", {64, {{8, 32}, {2, 32}}, 3, {0, 1}}, 32, 2, 130, 0, 1.3f},
          {"PaddedPaper",
           {64, {{8, 6}, {7, 4}, {6, 10}, {5, 8}, {3, 20}, {2, 16}}, 3, {}, NormType::kHalf},
           48,
           3,
           190,
           5},
          {"DeepSeekV2", {576, {{4, 64}, {3, 512}}, 3, {1, 7, 20}}, 512, 16, 150, 0}};
}

class AttendLatentsTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttendLatentsTest, MatchesTheReference) {
  const Case& c = GetParam();
  const HeadPlan plan = WithLatents(MakeHeadPlan(c.head, 7), c.latent_dims);
  const int dim = c.head.head_dim, rope_dims = dim - c.latent_dims;
  RopeConfig config = MakeRope(dim, c.attention_factor);
  config.rotary_dims = rope_dims;
  RopeTable rope(config);
  rope.Reserve(c.tokens + kPageTokens);
  const Sequence s = MakeSequence(plan, rope, c.tokens, 11);
  const RecordLayout layout = RecordLayout::For(plan);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const std::vector<float> data = Normals(static_cast<size_t>(c.queries * dim), 1.5f, 5);
  std::vector<const float*> queries;
  std::vector<int64_t> ends;  // the first query sees nothing, the last everything
  for (int i = 0; i < c.queries; ++i) {
    queries.push_back(data.data() + i * dim);
    ends.push_back(i == 0 ? c.begin : c.tokens - 40 * (c.queries - 1 - i) / c.queries);
  }
  ForEachTarget([&] {
    const PackedHead head = PackedHead::Make(plan, rope);
    PreparedQueries prepared;
    PrepareLatentQueries(head, queries, scale, prepared);
    CodesScratch scratch;
    std::vector<float> out(static_cast<size_t>(c.queries * dim)), lse(static_cast<size_t>(c.queries));
    AttendLatents(head, prepared, c.queries, s.records, c.begin, c.tokens, {nullptr, ends.data()}, rope,
                  scratch, out.data(), lse.data());
    EXPECT_EQ(lse[0], -std::numeric_limits<float>::infinity());
    for (int i = 1; i < c.queries; ++i) {
      std::vector<float> wanted(static_cast<size_t>(dim));
      float wanted_lse = 0;
      reference::Attention(plan, layout, rope, queries[static_cast<size_t>(i)], s.records, c.begin,
                           ends[static_cast<size_t>(i)], scale, wanted.data(), &wanted_lse);
      const auto latent = std::span<const float>(out).subspan(static_cast<size_t>(i * dim + rope_dims),
                                                              static_cast<size_t>(c.latent_dims));
      EXPECT_LE(RelativeL2(latent, std::span<const float>(wanted).last(latent.size())), 2e-5) << i;
      EXPECT_NEAR(lse[static_cast<size_t>(i)], wanted_lse, 1e-5f * std::max(1.0f, std::abs(wanted_lse))) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, AttendLatentsTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ExactLatents, AttendAsTilesThatHoldTheKeysTwice) {
  constexpr int kDim = 48, kQueries = 5;
  constexpr int64_t kBegin = 9, kEnd = 150;
  const std::vector<float> keys = Normals(kEnd * kDim, 1.0f, 1), data = Normals(kQueries * kDim, 1.0f, 3);
  std::vector<const float*> queries;
  for (int i = 0; i < kQueries; ++i) queries.push_back(data.data() + i * kDim);
  const std::vector<int64_t> ends = {9, 20, 64, 65, 150};
  for (const ExactType type : {ExactType::kHalf, ExactType::kFloat}) {
    for (const int tile_tokens : {64, 32}) {
      std::vector<float> out[2], lse[2];
      ForEachTarget([&] {
        for (const bool latents : {false, true}) {
          const ExactLayout layout{type, kDim, tile_tokens, latents};
          const auto bytes = static_cast<size_t>((latents ? 1 : 2) * kDim * tile_tokens *
                                                 (type == ExactType::kHalf ? 2 : 4));
          // Slots that are never written hold NaN: they must not leak into the sums.
          std::vector<std::vector<std::byte>> storage(static_cast<size_t>(kEnd / tile_tokens + 1),
                                                      std::vector<std::byte>(bytes, std::byte{0xff}));
          std::vector<const std::byte*> tiles;
          for (int64_t t = kBegin; t < kEnd; ++t) {
            const float* key = &keys[static_cast<size_t>(t * kDim)];
            StoreExact(layout, key, latents ? nullptr : key, static_cast<int>(t % tile_tokens),
                       storage[static_cast<size_t>(t / tile_tokens)].data());
          }
          for (const auto& tile : storage) tiles.push_back(tile.data());
          std::vector<float> scratch(static_cast<size_t>(ExactScratchFloats(kDim, kQueries)));
          out[latents].assign(kQueries * kDim, 7.0f);
          lse[latents].assign(kQueries, 7.0f);
          AttendExact(layout, queries, 0.2f, tiles, kBegin, kEnd, {nullptr, ends.data()}, scratch.data(),
                      out[latents].data(), lse[latents].data());
        }
        EXPECT_LE(RelativeL2(out[1], out[0]), 1e-6);
        EXPECT_EQ(lse[1][0], -std::numeric_limits<float>::infinity());
        for (int i = 1; i < kQueries; ++i) EXPECT_NEAR(lse[1][i], lse[0][i], 1e-5);
      });
    }
  }
}

TEST(ExactLatents, LoadWhatWasStored) {
  const ExactLayout layout{ExactType::kFloat, 16, 16, true};
  const std::vector<float> key = Normals(16, 1.0f, 4);
  std::vector<std::byte> tile(16 * 16 * 4);
  StoreExact(layout, key.data(), nullptr, 3, tile.data());
  std::vector<float> back(16), value(16, 5.0f);
  LoadExact(layout, tile.data(), 3, back.data(), value.data());
  EXPECT_EQ(back, key);
  EXPECT_EQ(value, std::vector<float>(16, 5.0f));
}

}  // namespace
}  // namespace blockgtq::cpu
