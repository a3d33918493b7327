// Models of safetensors written as GGUF compute what they computed.
#include "src/engine/gguf_export.h"

#include "tests/engine/test_models.h"
#include "tests/formats/files.h"

namespace blockgtq::test {
namespace {

std::unique_ptr<LoadedModel> OpenForIds(const std::string& path) {
  auto model = LoadedModel::Open(path, {.device = "cpu", .threads = 2}, TokenizerUse::kIfThere);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return nullptr;
  (*model)->backend().SetPrecision(Precision::kFloat);
  return std::move(model).value();
}

std::vector<float> Logits(LoadedModel& model) {
  std::vector<Token> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Token>(i * 37 % 256);
  CacheOptions options;
  options.kind = CacheKind::kFloat;
  options.max_tokens = 64;
  return RunAll(*MakeContext(model, options), ids, {}, 40);
}

class GgufExportOf : public testing::TestWithParam<std::string> {};

TEST_P(GgufExportOf, ComputesTheSameWithinTheType) {
  const TemporaryFolder folder;
  const auto model = OpenForIds(std::string(BGTQ_TEST_DATA) + "/models/hf/" + GetParam());
  const std::vector<float> wanted = Logits(*model);
  // Rounding of weights moves these models' logits (standard deviation 2); rows of Q or K in a wrong order
  // move them by more than 2.
  for (const auto& [type, limit] : {std::pair{TensorType::kF32, 1e-4f}, std::pair{TensorType::kF16, 0.05f},
                                    std::pair{TensorType::kBF16, 0.3f}, std::pair{TensorType::kQ8_0, 1.0f}}) {
    const std::string path = folder.File("model.gguf");
    const auto written = ExportGguf(*model, {.type = type, .tokenizer = false}, path);
    ASSERT_TRUE(written.ok()) << written.status().message();
    const auto converted = OpenForIds(path);
    ASSERT_NE(converted, nullptr);
    EXPECT_LT(MaxDifference(Logits(*converted), wanted), limit) << GetTensorType(type).name;
    EXPECT_EQ(converted->config().head_dim, model->config().head_dim);
    if (type != TensorType::kF32) continue;
    const Status equal = converted->fingerprint().ExpectEqual(model->fingerprint());
    EXPECT_TRUE(equal.ok()) << equal.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GgufExportOf,
                         testing::Values("llama", "llama3-rope", "mistral-nemo", "mistral-swa", "qwen2",
                                         "qwen3", "qwen3-v5config", "qwen3_moe", "glm", "glm4", "gemma3",
                                         "olmo2", "phi3", "deepseek_v2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GgufExport, RefusesGgufAndTypesWithoutAnEncoder) {
  const TemporaryFolder folder;
  const auto gguf = OpenModel(TinyModelPath("llama"));
  EXPECT_EQ(ExportGguf(*gguf, {}, folder.File("a.gguf")).status().code(), ErrorCode::kInvalidArgument);
  const auto model = OpenForIds(std::string(BGTQ_TEST_DATA) + "/models/hf/llama");
  EXPECT_EQ(ExportGguf(*model, {.type = TensorType::kQ4_K}, folder.File("a.gguf")).status().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(folder.Files(), 0);
}

}  // namespace
}  // namespace blockgtq::test
