// Exact attention, every SIMD target, against double precision on the stored (fp16 or fp32) elements.
#include "src/cpu/attention_exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "tests/cpu/packed_head_model.h"
// clang-format off
#include "src/cpu/simd_targets.h"  // chooses the targets: before any Highway header
#include "hwy/highway.h"
// clang-format on

namespace blockgtq::cpu {
namespace {

struct Case {
  const char* name;
  ExactType type;
  int dim, tile_tokens, queries;
  int64_t begin, end;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

class AttendExactTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttendExactTest, MatchesDoublePrecision) {
  const Case& c = GetParam();
  const ExactLayout layout = {c.type, c.dim, c.tile_tokens};
  const int64_t tiles = (c.end + c.tile_tokens - 1) / c.tile_tokens;
  const size_t tile_bytes = 2ull * c.dim * c.tile_tokens * (c.type == ExactType::kHalf ? 2 : 4);
  // Slots that are never written hold NaN: hidden tokens must not leak into the sums.
  std::vector<std::vector<std::byte>> storage(tiles, std::vector<std::byte>(tile_bytes, std::byte{0xff}));
  std::vector<const std::byte*> tile_pointers;
  const std::vector<float> keys = Normals(c.end * c.dim, 1.0f, 1), values = Normals(c.end * c.dim, 1.0f, 2);
  std::vector<float> stored_keys(keys.size()), stored_values(values.size());
  for (int64_t t = c.begin; t < c.end; ++t) {
    std::byte* tile = storage[t / c.tile_tokens].data();
    const int slot = static_cast<int>(t % c.tile_tokens);
    StoreExact(layout, &keys[t * c.dim], &values[t * c.dim], slot, tile);
    LoadExact(layout, tile, slot, &stored_keys[t * c.dim], &stored_values[t * c.dim]);
    for (int d = 0; d < c.dim; ++d) {
      ASSERT_NEAR(stored_keys[t * c.dim + d], keys[t * c.dim + d], 4e-3);
      ASSERT_NEAR(stored_values[t * c.dim + d], values[t * c.dim + d], 4e-3);
    }
  }
  for (const auto& tile : storage) tile_pointers.push_back(tile.data());
  const std::vector<float> data = Normals(static_cast<size_t>(c.queries) * c.dim, 1.0f, 3);
  std::vector<const float*> queries;
  std::vector<int64_t> ends;  // causal: the last query sees everything, some see nothing
  for (int i = 0; i < c.queries; ++i) {
    queries.push_back(data.data() + static_cast<size_t>(i) * c.dim);
    ends.push_back(c.end - (c.queries - 1 - i) * 5);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  for (bool causal : {false, true}) {
    std::vector<std::vector<float>> expected(c.queries, std::vector<float>(c.dim));
    std::vector<double> expected_lse(c.queries, -std::numeric_limits<double>::infinity());
    for (int i = 0; i < c.queries; ++i) {
      const int64_t end = causal ? std::min(c.end, ends[i]) : c.end;
      std::vector<double> logits, sum(c.dim, 0.0);
      for (int64_t t = c.begin; t < end; ++t) {
        double dot = 0;
        for (int d = 0; d < c.dim; ++d) dot += double{queries[i][d]} * stored_keys[t * c.dim + d];
        logits.push_back(dot * scale);
      }
      if (logits.empty()) continue;
      const double largest = *std::max_element(logits.begin(), logits.end());
      double total = 0;
      for (int64_t t = c.begin; t < end; ++t) {
        const double weight = std::exp(logits[t - c.begin] - largest);
        total += weight;
        for (int d = 0; d < c.dim; ++d) sum[d] += weight * stored_values[t * c.dim + d];
      }
      for (int d = 0; d < c.dim; ++d) expected[i][d] = static_cast<float>(sum[d] / total);
      expected_lse[i] = largest + std::log(total);
    }
    for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(target);
      std::vector<float> scratch(ExactScratchFloats(c.dim, c.queries));
      std::vector<float> out(static_cast<size_t>(c.queries) * c.dim, 7.0f), lse(c.queries);
      AttendExact(layout, queries, scale, tile_pointers, c.begin, c.end,
                  {nullptr, causal ? ends.data() : nullptr}, scratch.data(), out.data(), lse.data());
      for (int i = 0; i < c.queries; ++i) {
        const std::span<const float> row(out.data() + static_cast<size_t>(i) * c.dim, c.dim);
        if (std::isinf(expected_lse[i])) {
          EXPECT_EQ(lse[i], -std::numeric_limits<float>::infinity()) << i;
          for (float x : row) EXPECT_EQ(x, 0.0f);
          continue;
        }
        EXPECT_LE(RelativeL2(row, expected[i]), 2e-5) << "query " << i;
        EXPECT_NEAR(lse[i], expected_lse[i], 2e-5) << "query " << i;
      }
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().DeInit();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttendExactTest,
                         ::testing::Values(Case{"Decode", ExactType::kHalf, 64, 64, 3, 0, 300},
                                           Case{"DecodeFloat", ExactType::kFloat, 64, 64, 4, 0, 300},
                                           Case{"Begin", ExactType::kHalf, 128, 64, 5, 70, 333},
                                           Case{"Sinks", ExactType::kHalf, 64, 16, 3, 0, 4},
                                           Case{"ManySinks", ExactType::kHalf, 64, 144, 2, 3, 140},
                                           Case{"Chunk", ExactType::kHalf, 64, 64, 70, 64, 270},
                                           Case{"ChunkFloat", ExactType::kFloat, 80, 64, 33, 0, 200},
                                           Case{"Wide", ExactType::kHalf, 256, 64, 1, 5, 90},
                                           Case{"Narrow", ExactType::kHalf, 16, 48, 9, 0, 100}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace blockgtq::cpu
