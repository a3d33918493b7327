// The models that engine tests run: tiny ones from tests/data/models, real ones where they have been fetched.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/engine/context.h"

namespace blockgtq::test {

/// A tiny model with random weights: a GGUF file, or "hf/NAME", a folder with safetensors.
inline std::string TinyModelPath(const std::string& name) {
  return std::string(BGTQ_TEST_DATA) + "/models/" + name + (name.starts_with("hf/") ? "" : ".gguf");
}

/// Every family of hf/, each with another forward pass.
inline std::vector<std::string> FamilyModels() {
  return {"hf/mistral-swa", "hf/mistral-nemo", "hf/qwen3", "hf/qwen3-v5config", "hf/qwen3_moe",  "hf/glm",
          "hf/glm4",        "hf/gemma3",       "hf/olmo2", "hf/phi3",           "hf/deepseek_v2"};
}

/// A model's name as part of a test's.
inline std::string TestName(std::string name) {
  for (char& c : name) c = c == '-' || c == '/' ? '_' : c;
  return name;
}

/// Path of a real model, or empty when it has not been fetched (scripts/fetch_models.sh).
inline std::string RealModelPath(const std::string& file) {
  const char* folder = std::getenv("BGTQ_MODELS");
  const char* home = std::getenv("HOME");
  const std::string path =
      (folder != nullptr ? std::string(folder)
                         : std::string(home != nullptr ? home : "") + "/.cache/blockgtq/models") +
      "/" + file;
  return std::filesystem::exists(path) ? path : std::string();
}

inline constexpr const char* kSmolLm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Opens a model on the CPU; a failure fails the test.
inline std::unique_ptr<LoadedModel> OpenModel(const std::string& path, int threads = 2,
                                              Precision precision = Precision::kFloat) {
  Result<std::unique_ptr<LoadedModel>> model =
      LoadedModel::Open(path, {.device = "cpu", .threads = threads}, TokenizerUse::kIfThere);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return nullptr;
  (*model)->backend().SetPrecision(precision);
  return std::move(model).value();
}

inline std::unique_ptr<Context> MakeContext(LoadedModel& model, const CacheOptions& options,
                                            const Plan* plan = nullptr) {
  Result<std::unique_ptr<Context>> context = Context::Create(model, options, plan);
  EXPECT_TRUE(context.ok()) << context.status().message();
  return context.ok() ? std::move(context).value() : nullptr;
}

/// Logits of every token, [tokens, vocabulary], run `batch` tokens at a time behind the sequence.
inline std::vector<float> AppendAll(Context& context, SequenceId sequence, std::span<const Token> tokens,
                                    const RunOptions& options, int64_t batch) {
  std::vector<float> all;
  const Status status = context.Append(
      sequence, tokens, options,
      [&](int64_t, int64_t rows) {
        std::vector<int64_t> indices(static_cast<size_t>(rows));
        for (int64_t i = 0; i < rows; ++i) indices[static_cast<size_t>(i)] = i;
        const std::span<const float> logits = *context.Logits(indices);
        all.insert(all.end(), logits.begin(), logits.end());
        return Status::Ok();
      },
      batch);
  EXPECT_TRUE(status.ok()) << status.message();
  return all;
}

/// The same in a new sequence.
inline std::vector<float> RunAll(Context& context, std::span<const Token> tokens, const RunOptions& options,
                                 int64_t batch) {
  Result<SequenceId> sequence = context.cache().AddSequence();
  EXPECT_TRUE(sequence.ok()) << sequence.status().message();
  std::vector<float> all = AppendAll(context, *sequence, tokens, options, batch);
  context.cache().RemoveSequence(*sequence);
  return all;
}

inline float MaxDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace blockgtq::test
