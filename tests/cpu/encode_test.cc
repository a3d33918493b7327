// The vector encoders against the scalar reference, every SIMD target: the same bytes but for coordinates
// within 1e-4 of a threshold, searched codes of equal angle, and norms that round either way.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>

#include "src/core/half.h"
#include "src/cpu/attention_codes.h"
#include "tests/cpu/packed_head_model.h"
// clang-format off
#include "src/cpu/simd_targets.h"  // chooses the targets: before any Highway header
#include "hwy/highway.h"
// clang-format on

namespace blockgtq::cpu {
namespace {

struct Case {
  const char* name;
  HeadSpec head;
  int slot, count;
  float attention_factor = 1.0f;
  Rounding rounding = Rounding::kNearest;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

int NormAt(const HeadPlan& plan, const std::byte* norms, int token) {
  if (plan.norm_type == NormType::kLog8) return std::to_integer<int>(norms[NormSlot(token)]);
  uint16_t half;
  std::memcpy(&half, norms + 2 * NormSlot(token), 2);
  return half;
}

// Cosine of the angle between a vector and the decoded codes of one token.
double CosineOf(const GroupPlan& group, const int* units, UnitPlace (*place)(int, int),
                const std::byte* record, int token, const std::vector<double>& y) {
  double projection = 0, energy = 0, square = 0;
  for (int i = 0; i < group.dims; ++i) {
    const int code = GetCode(record + units[i / 16], group.width, place(token, i % 16));
    const double value = CodebookInt(group.width, code) + double{CodebookHalf(group.width)};
    projection += value * y[i];
    energy += value * value;
    square += y[i] * y[i];
  }
  return projection / std::sqrt(energy * square);
}

// Compares one group; `rows` are its true coordinates [token - slot][group.dims] in double.
void ExpectSameGroup(const HeadPlan& plan, const GroupPlan& group, const int* units, int norm_offset,
                     UnitPlace (*place)(int, int), const std::vector<std::vector<double>>& rows, int slot,
                     const std::byte* got, const std::byte* want, int* near_ties) {
  for (int token = 0; token < kPageTokens; ++token) {
    const bool touched = token >= slot && token < slot + static_cast<int>(rows.size());
    double energy = 0;
    if (touched) {
      for (double y : rows[token - slot]) energy += y * y;
    }
    bool tie = false;
    for (int i = 0; i < kUnitDims * group.units; ++i) {
      const int a = GetCode(got + units[i / 16], group.width, place(token, i % 16));
      const int b = GetCode(want + units[i / 16], group.width, place(token, i % 16));
      if (a == b) continue;
      ASSERT_TRUE(touched) << "token " << token << " dim " << i << " belongs to another call";
      ASSERT_LT(i, group.dims) << "padding of token " << token;
      if (plan.rounding == Rounding::kSearched) {  // two scales whose codes are equally good
        EXPECT_NEAR(CosineOf(group, units, place, got, token, rows[token - slot]),
                    CosineOf(group, units, place, want, token, rows[token - slot]), 1e-5)
            << "token " << token;
        tie = true;
        ++*near_ties;
        continue;
      }
      const double x = rows[token - slot][i] * std::sqrt(group.dims / energy);
      const int below = NearestCode(group.width, group.code_width, static_cast<float>(x - 1e-4));
      const int above = NearestCode(group.width, group.code_width, static_cast<float>(x + 1e-4));
      EXPECT_TRUE((a == below || a == above) && below != above)
          << "token " << token << " dim " << i << " at " << x;
      tie = true;
      ++*near_ties;
    }
    const int a = NormAt(plan, got + norm_offset, token), b = NormAt(plan, want + norm_offset, token);
    if (!touched) {
      EXPECT_EQ(a, b) << token;
    } else {
      const int tie_step = plan.norm_type == NormType::kHalf      ? 64
                           : plan.rounding == Rounding::kSearched ? 8
                                                                  : 1;
      EXPECT_LE(std::abs(a - b), tie ? tie_step : 1) << "norm of token " << token;
      *near_ties += a != b;
    }
  }
}

class EncodeTest : public ::testing::TestWithParam<Case> {};

TEST_P(EncodeTest, WritesTheReferencesBytes) {
  const Case& c = GetParam();
  HeadPlan plan = MakeHeadPlan(c.head, 21);
  plan.rounding = c.rounding;
  RopeTable rope(MakeRope(c.head.head_dim, c.attention_factor));
  rope.Reserve(6400);
  const int dim = c.head.head_dim, stride = dim + 3;
  const int64_t position = 64 * 77 + c.slot;
  const RecordLayout layout = RecordLayout::For(plan);
  std::vector<float> keys = Normals(stride * c.count, 1.0f, 1), values = Normals(stride * c.count, 1.0f, 2);
  std::vector<float> tight_keys, tight_values, mean(dim);
  for (int t = 0; t < c.count; ++t) {
    if (!plan.key_mean.empty()) {
      rope.Rotate(plan.key_mean.data(), position + t, mean.data());
      for (int d = 0; d < dim; ++d) keys[t * stride + d] += mean[d];
    }
    if (t == 2) std::fill_n(&values[t * stride], dim, 0.0f);  // a zero vector
    tight_keys.insert(tight_keys.end(), &keys[t * stride], &keys[t * stride] + dim);
    tight_values.insert(tight_values.end(), &values[t * stride], &values[t * stride] + dim);
  }
  const auto rows_of = [&](const std::vector<float>& matrix, const std::vector<float>& in, bool key,
                           int first, int dims) {
    std::vector<std::vector<double>> rows(c.count, std::vector<double>(dims, 0.0));
    for (int t = 0; t < c.count; ++t) {
      std::fill(mean.begin(), mean.end(), 0.0f);
      if (key && !plan.key_mean.empty()) rope.Rotate(plan.key_mean.data(), position + t, mean.data());
      for (int r = 0; r < dims; ++r) {
        for (int d = 0; d < dim; ++d) {
          rows[t][r] += double{matrix[(first + r) * dim + d]} * (double{in[t * dim + d]} - mean[d]);
        }
      }
    }
    return rows;
  };
  // The record holds another call's tokens already: every bit set.
  std::vector<std::byte> want(layout.bytes, std::byte{0xff});
  ASSERT_TRUE(reference::EncodeKeys(plan, layout, rope, tight_keys, position, want).ok());
  ASSERT_TRUE(reference::EncodeValues(plan, layout, tight_values, position, want).ok());
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    const PackedHead head = PackedHead::Make(plan, rope);
    CodesScratch scratch;
    std::vector<std::byte> got(layout.bytes, std::byte{0xff});
    EXPECT_TRUE(EncodeKeys(head, rope, keys.data(), stride, c.count, position, scratch, got.data()));
    EXPECT_TRUE(EncodeValues(head, values.data(), stride, c.count, position, scratch, got.data()));
    int near_ties = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const GroupPlan& group = plan.groups[g];
      ExpectSameGroup(plan, group, &layout.key_unit[group.first_unit], layout.key_norm[g], &KeyPlace,
                      rows_of(plan.key_transform, tight_keys, true, 16 * group.first_unit, group.dims),
                      c.slot, got.data(), want.data(), &near_ties);
    }
    ExpectSameGroup(plan, plan.value, layout.value_unit.data(), layout.value_norm, &ValuePlace,
                    rows_of(plan.value_transform, tight_values, false, 0, dim), c.slot, got.data(),
                    want.data(), &near_ties);
    EXPECT_LE(near_ties, 2 + c.count * dim / 100);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, EncodeTest,
    ::testing::Values(
        Case{"Page", {64, {{4, 16}, {3, 32}, {2, 16}}, 3, {0, 1, 2, 3}}, 0, 64},
        Case{"OneToken", {64, {{4, 16}, {3, 32}, {2, 16}}, 3, {1}}, 37, 1},
        Case{"Part", {64, {{5, 16}, {4, 32}, {1, 16}}, 5, {}}, 5, 30},
        Case{"AllWidths", {128, {{8, 32}, {5, 16}, {4, 16}, {3, 32}, {2, 16}, {1, 16}}, 8, {0, 7}}, 3, 61},
        Case{"Paper",
             {64, {{8, 6}, {7, 4}, {6, 10}, {5, 8}, {3, 20}, {2, 16}}, 2, {}, NormType::kHalf},
             0,
             64},
        Case{"Narrow", {16, {{1, 16}}, 1, {0}}, 62, 2}, Case{"V4", {80, {{3, 80}}, 4, {4}}, 16, 20},
        Case{"Wide", {256, {{3, 256}}, 3, {0, 15}}, 0, 40},
        Case{"Yarn", {64, {{2, 64}}, 2, {0, 3}}, 0, 10, 1.2f},
        Case{"Searched", {64, {{4, 16}, {3, 32}, {2, 16}}, 3, {0}}, 0, 64, 1.0f, Rounding::kSearched},
        Case{"SearchedAllWidths",
             {128, {{8, 32}, {5, 16}, {4, 16}, {3, 32}, {2, 16}, {1, 16}}, 4, {}},
             7,
             50,
             1.0f,
             Rounding::kSearched},
        Case{"SearchedPadding",
             {64, {{8, 6}, {7, 4}, {6, 10}, {5, 8}, {3, 20}, {2, 16}}, 2, {}, NormType::kHalf},
             0,
             64,
             1.0f,
             Rounding::kSearched}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Encode, RefusesNonFiniteInputAndLeavesTheRecord) {
  const HeadPlan plan = MakeHeadPlan({64, {{3, 64}}, 3, {0}}, 21);
  RopeTable rope(MakeRope(64));
  rope.Reserve(64);
  const PackedHead head = PackedHead::Make(plan, rope);
  const std::vector<std::byte> before(head.layout.bytes, std::byte{0x5a});
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = Normals(4 * 64, 1.0f, 1);
    x[150] = bad;
    CodesScratch scratch;
    std::vector<std::byte> record = before;
    EXPECT_FALSE(EncodeKeys(head, rope, x.data(), 64, 4, 0, scratch, record.data()));
    EXPECT_FALSE(EncodeValues(head, x.data(), 64, 4, 0, scratch, record.data()));
    EXPECT_EQ(record, before);
  }
}

}  // namespace
}  // namespace blockgtq::cpu
