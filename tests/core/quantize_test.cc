// Encoders against gguf-py's bytes (tests/data/formats/quantized.json, made by make_quantized.py beside it).
#include "src/core/quantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace blockgtq {
namespace {

std::vector<std::byte> FromHex(const std::string& text) {
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::vector<std::byte> Quantized(const std::vector<float>& row, TensorType type) {
  const TensorView view{type, nullptr, 1, static_cast<int64_t>(row.size())};
  std::vector<std::byte> out(static_cast<size_t>(view.row_bytes()));
  EXPECT_EQ(QuantizeRow(row.data(), view.cols, type, out.data()), -1);
  return out;
}

TEST(Quantize, RowsAreGgufPysBytes) {
  std::ifstream file(BGTQ_TEST_DATA "/formats/quantized.json");
  const auto json = nlohmann::json::parse(file);
  const std::vector<std::byte> raw = FromHex(json["row"]);
  std::vector<float> row(raw.size() / sizeof(float));
  std::memcpy(row.data(), raw.data(), raw.size());
  for (const auto& [name, type] : {std::pair{"F16", TensorType::kF16}, std::pair{"BF16", TensorType::kBF16},
                                   std::pair{"Q8_0", TensorType::kQ8_0}}) {
    EXPECT_EQ(Quantized(row, type), FromHex(json[name])) << name;
  }
  EXPECT_EQ(Quantized(row, TensorType::kF32), raw);
}

TEST(Quantize, WhatTheTypeDoesNotHoldIsFoundByItsColumn) {
  std::vector<std::byte> out(64 * sizeof(float));
  std::vector<float> row(64, 1.0f);
  row[40] = 1e5f;  // above fp16's largest
  EXPECT_EQ(QuantizeRow(row.data(), 64, TensorType::kF16, out.data()), 40);
  EXPECT_EQ(QuantizeRow(row.data(), 64, TensorType::kBF16, out.data()), -1);
  EXPECT_EQ(QuantizeRow(row.data(), 64, TensorType::kQ8_0, out.data()), -1);
  row[40] = 1e8f;  // its scale is above fp16's largest
  EXPECT_EQ(QuantizeRow(row.data(), 64, TensorType::kQ8_0, out.data()), 32);
  row[40] = std::numeric_limits<float>::quiet_NaN();
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kF16}) {
    EXPECT_EQ(QuantizeRow(row.data(), 64, type, out.data()), 40);
  }
  EXPECT_EQ(QuantizeRow(row.data(), 64, TensorType::kQ8_0, out.data()), 32);
  std::vector<float> tiny(32, 1e-42f);  // no finite inverse of the scale
  EXPECT_EQ(QuantizeRow(tiny.data(), 32, TensorType::kQ8_0, out.data()), -1);
}

TEST(Quantize, HasAnEncoderForWhatModelsAreConvertedTo) {
  EXPECT_TRUE(HasQuantizer(TensorType::kQ8_0));
  EXPECT_FALSE(HasQuantizer(TensorType::kQ4_K));
}

}  // namespace
}  // namespace blockgtq
