// The record: codebooks, bit places against a word-by-word decoder, layouts and erasure.
#include "src/codec/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "src/core/lloyd_max.h"

namespace blockgtq {
namespace {

constexpr int kStored[] = {1, 2, 3, 4, 5, 8};

double Value(int width, int code) {
  return (CodebookInt(width, code) + double{CodebookHalf(width)}) / double{CodebookScale(width)};
}

TEST(Record, EveryBitPlaceMapIsABijectionOntoTheUnit) {
  for (int width : kStored) {
    for (auto* place_of : {&KeyPlace, &ValuePlace}) {
      std::set<std::pair<int, int>> bits;  // (word of the unit, bit)
      for (int token = 0; token < 64; ++token) {
        for (int dim = 0; dim < 16; ++dim) {
          const UnitPlace place = place_of(token, dim);
          ForEachCodeBit(width, place.quad, place.code, [&](int word, int bit, int code_bit) {
            EXPECT_TRUE(word >= 0 && word < width && bit >= 0 && bit < 32 && code_bit < width);
            bits.insert({word * 32 + place.lane, bit});
          });
        }
      }
      EXPECT_EQ(bits.size(), 64u * 16 * width) << "width " << width;
    }
  }
}

// A lane's words to its 8 quads of 4 codes, plane by plane, the way a kernel does it.
void DecodeLane(int width, const uint32_t* words, int codes[8][4]) {
  const auto nibble = [](uint32_t w, int n) { return static_cast<int>(w >> (4 * n) & 15u); };
  for (int quad = 0; quad < 8; ++quad) {
    for (int j = 0; j < 4; ++j) {
      const int n = (quad & 1) * 4 + j;
      int code = 0;
      if (width == 1) {
        code = nibble(words[0], n) >> (quad / 2) & 1;
      } else if (width == 2) {
        code = nibble(words[quad / 4], n) >> (quad / 2 % 2 * 2) & 3;
      } else if (width == 8) {
        code = static_cast<int>(words[quad] >> (8 * j) & 255u);
      } else {
        if (quad < 6) {
          code = nibble(words[quad / 2], n) & 7;
        } else {
          code =
              (nibble(words[0], n) >> 3) | (nibble(words[1], n) >> 3) << 1 | (nibble(words[2], n) >> 3) << 2;
        }
        // A sign plane has its codes where a left shift by `quad` brings them to the top of each byte.
        for (int plane = 3; plane < width; ++plane) {
          code |= static_cast<int>((words[plane] << quad) >> (8 * j + 7) & 1u) << plane;
        }
      }
      codes[quad][j] = code;
    }
  }
}

TEST(Record, CodesReadBackByAWordwiseDecoderAndByGetCode) {
  std::mt19937 rng(4);
  for (int width : kStored) {
    std::vector<std::byte> unit(UnitBytes(width));
    for (std::byte& b : unit) b = std::byte(rng() & 255);
    int key[64][16];
    for (auto& row : key) {
      for (int& code : row) code = static_cast<int>(rng() & ((1u << width) - 1));
    }
    for (int kind = 0; kind < 2; ++kind) {
      const auto place_of = kind == 0 ? &KeyPlace : &ValuePlace;
      for (int t = 0; t < 64; ++t) {
        for (int d = 0; d < 16; ++d) SetCode(unit.data(), width, place_of(t, d), key[t][d]);
      }
      std::vector<uint32_t> words(32 * width);
      std::memcpy(words.data(), unit.data(), unit.size());
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t own[8];
        for (int p = 0; p < width; ++p) own[p] = words[p * 32 + lane];
        int codes[8][4];
        DecodeLane(width, own, codes);
        const int g = lane >> 2, tq = lane & 3;
        for (int quad = 0; quad < 8; ++quad) {
          for (int j = 0; j < 4; ++j) {
            // The header comment's definition, K then V.
            const int t = kind == 0
                              ? 16 * (quad >> 1) + 8 * (quad & 1) + g
                              : 16 * (2 * (quad >> 2) + ((quad & 3) >> 1)) + 2 * tq + (j >> 1) + 8 * (j & 1);
            const int d = kind == 0 ? 4 * tq + j : g + 8 * (quad & 1);
            ASSERT_EQ(codes[quad][j], key[t][d]) << "width " << width << " lane " << lane << " quad " << quad;
            ASSERT_EQ(GetCode(unit.data(), width, place_of(t, d)), key[t][d]);
          }
        }
      }
    }
  }
}

TEST(Record, NormSlotsAreAPermutationThatGivesALaneItsEightTokensInARow) {
  std::set<int> slots;
  for (int t = 0; t < 64; ++t) slots.insert(NormSlot(t));
  EXPECT_EQ(slots.size(), 64u);
  EXPECT_EQ(*slots.rbegin(), 63);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(NormSlot(5 + 8 * i), 40 + i);
}

TEST(Record, NearestCodeIsTheNearestOfTheCodebook) {
  for (int width : kStored) {
    for (int i = -60000; i <= 60000; ++i) {
      const float x = static_cast<float>(i) * 1.0e-4f + 0.37e-5f;
      double best = std::numeric_limits<double>::infinity();
      for (int code = 0; code < 1 << width; ++code) {
        if (width == 8 && code == 128) continue;  // -128 is not used
        best = std::fmin(best, std::fabs(Value(width, code) - x));
      }
      const int code = NearestCode(width, width, x);
      ASSERT_TRUE(code >= 0 && code < 1 << width && !(width == 8 && code == 128));
      ASSERT_NEAR(std::fabs(Value(width, code) - x), best, 1e-6) << "width " << width << " x " << x;
    }
  }
}

TEST(Record, SixAndSevenBitsRoundTheNearestLloydMaxCentroidToInt8) {
  for (int code_width : {6, 7}) {
    const LloydMaxCodebook& book = LloydMax(code_width);
    std::set<int> used;
    for (int i = -50000; i <= 50000; ++i) {
      const float x = static_cast<float>(i) * 1.0e-4f + 0.37e-5f;
      double centroid = 0, best = std::numeric_limits<double>::infinity();
      for (double c : book.centroids) {
        if (std::fabs(c - x) < best) {
          best = std::fabs(c - x);
          centroid = c;
        }
      }
      const int code = NearestCode(8, code_width, x);
      used.insert(code);
      const double grid = std::fmin(std::fmax(centroid, -127 / 32.4), 127 / 32.4);
      ASSERT_NEAR(Value(8, code), grid, 0.5 / 32.4 + 1e-6);
    }
    EXPECT_LE(used.size(), size_t{1} << code_width);
    EXPECT_GT(used.size(), size_t{1} << (code_width - 1));
  }
}

TEST(Record, ExtremeInputsGetTheOutermostCodes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int width : kStored) {
    for (float x : {1e30f, kInf}) {
      const double top = Value(width, NearestCode(width, width, x));
      EXPECT_EQ(Value(width, NearestCode(width, width, -x)), -top);
      for (int code = 0; code < 1 << width; ++code) {
        if (width == 8 && code == 128) continue;
        EXPECT_LE(Value(width, code), top);
      }
    }
  }
}

