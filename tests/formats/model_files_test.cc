// Tensors of real model files against gguf-py's values (tests/data/llama_cpp/*/tensors.json). The models are
// looked for in $BGTQ_MODELS, else in ~/.cache/blockgtq/models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/formats/gguf.h"

namespace blockgtq {
namespace {

struct Model {
  const char* file;
  const char* reference;  // folder of tests/data/llama_cpp
};

std::string ModelPath(const char* file) {
  const char* folder = std::getenv("BGTQ_MODELS");
  const char* home = std::getenv("HOME");
  if (folder != nullptr) return std::string(folder) + "/" + file;
  return std::string(home == nullptr ? "." : home) + "/.cache/blockgtq/models/" + file;
}

class ModelFile : public testing::TestWithParam<Model> {};

TEST_P(ModelFile, FirstAndLastTensorOfEachTypeMatchGgufPy) {
  const std::string path = ModelPath(GetParam().file);
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here; set BGTQ_MODELS";
  const auto opened = GgufFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::ifstream reference(std::string(BGTQ_TEST_DATA "/llama_cpp/") + GetParam().reference + "/tensors.json");
  const auto json = nlohmann::json::parse(reference);

  std::map<std::string, int> counts;
  for (const GgufTensor& tensor : (*opened)->tensors()) ++counts[GetTensorType(tensor.view.type).name];
  EXPECT_EQ(counts, json["counts"].get<decltype(counts)>());

  for (const auto& expected : json["tensors"]) {
    SCOPED_TRACE(expected["name"].get<std::string>());
    const GgufTensor* tensor = (*opened)->FindTensor(expected["name"].get<std::string>());
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(GetTensorType(tensor->view.type).name, expected["type"].get<std::string>());
    auto shape = expected["shape"].get<std::vector<int64_t>>();
    std::reverse(shape.begin(), shape.end());
    EXPECT_EQ(tensor->shape, shape);
    EXPECT_EQ(tensor->file_offset, expected["file_offset"].get<int64_t>());
    EXPECT_EQ(tensor->bytes, expected["bytes"].get<int64_t>());

    const TensorView& view = tensor->view;
    std::vector<float> row(view.cols);
    double sum = 0, squares = 0, largest = 0;
    for (int64_t r = 0; r < view.rows; ++r) {
      DequantizeRow(view, r, row.data());
      for (const float v : row) {
        sum += v;
        squares += static_cast<double>(v) * v;
        largest = std::max(largest, static_cast<double>(std::abs(v)));
      }
      if (r == 0) {
        const auto first = expected["first_row_first_32"].get<std::vector<double>>();
        for (size_t i = 0; i < first.size(); ++i) {
          EXPECT_NEAR(row[i], first[i], 2.4e-7 * std::abs(first[i]) + 1e-9) << "first row, " << i;
        }
      }
    }
    const auto last = expected["last_row_last_32"].get<std::vector<double>>();
    for (size_t i = 0; i < last.size(); ++i) {
      EXPECT_NEAR(row[row.size() - last.size() + i], last[i], 2.4e-7 * std::abs(last[i]) + 1e-9)
          << "last, " << i;
    }
    const double squared = expected["sum_of_squares"];
    EXPECT_NEAR(squares, squared, 1e-6 * squared);
    EXPECT_NEAR(largest, expected["max_abs"].get<double>(), 1e-6 * largest);
    // Rounding errors of n values of this size, all in one direction, stay below this.
    const double n = static_cast<double>(view.rows) * static_cast<double>(view.cols);
    EXPECT_NEAR(sum, expected["sum"].get<double>(), 1.2e-7 * std::sqrt(squared * n) + 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelFile,
                         testing::Values(Model{"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"},
                                         Model{"qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-0.5b"},
                                         Model{"qwen2.5-coder-1.5b.gguf", "qwen2.5-coder-1.5b"}),
                         [](const auto& info) {
                           std::string name = info.param.reference;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace blockgtq
