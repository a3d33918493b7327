// Attention over codes, every SIMD target: against exact attention over the decoded tokens, and against a
// double-precision reference that rounds queries and probabilities as the kernel does.
#include "src/cpu/attention_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "src/core/half.h"
#include "src/core/log_norm.h"
#include "tests/cpu/each_target.h"
#include "tests/cpu/packed_head_model.h"

namespace blockgtq::cpu {
namespace {

double DecodedNorm(const HeadPlan& plan, const GroupPlan& group, const std::byte* norms, int token) {
  if (plan.norm_type == NormType::kLog8) {
    return DecodeLogNorm(std::to_integer<uint8_t>(norms[NormSlot(token)]), group.norm_reference);
  }
  const int low = std::to_integer<int>(norms[2 * NormSlot(token)]);
  const int high = std::to_integer<int>(norms[2 * NormSlot(token) + 1]);
  return HalfToFloat(static_cast<uint16_t>(low | high << 8));
}

// The kernel's arithmetic in double: int8 queries (a second byte for widths >= 5), u8 probabilities with a
// tile-local maximum of logit times value norm, the denominator unrounded.
void RoundedReference(const HeadPlan& plan, const RopeTable& rope, const float* query,
                      const std::vector<const std::byte*>& records, int64_t begin, int64_t end, double scale,
                      std::vector<float>* out, float* lse) {
  const RecordLayout layout = RecordLayout::For(plan);
  const int dim = plan.head_dim, rows = 16 * plan.key_units();
  std::vector<double> rotated(rows, 0.0);
  for (int r = 0; r < rows; ++r) {
    for (int d = 0; d < dim; ++d) rotated[r] += double{plan.query_transform[r * dim + d]} * query[d];
  }
  for (const GroupPlan& group : plan.groups) {
    double largest = 0;
    double* q = &rotated[16 * group.first_unit];
    for (int i = 0; i < 16 * group.units; ++i) largest = std::max(largest, std::fabs(q[i]));
    for (int i = 0; i < 16 * group.units; ++i) {
      const double v = largest > 0 ? q[i] * 127 / largest : 0;
      const double high = std::nearbyint(v);
      const double low = std::clamp(std::nearbyint((v - high) * 256), -127.0, 127.0);
      q[i] = (high + (group.width >= 5 ? low / 256 : 0.0)) * largest / 127;
    }
  }
  std::vector<double> total(16 * plan.value.units, 0.0);
  double running = -1e300, sum = 0;
  std::vector<float> mean(dim);
  for (int64_t start = begin / 64 * 64; start < end; start += 64) {
    const std::byte* record = records[start / 64];
    std::vector<double> logit, norm;
    const int64_t first = std::max(begin, start), last = std::min(end, start + 64);
    double tile_max = -1e300;
    for (int64_t t = first; t < last; ++t) {
      const int token = static_cast<int>(t % 64);
      double s = 0;
      for (size_t g = 0; g < plan.groups.size(); ++g) {
        const GroupPlan& group = plan.groups[g];
        double dot = 0;
        for (int i = 0; i < group.dims; ++i) {
          const int code = GetCode(record + layout.key_unit[group.first_unit + i / 16], group.width,
                                   KeyPlace(token, i % 16));
          dot += rotated[16 * group.first_unit + i] *
                 (CodebookInt(group.width, code) + CodebookHalf(group.width));
        }
        s += dot / CodebookScale(group.width) / std::sqrt(double(group.dims)) *
             DecodedNorm(plan, group, record + layout.key_norm[g], token);
      }
      if (!plan.key_mean.empty()) {
        rope.Rotate(plan.key_mean.data(), t, mean.data());
        for (int d = 0; d < dim; ++d) s += double{query[d]} * mean[d];
      }
      logit.push_back(s * scale);
      norm.push_back(DecodedNorm(plan, plan.value, record + layout.value_norm, token));
      tile_max = std::max(tile_max, logit.back() + std::log(norm.back()));
    }
    const double next = std::max(running, tile_max);
    for (double& x : total) x *= std::exp(running - next);
    sum *= std::exp(running - next);
    running = next;
    for (int64_t t = first; t < last; ++t) {
      const double weight = std::exp(logit[t - first] - tile_max);
      const double p = std::nearbyint(255 * weight * norm[t - first]) / 255 * std::exp(tile_max - next);
      sum += weight * std::exp(tile_max - next);
      for (int i = 0; i < dim; ++i) {
        const int code = GetCode(record + layout.value_unit[i / 16], plan.value.width,
                                 ValuePlace(static_cast<int>(t % 64), i % 16));
        total[i] += p * (CodebookInt(plan.value.width, code) + CodebookHalf(plan.value.width)) /
                    CodebookScale(plan.value.width) / std::sqrt(double(dim));
      }
    }
  }
  out->assign(dim, 0.0f);
  for (int r = 0; r < dim; ++r) {
    for (int d = 0; d < dim; ++d) {
      (*out)[d] += static_cast<float>(double{plan.value_transform[r * dim + d]} * total[r] / sum);
    }
  }
  *lse = static_cast<float>(running + std::log(sum));
}

struct Case {
  const char* name;
  HeadSpec head;
  int queries;
  int64_t tokens, begin;
  float attention_factor = 1.0f;
};

// SmolLM2's rows, wide heads, every width, padding, up to eight groups, fp16 norms.
std::vector<Case> Cases() {
  const NormType half = NormType::kHalf;
  return {
      {"K3V3", {64, {{4, 16}, {3, 32}, {2, 16}}, 3, {}}, 3, 300, 0},
      {"K3V3Mean", {64, {{4, 16}, {3, 32}, {2, 16}}, 3, {0, 1, 2, 3}}, 3, 300, 0},
      {"K2V2OneMeanUnit", {64, {{3, 16}, {2, 32}, {1, 16}}, 2, {3}}, 4, 333, 70},
      {"K4V4", {64, {{5, 16}, {4, 32}, {3, 16}}, 4, {1, 2}}, 1, 256, 1},
      {"K8V8", {64, {{8, 64}}, 8, {}}, 2, 130, 0},
      {"K5V5", {128, {{5, 128}}, 5, {0, 7}}, 5, 200, 63},
      {"K1V1", {128, {{1, 128}}, 1, {0, 1, 2}}, 7, 200, 128},
      {"EightGroups",
       {128, {{8, 16}, {5, 16}, {4, 16}, {4, 16}, {3, 16}, {2, 16}, {2, 16}, {1, 16}}, 3, {}},
       8,
       260,
       0},
      {"PaddedPaper", {64, {{8, 6}, {7, 4}, {6, 10}, {5, 8}, {3, 20}, {2, 16}}, 3, {}, half}, 3, 190, 5},
      {"UniformHalf", {80, {{3, 80}}, 4, {0, 1, 2, 3, 4}, half}, 6, 140, 0},
      {"Narrow", {16, {{3, 16}}, 2, {0}}, 16, 90, 17},
      {"Wide", {256, {{4, 64}, {3, 128}, {2, 64}}, 3, {0, 3, 8, 15}}, 2, 150, 0},
      {"Yarn", {64, {{4, 32}, {2, 32}}, 5, {2, 3}}, 3, 128, 0, 1.3f},
      {"Long", {64, {{4, 16}, {3, 32}, {2, 16}}, 3, {0, 1, 2, 3}}, 3, 2048, 0},
      {"OneToken", {64, {{3, 64}}, 3, {0}}, 3, 65, 64},
  };
}

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

class AttendCodesTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttendCodesTest, MatchesReferences) {
  const Case& c = GetParam();
  const HeadPlan plan = MakeHeadPlan(c.head, 7);
  RopeTable rope(MakeRope(c.head.head_dim, c.attention_factor));
  rope.Reserve(c.tokens);
  const Sequence s = MakeSequence(plan, rope, c.tokens, 11);
  const RecordLayout layout = RecordLayout::For(plan);
  const int dim = c.head.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const std::vector<float> query_data = Normals(c.queries * dim, 1.5f, 5);
  std::vector<const float*> queries;
  for (int i = 0; i < c.queries; ++i) queries.push_back(query_data.data() + i * dim);
  std::vector<std::vector<float>> rounded(c.queries), exact(c.queries, std::vector<float>(dim));
  std::vector<float> rounded_lse(c.queries), exact_lse(c.queries);
  for (int i = 0; i < c.queries; ++i) {
    RoundedReference(plan, rope, queries[i], s.records, c.begin, c.tokens, scale, &rounded[i],
                     &rounded_lse[i]);
    reference::Attention(plan, layout, rope, queries[i], s.records, c.begin, c.tokens, scale, exact[i].data(),
                         &exact_lse[i]);
  }
  ForEachTarget([&] {
    const PackedHead head = PackedHead::Make(plan, rope);
    PreparedQueries prepared;
    PrepareQueries(head, queries, scale, prepared);
    CodesScratch scratch;
    std::vector<float> out(c.queries * head.value_dims), lse(c.queries), value(dim);
    AttendCodes(head, prepared, 0, c.queries, s.records, c.begin, c.tokens, {}, rope, scratch, out.data(),
                lse.data());
    for (int i = 0; i < c.queries; ++i) {
      UnrotateValue(head, out.data() + i * head.value_dims, value.data());
      EXPECT_LE(RelativeL2(value, rounded[i]), 1e-3) << "query " << i;
      EXPECT_NEAR(lse[i], rounded_lse[i], 2e-4 * std::max(1.0f, std::fabs(rounded_lse[i]))) << "query " << i;
      EXPECT_LE(RelativeL2(value, exact[i]), 3.5e-2) << "query " << i;
      EXPECT_NEAR(lse[i], exact_lse[i], 3e-2) << "query " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, AttendCodesTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AttendCodes, QueryEndHidesLaterTokens) {
  const HeadPlan plan = MakeHeadPlan({64, {{4, 32}, {3, 32}}, 3, {0, 2}}, 3);
  RopeTable rope(MakeRope(64));
  rope.Reserve(200);
  const Sequence s = MakeSequence(plan, rope, 200, 4);
  const std::vector<float> data = Normals(9 * 64, 1.0f, 9);
  std::vector<const float*> queries;
  for (int i = 0; i < 9; ++i) queries.push_back(data.data() + i * 64);
  const std::vector<int64_t> ends = {200, 199, 64, 65, 11, 10, 5, 128, 300};
  ForEachTarget([&] {
    const PackedHead head = PackedHead::Make(plan, rope);
    PreparedQueries prepared;
    PrepareQueries(head, queries, 0.125f, prepared);
    CodesScratch scratch;
    std::vector<float> out(9 * 64), lse(9), one(64);
    float one_lse;
    AttendCodes(head, prepared, 0, 9, s.records, 10, 200, {nullptr, ends.data()}, rope, scratch, out.data(),
                lse.data());
    for (int i = 0; i < 9; ++i) {
      AttendCodes(head, prepared, i, 1, s.records, 10, std::min<int64_t>(200, ends[i]), {}, rope, scratch,
                  one.data(), &one_lse);
      if (ends[i] <= 10) {
        EXPECT_EQ(lse[i], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(one_lse, -std::numeric_limits<float>::infinity());
        for (int d = 0; d < 64; ++d) EXPECT_EQ(out[i * 64 + d], 0.0f);
        continue;
      }
      EXPECT_LE(RelativeL2({out.data() + i * 64, 64}, one), 1e-5) << i;
      EXPECT_NEAR(lse[i], one_lse, 1e-5) << i;
    }
  });
}

TEST(AttendCodes, EmptyRangeGivesMinusInfinity) {
  const HeadPlan plan = MakeHeadPlan({64, {{3, 64}}, 3, {}}, 3);
  RopeTable rope(MakeRope(64));
  rope.Reserve(64);
  const std::vector<float> query = Normals(64, 1.0f, 9);
  const float* queries[] = {query.data()};
  ForEachTarget([&] {
    const PackedHead head = PackedHead::Make(plan, rope);
    PreparedQueries prepared;
    PrepareQueries(head, queries, 0.125f, prepared);
    CodesScratch scratch;
    std::vector<float> out(64, 1.0f);
    float lse = 0;
    AttendCodes(head, prepared, 0, 1, {}, 64, 64, {}, rope, scratch, out.data(), &lse);
    EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
    for (float x : out) EXPECT_EQ(x, 0.0f);
  });
}

// A mean far larger than the keys: its logits must be as exact as float at a high position.
TEST(AttendCodes, MeanIsExactAtHighPositions) {
  HeadPlan plan = MakeHeadPlan({64, {{8, 64}}, 8, {0, 1, 2, 3}, NormType::kHalf}, 3);
  for (float& m : plan.key_mean) m *= 10.0f;
  RopeTable rope(MakeRope(64));
  const int64_t first = 100032, last = 100032 + 100;
  rope.Reserve(last);
  const RecordLayout layout = RecordLayout::For(plan);
  std::vector<std::byte> storage(2 * layout.bytes);
  std::vector<const std::byte*> records(first / 64 + 2, nullptr);
  for (int tile = 0; tile < 2; ++tile) {
    const int count = tile == 0 ? 64 : 36;
    std::vector<float> keys(count * 64), values = Normals(count * 64, 1.0f, 8 + tile);
    for (int t = 0; t < count; ++t) rope.Rotate(plan.key_mean.data(), first + 64 * tile + t, &keys[t * 64]);
    const std::span<std::byte> record(storage.data() + tile * layout.bytes, layout.bytes);
    ASSERT_TRUE(reference::EncodeKeys(plan, layout, rope, keys, first + 64 * tile, record).ok());
    ASSERT_TRUE(reference::EncodeValues(plan, layout, values, first + 64 * tile, record).ok());
    records[first / 64 + tile] = record.data();
  }
  const std::vector<float> query = Normals(64, 1.0f, 9);
  const float* queries[] = {query.data()};
  ForEachTarget([&] {
    const PackedHead head = PackedHead::Make(plan, rope);
    PreparedQueries prepared;
    PrepareQueries(head, queries, 0.125f, prepared);
    CodesScratch scratch;
    for (int64_t t = first; t < last; t += 7) {
      std::vector<float> out(64), mean(64);
      float lse;
      AttendCodes(head, prepared, 0, 1, records, t, t + 1, {}, rope, scratch, out.data(), &lse);
      rope.Rotate(plan.key_mean.data(), t, mean.data());
      double logit = 0, size = 0;
      for (int d = 0; d < 64; ++d) {
        logit += 0.125 * query[d] * mean[d];
        size += 0.125 * std::fabs(query[d] * mean[d]);
      }
      // The coded remainder is zero.
      EXPECT_NEAR(lse, logit, 2e-6 * size + 1e-5) << t;
    }
  });
}

}  // namespace
}  // namespace blockgtq::cpu