// Mean squared error of the codebook on a unit normal, by the trapezoid rule.
double CodebookMse(int width, int code_width) {
  double error = 0, mass = 0;
  for (int i = -80000; i <= 80000; ++i) {
    const double x = i * 1e-4, p = std::exp(-0.5 * x * x);
    const double v = Value(width, NearestCode(width, code_width, static_cast<float>(x)));
    error += p * (v - x) * (v - x);
    mass += p;
  }
  return error / mass;
}

TEST(Record, CodebooksAreNearLloydMax) {
  const double excess[] = {0, 1e-5, 1e-5, 2e-4, 6e-4, 5e-3};
  for (int width = 1; width <= 5; ++width) {
    const double ratio = CodebookMse(width, width) / Distortion(width);
    EXPECT_LE(ratio, 1 + excess[width]) << width;
    EXPECT_GE(ratio, 1 - 1e-5) << width;
  }
  // The int8 grid: a uniform step of 1/32.4 costs step^2 / 12 and a little clipping.
  EXPECT_NEAR(CodebookMse(8, 8) / (1 / (12 * 32.4 * 32.4)), 1.0, 0.15);
  // 6 and 7 bits are still better than 5 and 6 in their containers.
  EXPECT_LT(CodebookMse(8, 6), 0.3 * Distortion(5));
  EXPECT_LT(CodebookMse(8, 7), 0.4 * Distortion(6));
}

