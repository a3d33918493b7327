// Multi-head latent attention: what its cache stores, what is refused and how. Its logits, latents and the
// packed cache's invariants are tested with the other families' (huggingface_models_test, tiny_models_test).
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "src/engine/calibration.h"
#include "src/engine/plan_source.h"
#include "tests/engine/test_models.h"
#include "tests/formats/files.h"

namespace blockgtq::test {
namespace {

constexpr const char* kModel = "hf/deepseek_v2";

std::vector<Token> Ids(size_t count) {
  std::vector<Token> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<Token>((i * 97 + i * i * 13) % 256);
  return ids;
}

// 3 layers; a rope key of 16 dims and a latent of 32.
TEST(LatentCache, StoresOneKeyATokenALayer) {
  const auto model = OpenModel(TinyModelPath(kModel));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->config().kv_heads, 1);
  EXPECT_EQ(model->config().head_dim, 48);
  for (const auto& [kind, element] : {std::pair{CacheKind::kHalf, 2}, std::pair{CacheKind::kFloat, 4}}) {
    CacheOptions options;
    options.kind = kind;
    options.max_tokens = 64;
    const auto context = MakeContext(*model, options);
    EXPECT_EQ(context->cache().HalfBytes(1), 3 * 48 * 2);
    const std::vector<Token> ids = Ids(40);
    const SequenceTokens item{*context->cache().AddSequence(), ids};
    ASSERT_TRUE(context->Run({&item, 1}).ok());
    EXPECT_EQ(context->cache().SequenceBytes(item.sequence), int64_t{3} * 64 * 48 * element);
  }
}

TEST(LatentCache, ThePlansBytesAreThoseOfTheCache) {
  const auto model = OpenModel(TinyModelPath(kModel));
  ASSERT_NE(model, nullptr);
  const auto measured = Measure(*model, Ids(400), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  const auto plan = MakePlan(*model, *measured, "uniform", {3, 3, 1});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // 3 units of 3 bits and the fp16 norms of two groups.
  EXPECT_EQ(plan->bytes_per_token_per_head(), 3 * 16 * 3 / 8.0 + 2 * 2);
  CacheOptions options;
  options.sinks = options.recent = 0;
  options.max_tokens = 64;
  const auto context = MakeContext(*model, options, &*plan);
  const std::vector<Token> ids = Ids(40);
  const SequenceTokens item{*context->cache().AddSequence(), ids};
  ASSERT_TRUE(context->Run({&item, 1}).ok());
  EXPECT_EQ(context->cache().SequenceBytes(item.sequence), 3 * 64 * 22);
}

double RootMeanSquare(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Nothing but rounding to float32 separates them (and codes that it moves): queries and probabilities are
// float.
TEST(LatentCache, ThePackedCacheEqualsItsTwin) {
  const auto model = OpenModel(TinyModelPath(kModel));
  ASSERT_NE(model, nullptr);
  const auto measured = Measure(*model, Ids(400), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  const std::vector<Token> ids = Ids(300);
  CacheOptions half;
  half.kind = CacheKind::kHalf;
  half.max_tokens = 320;
  const std::vector<float> exact = RunAll(*MakeContext(*model, half), ids, {}, 300);
  for (const char* recipe : {"aligned", "paper"}) {
    const auto plan = MakePlan(*model, *measured, recipe, {3, 3, 1});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    for (const int recent : {0, 64}) {
      CacheOptions options;
      options.recent = recent;
      options.max_tokens = 320;
      const std::vector<float> packed =
          RunAll(*MakeContext(*model, options, &*plan), ids, {.strict = true}, 300);
      options.kind = CacheKind::kSimulated;
      options.simulated = std::make_shared<SimulatedHeads>(SimulatePlan(model->config(), *plan, "twin"));
      const std::vector<float> twin = RunAll(*MakeContext(*model, options), ids, {.strict = true}, 300);
      const double lost = RootMeanSquare(packed, exact);
      EXPECT_GT(lost, 1e-2) << recipe << " recent " << recent;
      EXPECT_LT(RootMeanSquare(packed, twin), 0.02 * lost) << recipe << " recent " << recent;
    }
  }
}

TEST(LatentCache, RecipesThatKeepKeysAndValuesApartAreRefusedByName) {
  const auto model = OpenModel(TinyModelPath(kModel));
  ASSERT_NE(model, nullptr);
  const auto measured = Measure(*model, Ids(100), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  for (const char* name : {"kivi", "q8_0", "fp8", "turboquant-3bit"}) {
    const Recipe& recipe = **FindRecipe(name);
    const RecipeOptions bits{recipe.k_bits > 0 ? recipe.k_bits : 2, recipe.v_bits > 0 ? recipe.v_bits : 2, 1};
    for (const Status& status :
         {MakeSimulated(*model, *measured, name, bits).status(), CheckRecipeBits(*model, recipe, bits)}) {
      EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << name;
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    }
  }
}

TEST(LatentModel, ConfigurationsThatAreNotSupportedAreRefusedByName) {
  const TemporaryFolder folder;
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(TinyModelPath(kModel) + "/" + file, folder.File(file));
  }
  std::ifstream stream(folder.File("config.json"));
  const nlohmann::json original = nlohmann::json::parse(stream);
  const std::vector<std::tuple<const char*, nlohmann::json, ErrorCode, const char*>> changes = {
      {"kv_lora_rank", 24, ErrorCode::kUnsupported, "24"},
      {"topk_method", "group_limited_greedy", ErrorCode::kUnsupported, "topk_method"},
      {"n_group", 4, ErrorCode::kUnsupported, "n_group"},
      {"scoring_func", "sigmoid", ErrorCode::kUnsupported, "scoring_func"},
      {"kv_lora_rank", 48, ErrorCode::kCorruptFile, "kv_a_proj_with_mqa"},
      {"qk_nope_head_dim", 16, ErrorCode::kCorruptFile, "q_proj"},
      {"v_head_dim", 16, ErrorCode::kCorruptFile, "kv_b_proj"},
      {"q_lora_rank", 16, ErrorCode::kCorruptFile, "q_a_proj"},
      {"first_k_dense_replace", 0, ErrorCode::kCorruptFile, "layers.0.mlp.gate.weight"},
      {"first_k_dense_replace", 9, ErrorCode::kCorruptFile, "first_k_dense_replace"},
      {"n_shared_experts", 1, ErrorCode::kCorruptFile, "shared_experts"},
      {"num_key_value_heads", 2, ErrorCode::kCorruptFile, "num_key_value_heads"},
  };
  for (const auto& [key, value, code, naming] : changes) {
    nlohmann::json config = original;
    config[key] = value;
    std::ofstream(folder.File("config.json")) << config.dump();
    const Status status =
        LoadedModel::Open(folder.File(""), {.device = "cpu", .threads = 1}, TokenizerUse::kIfThere).status();
    EXPECT_EQ(status.code(), code) << key << ": " << status.message();
    EXPECT_NE(status.message().find(naming), std::string::npos) << key << ": " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace blockgtq::test
