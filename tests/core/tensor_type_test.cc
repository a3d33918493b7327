// Dequantisers against gguf-py's values (tests/data/formats/blocks.json, made by make_blocks.py beside it).
#include "src/core/tensor_type.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace blockgtq {
namespace {

std::vector<std::byte> FromBase64(const std::string& text) {
  std::vector<std::byte> out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t value = alphabet.find(c);
    if (value == std::string::npos) break;
    bits = bits << 6 | static_cast<uint32_t>(value);
    held += 6;
    if (held >= 8) {
      held -= 8;
      out.push_back(static_cast<std::byte>(bits >> held & 255));
    }
  }
  return out;
}

struct Fixture {
  std::string type, source;
  uint32_t type_id;
  std::vector<std::byte> blocks;
  std::vector<float> values;
};

std::vector<Fixture> ReadFixtures() {
  std::ifstream file(BGTQ_TEST_DATA "/formats/blocks.json");
  const auto json = nlohmann::json::parse(file);
  std::vector<Fixture> fixtures;
  for (const auto& row : json["rows"]) {
    Fixture f{row["type"], row["source"], row["type_id"], FromBase64(row["blocks"]), {}};
    const auto values = FromBase64(row["values"]);
    f.values.resize(values.size() / sizeof(float));
    std::memcpy(f.values.data(), values.data(), values.size());
    fixtures.push_back(std::move(f));
  }
  return fixtures;
}

TEST(TensorType, EveryTypeOfTheTableHasAFixture) {
  std::set<uint32_t> seen;
  for (const Fixture& f : ReadFixtures()) seen.insert(f.type_id);
  for (const TensorTypeInfo& info : TensorTypes()) {
    EXPECT_TRUE(seen.count(static_cast<uint32_t>(info.type))) << info.name;
  }
}

TEST(TensorType, DequantisersMatchGgufPy) {
  for (const Fixture& f : ReadFixtures()) {
    SCOPED_TRACE(f.type + ", " + f.source);
    const TensorTypeInfo* info = FindTensorType(f.type_id);
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(f.type, info->name);
    ASSERT_EQ(f.blocks.size() % info->block_bytes, 0u);
    const int64_t blocks = static_cast<int64_t>(f.blocks.size()) / info->block_bytes;
    ASSERT_EQ(static_cast<int64_t>(f.values.size()), blocks * info->block_elements);
    std::vector<float> got(f.values.size(), NAN);
    info->dequantize(f.blocks.data(), blocks, got.data());
    float largest = 0.0f;
    for (const float v : f.values) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < got.size(); ++i) {
      // gguf-py may round twice where a minimum is added; half an ulp of the largest value bounds the gap.
      EXPECT_NEAR(got[i], f.values[i], largest * 0x1p-24f) << i;
    }
  }
}

TEST(TensorType, RowsOfAMatrixStartAtWholeBlocksAndNeedNoAlignment) {
  for (const Fixture& f : ReadFixtures()) {
    SCOPED_TRACE(f.type + ", " + f.source);
    const TensorTypeInfo& info = *FindTensorType(f.type_id);
    const int64_t rows = static_cast<int64_t>(f.blocks.size()) / info.block_bytes;
    std::vector<std::byte> shifted(f.blocks.size() + 1);
    std::memcpy(shifted.data() + 1, f.blocks.data(), f.blocks.size());
    const TensorView view{info.type, shifted.data() + 1, rows, info.block_elements};
    EXPECT_EQ(view.row_bytes(), info.block_bytes);
    std::vector<float> whole(f.values.size()), row(info.block_elements);
    info.dequantize(f.blocks.data(), rows, whole.data());
    for (int64_t r = 0; r < rows; ++r) {
      DequantizeRow(view, r, row.data());
      for (int c = 0; c < info.block_elements; ++c) {
        EXPECT_EQ(row[c], whole[r * info.block_elements + c]) << r << "," << c;
      }
    }
  }
}

TEST(TensorType, UnknownTypesHaveNoRow) {
  for (const uint32_t type : {4u, 5u, 9u, 10u, 11u, 15u, 16u, 29u, 31u, 1000u, 0xffffffffu}) {
    EXPECT_EQ(FindTensorType(type), nullptr) << type;
  }
  for (const TensorTypeInfo& info : TensorTypes()) {
    EXPECT_EQ(FindTensorType(static_cast<uint32_t>(info.type)), &info);
    EXPECT_EQ(&GetTensorType(info.type), &info);
  }
}

}  // namespace
}  // namespace blockgtq