HeadPlan Mixed(NormType type) {
  HeadPlan plan;
  plan.head_dim = 72;
  plan.norm_type = type;
  plan.groups = {{8, 7, 0, 1, 6, 1.0f}, {5, 5, 1, 2, 30, 1.0f}, {1, 1, 3, 3, 36, 1.0f}};
  plan.value = {3, 3, 0, 5, 72, 1.0f};
  return plan;
}

TEST(Record, LayoutPacksUnitsAndNormsWithoutGaps) {
  for (NormType type : {NormType::kLog8, NormType::kHalf}) {
    const HeadPlan plan = Mixed(type);
    const int norm = type == NormType::kLog8 ? 64 : 128;
    const RecordLayout layout = RecordLayout::For(plan);
    EXPECT_EQ(plan.key_units(), 6);
    EXPECT_EQ(layout.key_unit, (std::vector<int>{0, 1024, 1664, 2304, 2432, 2560}));
    EXPECT_EQ(layout.key_norm, (std::vector<int>{2688, 2688 + norm, 2688 + 2 * norm}));
    ASSERT_EQ(layout.value_unit.size(), 5u);
    EXPECT_EQ(layout.value_unit[0], 2688 + 3 * norm);
    EXPECT_EQ(layout.value_unit[4], 2688 + 3 * norm + 4 * 384);
    EXPECT_EQ(layout.value_norm, 2688 + 3 * norm + 5 * 384);
    EXPECT_EQ(layout.bytes, 2688 + 4 * norm + 5 * 384);
    EXPECT_EQ(layout.bytes % 16, 0);
  }
}

TEST(Record, EraseTokensClearsExactlyTheLaterSlots) {
  for (NormType type : {NormType::kLog8, NormType::kHalf}) {
    const HeadPlan plan = Mixed(type);
    const RecordLayout layout = RecordLayout::For(plan);
    const std::vector<std::byte> full(layout.bytes, std::byte{0xff});
    for (int first : {0, 1, 17, 63, 64}) {
      std::vector<std::byte> record = full;
      EraseTokens(layout, plan, first, record);
      const auto expected = [&](int token) { return token < first ? std::byte{0xff} : std::byte{0}; };
      const int norm_bytes = type == NormType::kLog8 ? 1 : 2;
      for (int token = 0; token < 64; ++token) {
        for (int u = 0; u < 6; ++u) {
          const int width = u < 1 ? 8 : u < 3 ? 5 : 1;
          for (int d = 0; d < 16; ++d) {
            ASSERT_EQ(GetCode(record.data() + layout.key_unit[u], width, KeyPlace(token, d)),
                      token < first ? (1 << width) - 1 : 0);
          }
        }
        for (int u = 0; u < 5; ++u) {
          for (int d = 0; d < 16; ++d) {
            ASSERT_EQ(GetCode(record.data() + layout.value_unit[u], 3, ValuePlace(token, d)),
                      token < first ? 7 : 0);
          }
        }
        for (int offset : {layout.key_norm[0], layout.key_norm[1], layout.key_norm[2], layout.value_norm}) {
          for (int b = 0; b < norm_bytes; ++b) {
            ASSERT_EQ(record[offset + NormSlot(token) * norm_bytes + b], expected(token));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace blockgtq
